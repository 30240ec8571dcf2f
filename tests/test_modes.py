"""The distance that data of any kind have: against closed forms, and with faults put in."""

from __future__ import annotations

import math

import pytest
import torch

from ihdm.basis import Laplacian
from ihdm.heat import GridLaplacian
from ihdm.metrics.modes import LOWEST, Modes, modes_distance


def normal(laplacian: Laplacian, count: int, seed: int, power: float = 1.0) -> torch.Tensor:
    """Data whose coefficients are independent and normal, all of the same power."""
    generator = torch.Generator().manual_seed(seed)
    u_hat = power**0.5 * torch.randn(count, 1, *laplacian.grid, generator=generator, dtype=torch.float64)
    return laplacian.from_spectrum(u_hat)


@pytest.mark.parametrize("grid", [(40,), (6, 8), (3, 4, 5)])
def test_the_distance_of_normal_data_of_other_contrast_is_as_in_closed_form(grid):
    """Coefficients a times as large add (a - 1)^2 each. The logarithm of the power of k of them moves by 2 log a, and
    its variance is trigamma(k / 2)."""
    laplacian, a = GridLaplacian(grid), 1.3
    modes = Modes(laplacian, 1)
    one, other = (modes.features([normal(laplacian, 20_000, seed, p)]) for seed, p in ((0, a**2), (1, 1.0)))
    frequency = (-laplacian.eigenvalues).sqrt().flatten()
    octave = (frequency[1:].sort().values * max(grid) / math.pi + 1e-6).log2().floor()
    counts = octave.unique(return_counts=True)[1].double()
    expected = LOWEST * (a - 1) ** 2 + float(((2 * math.log(a)) ** 2 / torch.polygamma(1, counts / 2)).sum())
    assert modes.count == LOWEST + len(counts)
    assert modes_distance(one, other) == pytest.approx(expected, rel=0.03)
    assert modes_distance(other, other) == pytest.approx(0, abs=1e-9)


def test_the_distance_of_shifted_data_is_as_in_closed_form():
    laplacian = GridLaplacian((5, 6))
    modes = Modes(laplacian, 1)
    data = normal(laplacian, 20_000, 0)
    brighter = modes_distance(modes.features([data + 0.5]), modes.features([data]))
    assert brighter == pytest.approx(0.5**2 * 30, rel=0.02)  # the mean is the coefficient of frequency 0 over sqrt(30)


def test_the_distance_grows_with_a_fault():
    """Cubes of random places and brightness: with noise, with blur, and copies of one of them instead of many."""
    laplacian, generator = GridLaplacian((6, 6, 6)), torch.Generator().manual_seed(0)
    places = torch.randint(0, 3, (2, 2000, 3), generator=generator)
    axis = torch.arange(6)
    sets = []
    for some in places:
        near = [((axis - some[:, i, None]) < 3) & (axis >= some[:, i, None]) for i in range(3)]
        cube = near[0][:, :, None, None] & near[1][:, None, :, None] & near[2][:, None, None, :]
        sets.append(cube[:, None].double() * (0.7 + 0.3 * torch.rand(2000, 1, 1, 1, 1, generator=generator)))
    data, others = sets
    modes = Modes(laplacian, 1)
    reference = modes.features([data])
    distance = [modes_distance(modes.features(others.split(300)), reference)]
    for noise in (0.01, 0.05, 0.2):
        noisy = others + noise * torch.randn(others.shape, generator=generator, dtype=torch.float64)
        distance.append(modes_distance(modes.features([noisy]), reference))
    assert distance == sorted(distance) and distance[0] < 0.1 < distance[1]
    blurred = [modes_distance(modes.features([laplacian.dissipate(others, t)]), reference) for t in (0.0, 0.1, 0.5)]
    assert blurred[0] == pytest.approx(distance[0]) and blurred == sorted(blurred) and blurred[1] > 5 * blurred[0]
    copies = others[:1] + 1e-3 * torch.randn(others.shape, generator=generator, dtype=torch.float64)
    assert modes_distance(modes.features([copies]), reference) > 10


def test_each_channel_has_features_of_its_own():
    laplacian = GridLaplacian((4, 4))
    u = torch.rand(5, 2, 4, 4, dtype=torch.float64)
    both, one = Modes(laplacian, 2), Modes(laplacian, 1)
    assert both.count == 2 * one.count == 2 * (16 + 3)  # octaves from 1, 2 and 4, the last the corner alone
    parts = [one.features([u[:, i : i + 1]]) for i in range(2)]
    assert torch.equal(both.features([u]), torch.cat(parts, 1))
    assert both.features([]).shape == (0, both.count)
