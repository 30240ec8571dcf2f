"""From which levels smaller grids hold all that can be seen."""

from __future__ import annotations

import math

import laws
import pytest
import torch

from ihdm.heat import GridLaplacian, smaller
from ihdm.processes import InverseHeat, LinearPredictor, LinearSkip, Spectrum, coarse
from ihdm.schedule import Schedule


def flat(grid, power, sigma, levels=60) -> InverseHeat:
    """A process for images of a flat spectrum."""
    laplacian, schedule = GridLaplacian(grid), Schedule(levels, 6.0)
    mean = torch.zeros(2, *grid, dtype=torch.float64)
    spectrum = Spectrum(mean, torch.eye(2).double(), torch.stack([mean[0] + power, mean[0] + power / 7]))
    skip = LinearSkip(LinearPredictor(laplacian, schedule, sigma, spectrum))
    return InverseHeat(laplacian, schedule, sigma, skip, spectra=(spectrum,))


@pytest.mark.parametrize("grid", [(16, 16), (9, 16)])
def test_the_grids_that_suffice_in_closed_form(grid):
    """exp(-2 t (pi n / N)^2) P / sigma^2 < 0.01 for the lowest wave outside."""
    power, sigma = 0.3, 0.02
    process, expected = flat(grid, power, sigma), []
    for depth in (1, 2, 3, 4):
        small = smaller(grid, depth)
        lowest = min((math.pi * n / N) ** 2 for n, N in zip(small, grid))
        t = math.log(power / sigma**2 / 0.01) / (2 * lowest)
        later = [k for k in range(1, process.K + 1) if float(process.schedule.t[k]) > t]
        expected += [(later[0], small)] if later else []
    assert coarse.sufficient(process) == expected and len(expected) >= 2
    (half, _), (quarter, _) = expected[:2]
    assert coarse.remarks(process, (half, quarter)) == coarse.remarks(process, ()) == []
    for bold in ((half - 1,), (half, quarter - 1), (half, quarter, 58, 59, 60)):
        (remark,) = coarse.remarks(process, bold)
        assert remark.startswith("warning") and f"from level {half} on" in remark


def test_more_noise_hides_more_and_other_processes_know_it_too():
    levels = [[level for level, _ in coarse.sufficient(flat((16, 16), 0.3, sigma))] for sigma in (0.01, 0.05)]
    assert all(one > other for one, other in zip(*levels))
    for kind in ("growing", "blurring"):
        process = next(case() for name, case in laws.CASES[kind].items() if "linear" in name).process
        k = torch.tensor([process.K // 2])
        alpha, sigma = process.alpha_at(k, torch.zeros(())), process.sigma_at(k, torch.zeros(1, 1, 1, 1))
        expected = (alpha.square() * laws.spectrum().power / sigma.square())[0].amax(0)
        torch.testing.assert_close(process.signal_to_noise(int(k)).float(), expected.float(), rtol=1e-4, atol=0)
    assert coarse.sufficient(next(iter(laws.CASES["ddpm"].values()))().process) == []
