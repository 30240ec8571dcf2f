"""The process: what the network is shown, what it is asked for, and what the linear skip knows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import scipy.stats
import torch

from ihdm.errors import UsageError
from ihdm.heat import GaussianFilter, GridLaplacian
from ihdm.noise import SeededNoise
from ihdm.prior import Prior
from ihdm.processes import IdentitySkip, InverseHeat, LinearPredictor, LinearSkip, Spectrum
from ihdm.processes.inverse_heat import HeatSampling, HeatSettings
from ihdm.sampler import sample
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
    ratio = delta / sigma if sigma else 0.0
    return InverseHeat(
        GridLaplacian(GRID), Schedule(K, 4.0), sigma, skip or IdentitySkip(), HeatSampling(delta_ratio=ratio)
    )


def drawn_loss(heat, network, u_0, generator):
    k, eps = heat.draw(u_0.shape, generator)
    return heat.loss(network, u_0, k, eps.double())


def images(n: int, channels: int = 2, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, channels, *GRID, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_input_and_target_are_those_of_equation_9():
    heat, u_0, k = process(), images(8), torch.arange(1, 9)
    eps, answer = torch.randn(u_0.shape).double(), torch.randn(u_0.shape).double()
    network = Spy(answer)
    error = heat.loss(network, u_0, k, eps)
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
    torch.testing.assert_close(heat.loss(Spy(answer), u_0, k, torch.zeros_like(u_0)), torch.zeros(3).double())


def test_training_noise_has_std_sigma(generator):
    heat, u_0, network = process(), images(4000, channels=1), Spy()
    drawn_loss(heat, network, u_0, generator)
    noise = network.u - heat.blur(u_0, network.k)
    assert noise.std().item() == pytest.approx(0.05, rel=0.01)
    assert abs(noise.mean().item()) < 0.05 * 4 / noise.numel() ** 0.5


@pytest.mark.parametrize("batch", [1, 5, 8, 30])
def test_every_level_from_1_to_K_is_equally_likely_for_every_sample(batch, generator):
    heat, network, u_0 = process(), Spy(), images(batch)
    first, last = [], []
    for _ in range(4000):
        drawn_loss(heat, network, u_0, generator)
        first.append(int(network.k[0]))
        last.append(int(network.k[-1]))
    for levels in (first, last):
        counts = torch.bincount(torch.tensor(levels), minlength=9)
        assert counts[0] == 0 and len(counts) == 9
        assert scipy.stats.chisquare(counts[1:].numpy()).pvalue > 1e-3


def test_the_loss_is_the_mean_squared_error_over_levels(generator):
    heat, u_0 = process(sigma=0.0), images(1)
    exact = torch.cat([heat.loss(Spy(), u_0, torch.tensor([k]), u_0 * 0) for k in range(1, 9)]).mean()
    drawn = torch.cat([drawn_loss(heat, Spy(), u_0, generator) for _ in range(4000)]).mean()
    assert drawn.item() == pytest.approx(exact.item(), rel=0.05)


def test_a_step_is_the_mean_plus_delta_noise():
    heat, u_k = process(), images(3)
    eps, answer = torch.randn(u_k.shape).double(), torch.randn(u_k.shape).double()
    network = Spy(answer)
    k, j = torch.tensor(4), torch.tensor(3)
    torch.testing.assert_close(heat.step(network, u_k, k, j, eps), u_k + answer + 0.07 * eps)
    assert network.k.tolist() == [4, 4, 4]
    torch.testing.assert_close(heat.with_sampling(delta_ratio=0.0).step(network, u_k, k, j, eps), u_k + answer)


def test_negative_noise_is_refused():
    with pytest.raises(ValueError, match="negative"):
        replace(process(), sigma=-0.1)
    with pytest.raises(UsageError, match="delta_ratio must be at least 0"):
        process().with_sampling(delta_ratio=-0.1)


def test_a_prior_of_another_level_is_refused():
    """As if its blur were given as a width in pixels, and not as a time."""
    prior = Prior.from_images(GridLaplacian(GRID), 4.0, [images(3)])
    with pytest.raises(ValueError, match=r"blurred for a time of 4, but level K is at 8; make it with float\(sched"):
        replace(process(), prior=prior)


def test_a_process_without_a_prior_says_that_it_needs_a_start():
    noise = SeededNoise(0, torch.arange(2), (1, *GRID))
    for draw in (process().start, lambda noise: process().between(noise, noise, torch.zeros(2))):
        with pytest.raises(UsageError, match=r"without a prior draws no starts: give it one, prior=Prior\.from_images"):
            draw(noise)
    u_K = torch.zeros(2, 1, *GRID)
    assert sample(process(), lambda u, k: u * 0, u_K, noise).shape == u_K.shape


def test_each_sampler_has_its_own_settings():
    heat = process()
    with pytest.raises(UsageError, match="eta is for the sampler 'exact', not for 'paper'"):
        heat.with_sampling(sampler="paper", eta=0.5)
    with pytest.raises(UsageError, match="eta is for the sampler 'exact', not for 'paper'"):
        heat.with_sampling(delta_ratio=1.0, eta=0.5)
    exact = heat.with_sampling(eta=0.5)  # which only exact steps have
    assert (exact.sampling.sampler, exact.sampling.eta) == ("exact", 0.5)
    paper = exact.with_sampling(delta_ratio=1.1)
    assert (paper.sampling.sampler, paper.sampling.delta_ratio, paper.sampling.steps) == ("paper", 1.1, None)
    with pytest.raises(UsageError, match="delta_ratio is for the sampler 'paper', not for 'exact'"):
        heat.with_sampling(sampler="exact", delta_ratio=1.0)
    with pytest.raises(UsageError, match=r"8 in all: leave out --steps .*, or take 4 exact steps \(--sampler exact"):
        heat.with_sampling(steps=4)
    with pytest.raises(UsageError, match="need the spectrum"):
        heat.with_sampling(sampler="exact", steps=4)
    with pytest.raises(UsageError, match="exact steps need noise"):
        process(sigma=0.0).with_sampling(sampler="exact")
    with pytest.raises(UsageError, match="exact steps need the heat equation"):
        replace(heat, filter=GaussianFilter(GRID)).with_sampling(sampler="exact")
    assert heat.with_sampling(steps=8).levels() == heat.levels() == list(range(8, -1, -1))


def test_an_exact_step_is_the_posterior_of_the_markov_chain():
    """Against Bayes' rule for u_j and u_k = a u_j + sigma sqrt(1 - a^2) xi, in each coefficient, of the true image."""
    heat = process().with_sampling(sampler="exact", eta=1.0)
    u_0, u_k, eps = images(3), images(3, seed=1), images(3, seed=2)
    laplacian, t, sigma = heat.laplacian, heat.schedule.t, heat.sigma
    k, j = torch.tensor(5), torch.tensor(4)
    network = Spy(laplacian.dissipate(u_0, float(t[4])) - u_k)  # knows the image
    a, blurred = torch.exp((t[5] - t[4]) * laplacian.eigenvalues), torch.exp(t[4] * laplacian.eigenvalues)
    variance = 1 / (1 / sigma**2 + a**2 / (sigma**2 * (1 - a**2)))
    prior, seen = blurred * laplacian.to_spectrum(u_0), laplacian.to_spectrum(u_k)
    mean = variance * (prior / sigma**2 + a * seen / (sigma**2 * (1 - a**2)))
    mean[..., 0, 0] = seen[..., 0, 0]  # a = 1: nothing is new
    variance[0, 0] = 0
    expected = laplacian.from_spectrum(mean + variance.sqrt() * laplacian.to_spectrum(eps))
    torch.testing.assert_close(heat.step(network, u_k, k, j, eps), expected)
    still = heat.with_sampling(eta=0.0).step(network, u_k, k, j, eps)
    torch.testing.assert_close(laplacian.to_spectrum(still), seen + (1 - a) * prior)


