"""Soft diffusion: its loss, its momentum sampler, and what it shares with growing noise."""

from __future__ import annotations

import laws
import pytest
import torch
from laws import network
from test_every_process import law_at_level_1

from ihdm.errors import UsageError

K = 20
LEVELS = torch.tensor([1, 2, 7, 13, 19, 20])


def blurred(process, u, k):
    """C_k u, by the definition: the heat equation's, with what is left of every frequency at the end."""
    return 0.999 * laws.LAPLACIAN.dissipate(u, process.schedule.t[k]) + 0.001 * u


def test_the_loss_is_of_images_after_they_were_corrupted():
    """|| C_k (x - u_0) ||^2 / sigma_k^2 over the number of pixels, x = u_k + f."""
    process, u_0, eps = laws.soft("plain", K).process, laws.draws(6), laws.white(6, 1)
    sigma = 0.02 * (process.schedule.sigma_B[LEVELS] / 0.1).view(-1, 1, 1, 1)
    u_k = blurred(process, u_0, LEVELS) + sigma * eps
    x = u_k + network((2 * u_k - 1) / (2 * sigma).clamp_min(1), LEVELS)
    expected = (blurred(process, x - u_0, LEVELS) / sigma).square().flatten(1).mean(1)
    torch.testing.assert_close(process.loss(network, u_0, LEVELS, eps), expected)


@pytest.mark.parametrize(("k", "j"), [(20, 19), (20, 11), (5, 4), (2, 1), (1, 0), (9, 0)])
def test_the_momentum_sampler_is_as_published(k, j):
    """x_j = x_k + (sigma_k^2 - sigma_j^2) score + sqrt(sigma_k^2 - sigma_j^2) eps + (C_j - C_k) x."""
    process, u_k, eps = laws.soft("plain", K).process, laws.draws(3), laws.white(3, 1)
    sigma_k, sigma_j = (0.2 * process.schedule.sigma_B[level] for level in (k, j))
    x = u_k + network((2 * u_k - 1) / (2 * sigma_k).clamp_min(1), torch.tensor([k]))
    score = (blurred(process, x, k) - u_k) / sigma_k**2
    less = sigma_k**2 - sigma_j**2
    expected = u_k + less * score + less.sqrt() * eps + blurred(process, x, j) - blurred(process, x, k)
    torch.testing.assert_close(process.step(network, u_k, torch.tensor(k), torch.tensor(j), eps), expected)


@pytest.mark.parametrize("growth", [1.0, 2.0])
def test_momentum_has_the_marginals_of_a_known_image_in_the_limit_of_many_steps(growth):
    """For each step the variance is sigma_j^2 + (sigma_k^2 - sigma_j^2)^2 / sigma_k^2; the chain's error is halved."""
    excess = []
    for K in (50, 100, 200):
        process = laws.soft("plain", K, growth).process
        sigma = process._sigma.value
        start, eps = (torch.ones(1, *laws.SHAPE).double() for _ in range(2))
        one = process.jump(sigma[9] * start, 0 * start, torch.tensor([9]), torch.tensor([4]), 0 * eps)
        other = process.jump(0 * start, 0 * start, torch.tensor([9]), torch.tensor([4]), eps)
        expected = sigma[4] ** 2 + (sigma[9] ** 2 - sigma[4] ** 2) ** 2 / sigma[9] ** 2
        torch.testing.assert_close(one.square() + other.square(), expected * start)
        variance = sigma[-1] ** 2
        for k in range(K, 1, -1):
            variance = variance * (sigma[k - 1] / sigma[k]) ** 4 + sigma[k] ** 2 - sigma[k - 1] ** 2
        excess.append(float(variance / sigma[1] ** 2 - 1))
    assert 0 < excess[2] < excess[1] < excess[0] < 0.2 * growth
    assert all(1.8 < more / less < 2.3 for more, less in zip(excess, excess[1:]))


@pytest.mark.parametrize("skip", ["plain", "linear"])
def test_samples_by_momentum_have_the_law_of_the_data_in_the_limit_of_many_steps(skip):
    """With the best network for Gaussian images: the mean for any number of steps, the variance if they are many."""
    case, worst = laws.soft(skip, 400), {}
    for steps in (400, 200, 100, 50):
        shift, ratio = law_at_level_1(case, sampler="momentum", steps=steps)
        torch.testing.assert_close(shift, 0 * shift, atol=1e-9, rtol=0)
        worst[steps] = float((ratio - 1).abs().max())
    assert worst[400] < 0.05
    assert all(1.5 < worst[steps // 2] / worst[steps] < 2.5 for steps in (400, 200, 100))


def test_without_growing_noise_momentum_is_the_exact_step_that_adds_none():
    process = laws.soft("plain", K, growth=0.0).process
    u_k, eps = laws.draws(3), laws.white(3, 1)
    for k, j in ((20, 19), (13, 5), (2, 1), (1, 0)):
        steps = (process, process.with_sampling(eta=0.0, order=1))
        found = [each.step(network, u_k, torch.tensor(k), torch.tensor(j), eps) for each in steps]
        if j:
            torch.testing.assert_close(*found)
        else:  # the sampler takes the noise of the last step away
            torch.testing.assert_close(found[0] - 0.02 * eps, found[1])


@pytest.mark.parametrize("sampling", [{"eta": 1.0}, {"eta": 0.0, "order": 2}])
def test_with_the_linear_skip_it_is_growing_noise(sampling):
    soft, growing = (case("linear", K).process.with_sampling(**sampling) for case in (laws.soft, laws.growing))
    u_0, eps = laws.draws(6), laws.white(6, 1)
    torch.testing.assert_close(soft.loss(network, u_0, LEVELS, eps), growing.loss(network, u_0, LEVELS, eps))
    found = [process.step(network, u_0, LEVELS, LEVELS - 1, eps) for process in (soft, growing)]
    torch.testing.assert_close(*found)


def test_its_bound_is_that_of_growing_noise_if_both_know_as_much():
    """Whatever the sampler: the bound is of exact steps."""
    cases = laws.soft("plain", K), laws.growing("plain", K)
    u_0, eps = laws.draws(4), laws.white(4, 1)
    for level in (1, 2, 13, 20):
        k = torch.full((4,), level)
        found = [case.process.bounding().ask(case.network, u_0, k, eps) for case in cases]
        torch.testing.assert_close(*found)
    torch.testing.assert_close(*(case.process.bounding().prior_terms(u_0) for case in cases))


def test_each_sampler_has_its_own_settings():
    process = laws.soft("plain", K).process
    assert process.sampling_words() == "20 steps with momentum"
    assert process.with_sampling(steps=5).sampling_words() == "5 steps with momentum"
    exact = process.with_sampling(steps=5, eta=0.0, order=2)
    assert exact.sampling_words() == "5 steps, eta 0, second order" and exact.remembers
    assert exact.with_sampling(corrected=True).sampling_words() == "5 steps, eta 0, second order, corrected"
    back = exact.with_sampling(sampler="momentum")
    assert back.sampling_words() == "5 steps with momentum" and not back.remembers
    with pytest.raises(UsageError, match="eta is for the sampler 'exact', not for 'momentum'"):
        process.with_sampling(sampler="momentum", eta=0.5)
    with pytest.raises(UsageError, match="must be one of 'momentum', 'exact', not 'paper'"):
        process.with_sampling(sampler="paper")
