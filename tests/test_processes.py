"""The process: what the network is shown, what it is asked for, and what the linear skip knows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import scipy.stats
import torch

from ihdm.heat import GridLaplacian
from ihdm.processes import IdentitySkip, InverseHeat, LinearSkip, Spectrum
from ihdm.schedule import Schedule

GRID = (6, 5)


class Spy:
    """A network that remembers what it was shown and answers with a fixed tensor."""

    def __init__(self, answer: torch.Tensor | float = 0.0):
        self.answer = answer

    def __call__(self, u, k):
        self.u, self.k = u, k
        return torch.zeros_like(u) + self.answer


def process(K=8, sigma=0.05, delta=0.07, skip=None) -> InverseHeat:
    return InverseHeat(GridLaplacian(GRID), Schedule(K, 4.0), sigma, delta, skip or IdentitySkip())


def images(n: int, channels: int = 2, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, channels, *GRID, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_input_and_target_are_those_of_equation_9():
    heat, u_0, k = process(), images(8), torch.arange(1, 9)
    eps, answer = torch.randn(u_0.shape).double(), torch.randn(u_0.shape).double()
    network = Spy(answer)
    error = heat.loss_at(network, u_0, k, eps)
    t = heat.schedule.t
    u_k = heat.laplacian.dissipate(u_0, t[k]) + 0.05 * eps
    target = heat.laplacian.dissipate(u_0, t[k - 1])
    torch.testing.assert_close(network.u, u_k)
    assert torch.equal(network.k, k)
    torch.testing.assert_close(error, (u_k + answer - target).square().sum((1, 2, 3)))


def test_the_finest_target_is_the_image_itself():
    heat, u_0 = process(sigma=0.0), images(3)
    k = torch.ones(3, dtype=torch.long)
    answer = u_0 - heat.blur(u_0, k)
    torch.testing.assert_close(heat.loss_at(Spy(answer), u_0, k, torch.zeros_like(u_0)), torch.zeros(3).double())


def test_training_noise_has_std_sigma(generator):
    heat, u_0, network = process(), images(4000, channels=1), Spy()
    heat.loss(network, u_0, generator)
    noise = network.u - heat.blur(u_0, network.k)
    assert noise.std().item() == pytest.approx(0.05, rel=0.01)
    assert abs(noise.mean().item()) < 0.05 * 4 / noise.numel() ** 0.5


@pytest.mark.parametrize("batch", [1, 5, 8, 30])
def test_every_level_from_1_to_K_is_equally_likely_for_every_sample(batch, generator):
    heat, network, u_0 = process(), Spy(), images(batch)
    first, last = [], []
    for _ in range(4000):
        heat.loss(network, u_0, generator)
        first.append(int(network.k[0]))
        last.append(int(network.k[-1]))
    for levels in (first, last):
        counts = torch.bincount(torch.tensor(levels), minlength=9)
        assert counts[0] == 0 and len(counts) == 9
        assert scipy.stats.chisquare(counts[1:].numpy()).pvalue > 1e-3


def test_the_loss_is_the_mean_squared_error_over_levels(generator):
    heat, u_0 = process(sigma=0.0), images(1)
    exact = torch.cat([heat.loss_at(Spy(), u_0, torch.tensor([k]), u_0 * 0) for k in range(1, 9)]).mean()
    drawn = torch.cat([heat.loss(Spy(), u_0, generator) for _ in range(4000)]).mean()
    assert drawn.item() == pytest.approx(exact.item(), rel=0.05)


def test_a_step_is_the_mean_plus_delta_noise():
    heat, u_k = process(), images(3)
    eps, answer = torch.randn(u_k.shape).double(), torch.randn(u_k.shape).double()
    network = Spy(answer)
    torch.testing.assert_close(heat.step(network, u_k, torch.tensor(4), eps), u_k + answer + 0.07 * eps)
    assert network.k.tolist() == [4, 4, 4]
    torch.testing.assert_close(replace(heat, delta=0.0).step(network, u_k, torch.tensor(4), eps), u_k + answer)


@pytest.mark.parametrize("name", ["sigma", "delta"])
def test_negative_noise_is_refused(name):
    with pytest.raises(ValueError, match="negative"):
        replace(process(), **{name: -0.1})


def gaussian_spectrum(channels: int) -> Spectrum:
    """Mean, colour axes and power of a Gaussian law of images, at random but well spread."""
    generator = torch.Generator().manual_seed(3)
    axes, _ = torch.linalg.qr(torch.randn(channels, channels, dtype=torch.float64, generator=generator))
    power = torch.rand(channels, *GRID, dtype=torch.float64, generator=generator).exp() * 0.1
    return Spectrum(torch.randn(channels, *GRID, dtype=torch.float64, generator=generator), axes, power)


def test_linear_skip_is_the_conditional_mean_of_gaussian_data():
    """Against the textbook formula with the full covariance matrices of all pixels and colours."""
    channels, sigma, k = 2, 0.05, 5
    spectrum, schedule, laplacian = gaussian_spectrum(channels), Schedule(8, 4.0), GridLaplacian(GRID)
    skip = LinearSkip(laplacian, schedule, sigma, spectrum)
    pixels = channels * GRID[0] * GRID[1]
    units = torch.eye(pixels, dtype=torch.float64).view(pixels, channels, *GRID)
    # Columns of `synthesis` are the images of unit steps along each axis and frequency.
    synthesis = laplacian.from_spectrum(torch.einsum("ndij,cd->ncij", units, spectrum.axes)).flatten(1).T
    blurs = [laplacian.dissipate(units, float(schedule.t[level])).flatten(1).T for level in (k - 1, k)]
    covariance = synthesis @ torch.diag(spectrum.power.flatten()) @ synthesis.T
    mean = laplacian.from_spectrum(spectrum.mean[None]).flatten()
    noisy = blurs[1] @ covariance @ blurs[1].T + sigma**2 * torch.eye(pixels, dtype=torch.float64)
    gain = blurs[0] @ covariance @ blurs[1].T @ torch.linalg.inv(noisy)
    error = blurs[0] @ covariance @ blurs[0].T - gain @ blurs[1] @ covariance @ blurs[0].T

    u_k = images(4, channels)
    expected = blurs[0] @ mean + (u_k.flatten(1) - blurs[1] @ mean) @ gain.T
    levels = torch.full((4,), k)
    torch.testing.assert_close(skip.predict(u_k, levels).flatten(1), expected, rtol=1e-8, atol=1e-10)
    answer = torch.randn(u_k.shape).double()
    rms = (error.trace() / pixels).sqrt()
    with_network = skip(Spy(answer), u_k, levels)
    torch.testing.assert_close(with_network, expected.view_as(u_k) + rms * answer, rtol=1e-8, atol=1e-10)


def test_spectrum_measures_mean_axes_and_power():
    spectrum, laplacian = gaussian_spectrum(2), GridLaplacian(GRID)
    generator = torch.Generator().manual_seed(5)
    coordinates = spectrum.power.sqrt() * torch.randn(40_000, 2, *GRID, dtype=torch.float64, generator=generator)
    u_hat = spectrum.mean + torch.einsum("ndij,cd->ncij", coordinates, spectrum.axes)
    measured = Spectrum.from_images(laplacian, laplacian.from_spectrum(u_hat).split(7000))
    torch.testing.assert_close(measured.mean, spectrum.mean, atol=0.02, rtol=0)
    total = torch.einsum("cd,d...,ed->ce...", spectrum.axes, spectrum.power, spectrum.axes)
    found = torch.einsum("cd,d...,ed->ce...", measured.axes, measured.power, measured.axes)
    torch.testing.assert_close(found, total, atol=0.02, rtol=0)
    torch.testing.assert_close(measured.axes @ measured.axes.T, torch.eye(2).double())


def test_linear_skip_needs_noise():
    with pytest.raises(ValueError, match="identity"):
        LinearSkip(GridLaplacian(GRID), Schedule(8, 4.0), 0.0, gaussian_spectrum(2))