def test_a_long_step_carries_the_linear_prediction_all_the_way():
    """What the network adds to it is amplified, but not without limit."""
    spectrum, schedule, laplacian = gaussian_spectrum(2), Schedule(8, 4.0), GridLaplacian(GRID)
    linear = LinearPredictor(laplacian, schedule, 0.05, spectrum)
    heat = InverseHeat(
        laplacian, schedule, 0.05, LinearSkip(linear), HeatSampling(sampler="exact"), spectra=(spectrum,)
    )
    u_k, k = images(3), torch.full((3,), 6)
    u_hat = laplacian.to_spectrum(u_k)
    for j in (5, 3, 0):
        level = torch.full((3,), j)
        expected = linear.coefficients(linear.predict(linear.deviation(u_hat, k), k, level), level)
        torch.testing.assert_close(heat.predict(Spy(), u_k, u_hat, k, level), expected)
        answer = images(3, seed=4) - 0.5
        added = linear.along_axes(heat.predict(Spy(answer), u_k, u_hat, k, level) - expected)
        growth = torch.exp((schedule.t[j] - schedule.t[5]) * laplacian.eigenvalues)
        most = (10 * linear.variance(k, level, u_hat).sqrt() / linear.rms_error(k, u_hat)).clamp_min(1)
        own = linear.along_axes(linear.rms_error(k, u_hat) * laplacian.to_spectrum(answer))
        torch.testing.assert_close(added, torch.minimum(growth.expand_as(most), most) * own)
    assert bool((growth > most).any()) and bool((growth < most).any())  # from level 6 to 0 some are limited


