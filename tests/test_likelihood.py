"""The bound against closed forms, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, MultivariateNormal, Normal, kl_divergence

from ihdm import likelihood
from ihdm.heat import GridLaplacian
from ihdm.likelihood import (
    Bound,
    bits_per_dimension,
    bounds,
    chosen_levels,
    gaussian_kl,
    gaussian_nll,
    mean_by_level,
    prior_term,
    standard_error,
)
from ihdm.prior import Prior
from ihdm.processes import IdentitySkip, InverseHeat, LinearSkip, Spectrum
from ihdm.schedule import Schedule

SIGMA = 0.01


def nothing(u, k):
    return torch.zeros_like(u)


def test_terms_are_those_of_torch_distributions(generator):
    a, b = torch.rand(2, 5, 12, generator=generator, dtype=torch.float64)
    q, p = (Independent(Normal(mean, scale), 1) for mean, scale in ((a, 0.3), (b, 0.7)))
    squared = (a - b).square().sum(1)
    torch.testing.assert_close(gaussian_kl(squared, 12, 0.3, 0.7), kl_divergence(q, p))
    torch.testing.assert_close(gaussian_nll(squared, 12, 0.7), -p.log_prob(a))


def blurry_prior(generator, grid, sigma_B, images):
    laplacian = GridLaplacian(grid)
    u_0 = torch.rand(images, 3, *grid, generator=generator, dtype=torch.float64)
    return Prior.from_images(laplacian, sigma_B**2 / 2, [u_0]), u_0


@pytest.mark.parametrize("sigma_B", [2.0, 9.0])
def test_the_prior_term_is_that_of_pixels(generator, monkeypatch, sigma_B):
    prior, train = blurry_prior(generator, (12, 10), sigma_B, 40)
    test = torch.rand(7, 3, 12, 10, generator=generator, dtype=torch.float64)
    deltas = [SIGMA, 1.25 * SIGMA, 5 * SIGMA]
    found = prior_term(prior, test, SIGMA, deltas)
    t = torch.tensor(sigma_B**2 / 2)
    means, centres = (prior.laplacian.dissipate(u, t).flatten(1) for u in (test, train))
    for row, delta in zip(found, deltas):
        divergences = gaussian_kl(torch.cdist(means, centres).square(), means.shape[1], SIGMA, delta)
        phi = torch.softmax(-divergences, 1)  # App. A.3, term by term
        expected = (phi * (divergences + torch.log(len(train) * phi.clamp_min(1e-300)))).sum(1)
        torch.testing.assert_close(row, expected, rtol=1e-4, atol=0)
    monkeypatch.setattr(likelihood, "BLOCK", 20)  # two or three training images at a time
    torch.testing.assert_close(prior_term(prior, test, SIGMA, deltas), found, rtol=1e-10, atol=1e-8)


def test_the_prior_term_bounds_the_divergence_from_a_mixture(generator):
    laplacian = GridLaplacian((3, 2))
    centres = 0.5 + 0.03 * torch.randn(4, 1, 3, 2, generator=generator, dtype=torch.float64)
    u_0 = 0.5 + 0.03 * torch.randn(3, 1, 3, 2, generator=generator, dtype=torch.float64)
    sigma, delta = 0.02, 0.03
    t = 0.1
    for count in (4, 1):
        prior = Prior.from_images(laplacian, t, [centres[:count]])
        found = prior_term(prior, u_0, sigma, [delta])[0]
        means, q_means = (laplacian.dissipate(u, t).flatten(1) for u in (centres[:count], u_0))
        components = Independent(Normal(means, delta), 1)
        p = MixtureSameFamily(Categorical(torch.ones(count, dtype=torch.float64)), components)
        torch.manual_seed(0)
        for mean, bound in zip(q_means, found):
            q = Independent(Normal(mean, sigma), 1)
            draws = q.sample((100_000,))
            estimates = q.log_prob(draws) - p.log_prob(draws)
            error = standard_error(estimates)
            assert bound >= estimates.mean() - 4 * error
            if count == 1:
                assert abs(bound - estimates.mean()) < 4 * error


def expected_errors(process, u_0):
    """E || mu(u_k, k) - F(t_{k-1}) u_0 ||^2 over the noise at every level, exactly for a linear mu.

    The points +- sqrt(d) e_i have the mean and the covariance of a standard normal, all that a square depends on.
    """
    d = u_0.numel()
    points = math.sqrt(d) * torch.cat([torch.eye(d), -torch.eye(d)]).double().view(-1, *u_0.shape)
    copies = u_0.expand_as(points)
    levels = [torch.full((2 * d,), k) for k in range(1, process.K + 1)]
    return torch.stack([process.loss_at(nothing, copies, k, points).mean() for k in levels])[None]


def one_bound(process, prior, u_0, deltas):
    terms = prior_term(prior, u_0[None], process.sigma, deltas)
    levels = chosen_levels(process.K, [0], None, 0)
    return bounds(expected_errors(process, u_0), levels, terms, process.K, u_0.numel(), process.sigma, deltas)


def affine(process, shape, k):
    """mu(u, k) = M u + b."""
    d = math.prod(shape)
    basis = torch.cat([torch.zeros(1, d), torch.eye(d)]).double().view(-1, *shape)
    values = process.mean(nothing, basis, torch.full((d + 1,), k)).flatten(1)
    return (values[1:] - values[0]).T, values[0]


def test_on_gaussian_data_the_bound_exceeds_the_exact_likelihood_by_the_divergence_of_the_posterior(generator):
    """With the best linear predictor all is Gaussian: bound = -log p(u_0) + D_KL[q(u_1:K | u_0) || p(u_1:K | u_0)]."""
    shape, K, sigma = (1, 2, 2), 3, 0.05
    d = math.prod(shape)
    laplacian, schedule = GridLaplacian(shape[1:]), Schedule(K, 1.5)
    data = 0.5 + 0.2 * torch.randn(500, *shape, generator=generator, dtype=torch.float64)
    skip = LinearSkip(laplacian, schedule, sigma, Spectrum.from_images(laplacian, [data]))
    prior = Prior.from_images(laplacian, float(schedule.t[-1]), [data[:1]])
    start = prior.means(torch.zeros(1, dtype=torch.long)).double().flatten()
    deltas = [sigma, 1.25 * sigma, 2 * sigma]
    for u_0 in data[1:4]:
        process = InverseHeat(laplacian, schedule, sigma, 0.0, skip)
        for bound in one_bound(process, prior, u_0, deltas):
            # x = (u_K, ..., u_0) is an affine function of independent noise: u_{k-1} = M u_k + b + delta eps.
            mean, factor = [start], [torch.cat([torch.eye(d), torch.zeros(d, K * d)], 1).double()]
            for step, k in enumerate(range(K, 0, -1), start=1):
                M, b = affine(process, shape, k)
                own = torch.zeros(d, (K + 1) * d, dtype=torch.float64)
                own[:, step * d : (step + 1) * d] = torch.eye(d)
                mean.append(M @ mean[-1] + b)
                factor.append(M @ factor[-1] + own)
            joint_mean, joint = torch.cat(mean), bound.delta**2 * torch.cat(factor) @ torch.cat(factor).T
            n = K * d
            exact = -MultivariateNormal(joint_mean[n:], joint[n:, n:]).log_prob(u_0.flatten())
            gain = joint[:n, n:] @ torch.linalg.inv(joint[n:, n:])
            posterior = MultivariateNormal(
                joint_mean[:n] + gain @ (u_0.flatten() - joint_mean[n:]), joint[:n, :n] - gain @ joint[n:, :n]
            )
            blurred = [process.blur(u_0[None], torch.tensor([k])).flatten() for k in range(K, 0, -1)]
            q = MultivariateNormal(torch.cat(blurred), sigma**2 * torch.eye(n, dtype=torch.float64))
            gap = kl_divergence(q, posterior)
            assert gap > 0 and bound.total[0] > exact
            torch.testing.assert_close(bound.total[0], exact + gap, rtol=1e-5, atol=0)


def test_the_bound_is_exact_where_the_forward_process_is_the_posterior():
    """One level, mu = u_1, delta^2 = 2 sigma^2: then p(u_1 | u_0) = N(u_0 / 2, sigma^2), which is q where F = 1/2."""
    laplacian = GridLaplacian((4,))
    t = math.log(2) / -float(laplacian.eigenvalues[1])
    schedule = Schedule(1, math.sqrt(2 * t), 0.1)
    process = InverseHeat(laplacian, schedule, SIGMA, 0.0, IdentitySkip())
    prior = Prior.from_images(laplacian, t, [torch.zeros(1, 1, 4)])
    delta = math.sqrt(2) * SIGMA
    wave = laplacian.from_spectrum(torch.tensor([[[0.0, 0.02, 0, 0]]], dtype=torch.float64))[0]
    other = laplacian.from_spectrum(torch.tensor([[[0.0, 0.02, 0.01, 0]]], dtype=torch.float64))[0]
    exact = [
        -Independent(Normal(torch.zeros(4).double(), math.sqrt(2) * delta), 1).log_prob(u[0]) for u in (wave, other)
    ]
    found = [one_bound(process, prior, u, [delta])[0].total[0] for u in (wave, other)]
    torch.testing.assert_close(found[0], exact[0], rtol=1e-9, atol=1e-9)
    gap = (math.exp(t * laplacian.eigenvalues[2]) - 0.5) ** 2 * 0.01**2 / (2 * SIGMA**2)
    torch.testing.assert_close(found[1], exact[1] + gap, rtol=1e-9, atol=1e-9)


def test_drawn_levels_estimate_the_sum_without_preference():
    K, images, count = 12, 4000, 3
    levels = chosen_levels(K, range(images), count, seed=1)
    assert levels.shape == (images, 1 + count) and bool((levels[:, 0] == 1).all())
    assert all(len(set(row)) == 1 + count for row in levels.tolist()) and int(levels.max()) == K
    assert levels[7].equal(chosen_levels(K, [7], count, seed=1)[0])
    assert not levels.equal(chosen_levels(K, range(images), count, seed=2))
    assert chosen_levels(K, range(2), None, 0).tolist() == [list(range(1, K + 1))] * 2
    assert chosen_levels(K, range(2), K, 0).shape == (2, K)
    for nothing in (0, -1):
        with pytest.raises(ValueError, match="at least one level"):
            chosen_levels(K, range(2), nothing, 0)
    everything = chosen_levels(K, range(images), None, 0)
    prior_terms = torch.zeros(1, images)
    (full,) = bounds(everything.double() ** 2, everything, prior_terms, K, 10, 0.1, [0.1])
    (drawn,) = bounds(levels.double() ** 2, levels, prior_terms, K, 10, 0.1, [0.1])
    error = standard_error(drawn.chain)
    assert 0 < error < 0.05 * full.chain.mean()
    assert abs(drawn.chain.mean() - full.chain.mean()) < 4 * error
    assert drawn.L_0.equal(full.L_0)
    torch.testing.assert_close(mean_by_level(levels.double() ** 2, levels, K), torch.arange(1, K + 1).double() ** 2)
    assert mean_by_level(levels[:1, :1], levels[:1, :1], K).isnan().sum() == K - 1


def test_level_one_must_come_first():
    with pytest.raises(ValueError, match="level"):
        bounds(torch.ones(1, 2), torch.tensor([[2, 1]]), torch.zeros(1, 1), 2, 4, 0.1, [0.1])


def test_bits_of_a_uniform_code_are_eight():
    """A density of 1 on [0, 1] is 8 bits for each pixel."""
    assert float(bits_per_dimension(torch.zeros(()), 3072)) == 8
    assert float(bits_per_dimension(torch.tensor(3072 * math.log(2.0)), 3072)) == pytest.approx(9)
    one = Bound(0.1, torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([4.0]))
    assert one.total.tolist() == [7.0] and math.isnan(standard_error(one.total))
