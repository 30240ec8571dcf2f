"""Between inverse heat and diffusion: what new processes are when they are nothing new."""

from __future__ import annotations

import math

import laws
import pytest
import torch
from laws import network
from torch.distributions import Normal, kl_divergence

from ihdm.heat import GridLaplacian
from ihdm.prior import Prior
from ihdm.processes import DDPM
from ihdm.processes.blurring import Blurring, BlurringSettings
from ihdm.processes.ddpm import DiffusionSettings
from ihdm.processes.growing import GrowingHeat, GrowingSettings
from ihdm.processes.noise_predicting import FLOOR
from ihdm.processes.soft import Soft

K = 20


class Cosine(DDPM):
    """Diffusion with log(alpha^2 / sigma^2) = -2 log tan(phi), phi even between where that is 10 and -10."""

    @property
    def alpha_bar(self):
        first, last = (torch.tensor(float(sign) * 5, dtype=torch.float64).exp().atan() for sign in (-1, 1))
        phi = first + (last - first) * torch.arange(K + 1) / K
        return torch.cat([torch.ones(1, dtype=torch.float64), phi[1:].cos().square()])


@pytest.mark.parametrize("sampling", [{}, {"eta": 0.0}, {"eta": 0.5, "order": 2}])
def test_without_blur_it_is_diffusion_with_the_cosine_schedule(sampling):
    blurring = Blurring(BlurringSettings(K, 0.0), Blurring.Sampling(**sampling), laws.LAPLACIAN, None)
    diffusion = Cosine(DiffusionSettings(K), DDPM.Sampling(clip=False, **sampling))
    u_0, eps = laws.draws(6), laws.white(6, 1)
    k = torch.tensor([1, 2, 5, 10, 19, 20])
    torch.testing.assert_close(blurring.noised(u_0, k, eps), diffusion.noised(u_0, k, eps))
    torch.testing.assert_close(blurring.loss(network, u_0, k, eps), diffusion.loss(network, u_0, k, eps))
    for k, j in ((20, 13), (5, 4), (1, 0)):
        levels = torch.full((6,), k), torch.full((6,), j)
        torch.testing.assert_close(
            blurring.step(network, u_0, *levels, eps), diffusion.step(network, u_0, *levels, eps)
        )
    torch.testing.assert_close(blurring.bounding().prior_terms(u_0), diffusion.bounding().prior_terms(u_0))


def test_blur_may_come_later():
    usual, late = (
        Blurring(BlurringSettings(K, 8.0, power), Blurring.Sampling(), laws.LAPLACIAN, None).sigma_B for power in (2, 4)
    )
    torch.testing.assert_close(usual, 4 * (1 - torch.cos(torch.pi * torch.arange(K + 1).double() / K)))
    torch.testing.assert_close(late, usual.square() / 8)


def test_noise_that_does_not_grow_is_the_papers():
    settings = GrowingSettings(K, 0.02, 0.0, 0.1, 3.0)
    schedule = settings.schedule(laws.LAPLACIAN)
    assert settings.noise(schedule).tolist() == [0.0] + [0.02] * K
    paper, case = laws.heat("identity", K).process, laws.growing("plain", K).process
    process = GrowingHeat(settings, GrowingHeat.Sampling(), case.prior, None)
    u_0, eps, k = laws.draws(4), laws.white(4, 1), torch.tensor([1, 5, 10, 20])
    torch.testing.assert_close(process.noised(u_0, k, eps), paper.noised(u_0, k, eps), atol=2 * FLOOR, rtol=0)


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize(("kind", "width"), [(GrowingHeat, 1.0), (GrowingHeat, 30.0), (Soft, 30.0)])
def test_the_prior_term_is_of_images_blurred_down_to_the_floor(kind, width, count):
    """q(u_K | u_0) keeps FLOOR of each coefficient, also of those that the prior has dropped as blurred away."""
    settings = kind.Settings(K, 0.02, 0.2, 0.1, width)
    t = settings.schedule(laws.LAPLACIAN).t
    prior = Prior.from_images(laws.LAPLACIAN, float(t[-1]), [laws.draws(count, 9)])
    assert bool(prior.kept.all()) is (width == 1)
    process, u_0, last = kind(settings, kind.Sampling(), prior, None), laws.draws(3), torch.full((3,), K)
    q = [Normal(mean, process.sigma_K) for mean in process.noised(u_0, last, torch.zeros_like(u_0))]
    prior.coefficients = prior.coefficients.double()
    p = [Normal(mean, process.sigma_K) for mean in prior.means(torch.arange(count))]
    apart = torch.stack([torch.stack([kl_divergence(one, other).sum() for other in p]) for one in q])
    expected = math.log(count) - torch.logsumexp(-apart, 1)  # App. A.3
    torch.testing.assert_close(process.bounding().prior_terms(u_0)[:, 0], expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("growth", [0.0, 1.0])
def test_terms_of_the_bound_are_divergences_of_posteriors(growth):
    """By coefficient; the mean colour stays as it is if noise does not grow, so that nothing is lost by guessing it."""
    case = laws.growing("plain", K, growth)
    process, u_0, eps = case.process, laws.draws(3), laws.white(3, 1)
    k = torch.tensor([2, 9, K])
    found = process.bounding().ask(network, u_0, k, eps)[:, 0]
    for i, level in enumerate(k.tolist()):
        fine, coarse, (s, r) = case.gain(level - 1), case.gain(level), map(case.sigma, (level - 1, level))
        u_k = laws.LAPLACIAN.to_spectrum(case.mean(u_0[i : i + 1], level) + r * eps[i : i + 1])
        a, states = coarse / fine, laws.LAPLACIAN.from_spectrum(u_k)
        guess = (u_k - r * process.noise_of(network, states, u_k, k[i : i + 1])) / coarse
        variance = s**2 - (a * s**2 / r) ** 2
        means = [
            fine * image + a * s**2 / r**2 * (u_k - coarse * image)
            for image in (laws.LAPLACIAN.to_spectrum(u_0[i : i + 1]), guess)
        ]
        q, p = (Normal(mean[..., variance > 0], variance[variance > 0].sqrt()) for mean in means)
        torch.testing.assert_close(found[i], kl_divergence(q, p).sum())
        assert int((variance > 0).sum()) == a.numel() - (growth == 0)


def test_noise_grows_with_the_blur():
    settings = GrowingSettings(K, 0.01, 1.5, 0.5, 24.0)
    schedule = settings.schedule(GridLaplacian((32, 32)))
    noise, widths = settings.noise(schedule), schedule.sigma_B
    torch.testing.assert_close(noise[1:], 0.01 * (widths[1:] / 0.5) ** 1.5)
    assert float(noise[0]) == 0 and float(noise[-1]) == pytest.approx(3.325, abs=0.01)