def test_images_that_are_all_alike_can_be_sampled():
    """Nothing is left to predict; in float32 nothing may become a number that is none."""
    laplacian, schedule, mean = GridLaplacian(GRID), Schedule(8, 4.0), torch.ones(1, *GRID).double()
    spectrum = Spectrum(mean, torch.eye(1).double(), 0 * mean)
    skip = LinearSkip(LinearPredictor(laplacian, schedule, 0.05, spectrum))
    heat = InverseHeat(laplacian, schedule, 0.05, skip, HeatSampling(sampler="exact", steps=3), spectra=(spectrum,))
    u_K = torch.rand(2, 1, *GRID)
    found = sample(heat, lambda u, k: torch.rand_like(u), u_K, lambda k: torch.randn(2, 1, *GRID))
    torch.testing.assert_close(found, laplacian.from_spectrum(mean[None]).float().expand_as(found), atol=0.01, rtol=0)


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
    skip = LinearSkip(LinearPredictor(laplacian, schedule, sigma, spectrum))
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
        LinearPredictor(GridLaplacian(GRID), Schedule(8, 4.0), 0.0, gaussian_spectrum(2))


def test_levels_that_count_alike_are_measured_by_linear_prediction(generator):
    """Of normal data a network that says nothing leaves just what linear prediction leaves: 1, at every level."""
    laplacian, schedule = GridLaplacian((40,)), Schedule(12, 20.0)
    power = (0.01 / (0.05 - laplacian.eigenvalues)).expand(1, 40)
    spectrum = Spectrum(laplacian.to_spectrum(torch.full((1, 1, 40), 0.5).double())[0], torch.eye(1).double(), power)
    skip = LinearSkip(LinearPredictor(laplacian, schedule, 0.05, spectrum))
    paper = InverseHeat(laplacian, schedule, 0.05, skip, spectra=(spectrum,))
    u_0 = laplacian.from_spectrum(spectrum.mean + power.sqrt() * torch.randn(600, 1, 40, generator=generator).double())
    eps = torch.randn(u_0.shape, generator=generator).double()
    levels = [torch.full((600,), k) for k in range(1, 13)]
    scaled = replace(paper, skip=LinearSkip(skip.predictor, scaled=True))
    even = torch.stack([scaled.loss(Spy(), u_0, k, eps).mean() for k in levels])
    torch.testing.assert_close(even, torch.ones(12).double(), atol=0.1, rtol=0)
    plain = torch.stack([paper.loss(Spy(), u_0, k, eps).mean() for k in levels])
    assert float(plain.max() / plain.min()) > 5
    for k in levels[::4]:
        seen = Spy()
        scaled.skip(seen, paper.noised(u_0, k, eps), k)
        assert abs(float(seen.u.mean())) < 0.1 and float(seen.u.square().mean()) == pytest.approx(1, abs=0.1)
    with pytest.raises(UsageError, match=r"set process\.skip=linear"):
        HeatSettings(units="level")
