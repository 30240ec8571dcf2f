from __future__ import annotations

import torch

from ihdm.heat import GridLaplacian
from ihdm.processes import InverseHeat
from ihdm.processes.inverse_heat import HeatSampling
from ihdm.sampler import sample, trajectory
from ihdm.schedule import Schedule

WITH_DELTA = HeatSampling(delta_ratio=50.0)  # of 0.5
PROCESS = InverseHeat(GridLaplacian((4, 4)), Schedule(5, 3.0), 0.01, sampling=WITH_DELTA)


def count_levels(u, k):
    """A network that adds 10^k, so that the answer tells which levels were visited."""
    return torch.zeros_like(u) + 10.0 ** k.view(-1, 1, 1, 1)


def test_the_chain_visits_every_level_once_and_adds_noise_at_all_but_the_last():
    asked = []

    def noise(k):
        asked.append(int(k))
        return torch.full((2, 1, 4, 4), float(k))

    u_0 = sample(PROCESS, count_levels, torch.zeros(2, 1, 4, 4), noise)
    assert asked == [5, 4, 3, 2, 1]
    torch.testing.assert_close(u_0, torch.full_like(u_0, 111110.0 + 0.5 * (5 + 4 + 3 + 2)))


def test_a_trajectory_starts_at_u_K_and_ends_at_the_sample():
    def noise(k):
        return torch.ones(1, 1, 4, 4)

    u_K = torch.randn(1, 1, 4, 4)
    states = list(trajectory(PROCESS, count_levels, u_K, noise))
    assert [k for k, _ in states] == [5, 4, 3, 2, 1, 0]
    assert states[0][1] is u_K
    assert torch.equal(states[-1][1], sample(PROCESS, count_levels, u_K, noise))


def test_with_perfect_knowledge_the_chain_returns_the_image():
    """A network that knows u_0 deblurs it exactly, level by level, as the heat equation says."""
    u_0 = torch.rand(1, 1, 4, 4)

    def oracle(u, k):
        return PROCESS.blur(u_0, k - 1) - u

    u_K = PROCESS.blur(u_0, torch.tensor([5]))
    for k, u in trajectory(PROCESS, oracle, u_K, lambda k: torch.zeros_like(u_0)):
        torch.testing.assert_close(u, PROCESS.blur(u_0, torch.tensor([k])))
