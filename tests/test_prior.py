from __future__ import annotations

import pytest
import torch

from ihdm.heat import GaussianFilter, GridLaplacian
from ihdm.noise import SeededNoise
from ihdm.prior import Prior, kept_modes
from ihdm.processes import Spectrum


@pytest.mark.parametrize(("grid", "sigma_B"), [((32, 32), 24.0), ((32, 32), 6.0), ((9, 17), 5.0), ((8, 8), 0.5)])
def test_truncation_is_exact_to_float32_rounding(grid, sigma_B, generator):
    laplacian, t_K = GridLaplacian(grid), sigma_B**2 / 2
    u_0 = torch.rand(20, 3, *grid, dtype=torch.float64, generator=generator).round()  # the hardest: black and white
    prior = Prior.from_images(laplacian, t_K, u_0.split(6))
    exact = laplacian.dissipate(u_0, t_K)
    torch.testing.assert_close(prior.means(torch.arange(20)).double(), exact, atol=4e-7, rtol=0)


def test_cifar10_takes_a_few_megabytes():
    kept = int(kept_modes(GridLaplacian((32, 32)), 24.0**2 / 2).sum())
    assert 50_000 * 3 * kept * 4 < 6e6


def test_samples_are_blurred_images_plus_delta_noise(generator):
    laplacian = GridLaplacian((8, 8))
    u_0 = torch.rand(5, 1, 8, 8, generator=generator)
    prior = Prior.from_images(laplacian, 8.0, [u_0])
    numbers = torch.arange(3000)
    noise = SeededNoise(0, numbers, (1, 8, 8))
    u_K = prior.near(noise.choice(len(prior)), noise(99), delta=0.1)
    chosen = noise.choice(5)
    assert set(chosen.tolist()) == set(range(5))
    torch.testing.assert_close((u_K - prior.means(chosen)) / 0.1, noise(99), atol=1e-5, rtol=1e-5)
    blurred = laplacian.dissipate(u_0, 8.0)
    torch.testing.assert_close(prior.means(chosen), blurred[chosen], atol=1e-6, rtol=0)


def test_coefficients_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="do not fit"):
        Prior(GridLaplacian((8, 8)), 8.0, torch.zeros(5, 1, 2))


def test_images_that_are_not_in_the_unit_range_yet_are_refused():
    laplacian, images = GridLaplacian((8, 8)), torch.full((5, 1, 8, 8), 200, dtype=torch.uint8)
    for blur in (None, GaussianFilter((8, 8))):
        with pytest.raises(TypeError, match=r"got torch\.uint8; scale images to \[0, 1\] first"):
            Prior.from_images(laplacian, 8.0, [images], blur)
    with pytest.raises(TypeError, match=r"got torch\.uint8; scale images to \[0, 1\] first"):
        Spectrum.from_images(laplacian, [images])


def test_colours_are_the_averages_of_the_training_images(generator):
    u_0 = torch.rand(6, 3, 9, 7, dtype=torch.float64, generator=generator)
    prior = Prior.from_images(GridLaplacian((9, 7)), 18.0, [u_0])
    torch.testing.assert_close(prior.colours().double(), u_0.mean((-1, -2)), atol=1e-6, rtol=0)
