"""Cold diffusion: blur without noise, its loss, its steps and its start."""

from __future__ import annotations

import laws
import pytest
import torch
from laws import network

from ihdm.domains import ImageDomain
from ihdm.noise import SeededNoise
from ihdm.processes.cold import Cold, ColdSettings
from ihdm.sampler import chain, last, reverse_step

K = 20
LEVELS = torch.tensor([1, 2, 7, 13, 19, 20])
MEAN, COVARIANCE = torch.tensor([0.3, 0.6]).double(), torch.tensor([[0.04, -0.01], [-0.01, 0.02]]).double()


def process(start_noise: float = 0.001) -> Cold:
    return Cold(ColdSettings(K, 0.1, 1.0), Cold.Sampling(start_noise=start_noise), laws.LAPLACIAN, MEAN, COVARIANCE)


def blurred(cold, u, k):
    """D(u, k), by the definition: the heat equation, and at level K the mean of each channel."""
    if k == cold.K:
        return u.mean((2, 3), keepdim=True).expand_as(u)
    return laws.LAPLACIAN.dissipate(u, cold.schedule.t[k])


def test_states_are_blurred_images_and_nothing_else():
    cold, u_0 = process(), laws.draws(6)
    expected = torch.cat([blurred(cold, u_0[i : i + 1], int(k)) for i, k in enumerate(LEVELS)])
    for seed in (1, 2):
        torch.testing.assert_close(cold.noised(u_0, LEVELS, laws.white(6, seed)), expected)


def test_the_loss_is_the_absolute_error_of_the_image():
    cold, u_0, eps = process(), laws.draws(6), laws.white(6, 1)
    x = (1 + network(2 * cold.noised(u_0, LEVELS, eps) - 1, LEVELS)) / 2
    torch.testing.assert_close(cold.loss(network, u_0, LEVELS, eps), (x - u_0).abs().mean((1, 2, 3)))


@pytest.mark.parametrize(("k", "j"), [(20, 19), (20, 11), (5, 4), (2, 1), (1, 0), (20, 0)])
def test_a_step_is_that_of_algorithm_2(k, j):
    """u_j = u_k - D(x, k) + D(x, j), between any two levels, and without noise."""
    cold, u_k = process(), laws.draws(3)
    x = (1 + network(2 * u_k - 1, torch.tensor([k]))) / 2
    expected = u_k - blurred(cold, x, k) + blurred(cold, x, j)
    for seed in (1, 2):
        found = cold.step(network, u_k, torch.tensor(k), torch.tensor(j), laws.white(3, seed))
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("levels", [range(19, -1, -1), [19, 12, 5, 0], [19, 0]])
def test_with_a_network_that_is_right_every_chain_leads_to_the_image(levels):
    case, u_0 = laws.cold(K), laws.draws(5)
    start = case.process.noised(u_0, torch.full((5,), 19), torch.zeros_like(u_0))
    step = reverse_step(case.process, case.network, lambda k: laws.white(5, int(k)))
    for k, u_k in chain(case.process, step, start, list(levels)):
        torch.testing.assert_close(u_k, case.mean(u_0, k), atol=1e-9, rtol=0)


@pytest.mark.parametrize("steps", [20, 7, 1])
def test_what_a_network_always_says_comes_out_in_any_number_of_steps(steps):
    """Changes of D(x, k) add up to x - D(x, K); of the start, what is not its colour is kept, too."""
    cold, x, u_K = process().with_sampling(steps=steps), laws.draws(4), laws.draws(4, seed=5)
    step = reverse_step(cold, lambda u, k: 2 * x - 1, lambda k: torch.zeros_like(x))
    found = last(chain(cold, step, u_K, cold.levels()))
    torch.testing.assert_close(found, u_K + x - x.mean((2, 3), keepdim=True))


def test_a_start_is_a_colour_of_the_fitted_gaussian_under_a_little_noise():
    count = 40_000
    cold = process(start_noise=0.01)
    u_K = cold.start(SeededNoise(0, torch.arange(count), laws.SHAPE)).double()
    colours = u_K.mean((2, 3))
    torch.testing.assert_close(colours.mean(0), MEAN, atol=5 * 0.2 / count**0.5, rtol=0)
    torch.testing.assert_close(torch.cov(colours.T), COVARIANCE, atol=0.001, rtol=0)
    rest = u_K - colours[..., None, None]
    pixels = laws.GRID[0] * laws.GRID[1]
    assert float(rest.square().mean()) == pytest.approx(0.01**2 * (1 - 1 / pixels), rel=0.02)
    assert float((rest[:, 0, 0, 0] * colours[:, 0]).mean()) == pytest.approx(0, abs=5 * 0.01 * 0.4 / count**0.5)
    blank = process(start_noise=0.0).start(SeededNoise(0, torch.arange(9), laws.SHAPE))
    assert float((blank - blank.mean((2, 3), keepdim=True)).abs().max()) < 1e-6


def test_the_gaussian_is_fitted_to_the_mean_colours_of_training_images():
    images = [laws.draws(30, 1), laws.draws(20, 2)]
    cold = Cold.from_images(ColdSettings(K), Cold.Sampling(), ImageDomain(laws.SHAPE), lambda most, doing: iter(images))
    colours = torch.cat(images).mean((2, 3))
    state = cold.state()
    torch.testing.assert_close(state["colours.mean"], colours.mean(0))
    deviation = colours - colours.mean(0)
    torch.testing.assert_close(state["colours.covariance"], deviation.T @ deviation / 50)


def test_one_image_and_one_channel_will_do():
    image = torch.full((1, 1, *laws.GRID), 0.25)
    domain = ImageDomain((1, *laws.GRID))
    cold = Cold.from_images(ColdSettings(K), Cold.Sampling(), domain, lambda most, doing: iter([image]))
    start = cold.start(SeededNoise(0, torch.arange(2), (1, *laws.GRID)))
    torch.testing.assert_close(start, torch.full_like(start, 0.25), atol=0.01, rtol=0)
