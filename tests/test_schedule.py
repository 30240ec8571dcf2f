from __future__ import annotations

import math

import pytest
import torch

from ihdm.schedule import Schedule


def test_sigma_B_follows_appendix_B4():
    K, low, high = 200, 0.5, 24.0
    sigma_B = Schedule(K, high).sigma_B
    assert len(sigma_B) == K + 1 and sigma_B[0] == 0
    for k in (1, 2, 77, 200):
        expected = math.exp(math.log(low) * (K - k) / (K - 1) + math.log(high) * (k - 1) / (K - 1))
        assert sigma_B[k].item() == pytest.approx(expected, rel=1e-12)


def test_times_are_half_the_squared_width_and_rise():
    schedule = Schedule(7, 5.0, 0.25)
    torch.testing.assert_close(schedule.t, schedule.sigma_B**2 / 2)
    assert (schedule.t.diff() > 0).all()


def test_a_single_level_is_the_coarsest():
    assert Schedule(1, 9.0).sigma_B.tolist() == pytest.approx([0.0, 9.0])


@pytest.mark.parametrize("arguments", [(0, 5.0), (10, 0.5), (10, 5.0, 0.0), (10, float("nan")), (10, math.inf)])
def test_impossible_schedules_are_refused(arguments):
    with pytest.raises(ValueError):
        Schedule(*arguments)


@pytest.mark.parametrize("K", [0, 10.5, "10", None])
def test_numbers_of_levels_that_are_none_are_refused_in_words(K):
    with pytest.raises(ValueError, match=f"K must be a whole number of at least 1, not {K!r}"):
        Schedule(K, 5.0)
