"""Side by side with the authors' public code, where $IHDM_REFERENCE names a checkout of it.

The checkout is AaltoML/generative-inverse-heat-dissipation; without it these tests are skipped.
"""

from __future__ import annotations

import os
from types import SimpleNamespace

import authors
import pytest
import torch

from ihdm.heat import GridLaplacian
from ihdm.networks.unet import UNet, UNetSettings
from ihdm.processes import InverseHeat
from ihdm.sampler import sample
from ihdm.schedule import Schedule

REFERENCE = os.environ.get("IHDM_REFERENCE")
pytestmark = pytest.mark.skipif(not REFERENCE, reason="$IHDM_REFERENCE names no checkout of the authors' code")


@pytest.fixture(autouse=True)
def importable():
    authors.use(REFERENCE)


@pytest.mark.parametrize("size", [8, 28, 32])
def test_the_blur_is_theirs(size):
    from model_code.utils import DCTBlur

    schedule = Schedule(20, 0.75 * size)
    u, k = torch.rand(21, 3, size, size, dtype=torch.float64), torch.arange(21)
    theirs = DCTBlur(schedule.sigma_B.tolist(), size, "cpu")(u, k)
    ours = GridLaplacian((size, size)).dissipate(u, schedule.t)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)  # their frequencies are float32


def networks(size: int, config: UNetSettings, channels: int) -> tuple[UNet, torch.nn.Module]:
    """Our network and theirs with the same random weights: both define their layers in the same order."""
    theirs = authors.build_network(config, (channels, size, size)).eval()
    ours = UNet(channels, channels, **vars(config)).eval()
    torch.manual_seed(0)
    pairs = list(zip(ours.parameters(), theirs.parameters(), strict=True))
    with torch.no_grad():
        for mine, other in pairs:
            other.copy_(torch.randn_like(other) * (0.5 / max(1, other[0].numel()) ** 0.5))
            mine.copy_(other.view_as(mine))
    return ours, theirs


CONFIGS = [
    UNetSettings(channels=128, multipliers=(1, 2, 2), blocks=1, attention=(2,), resample="conv"),
    UNetSettings(channels=128, multipliers=(1, 2), blocks=2, attention=(1,), resample="pool"),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_the_network_is_theirs(config):
    ours, theirs = networks(16, config, 3)
    u, k = torch.rand(4, 3, 16, 16), torch.tensor([1, 5, 99, 200])
    with torch.no_grad():
        torch.testing.assert_close(ours(u, k), theirs(u, k), atol=1e-5, rtol=1e-4)


def test_the_loss_and_the_sample_are_theirs():
    """Their loss at given levels and noise, and their sampler with shared noise, from the same start."""
    from model_code.utils import DCTBlur
    from scripts.sampling import get_sampling_fn_inverse_heat

    ours, theirs = networks(8, CONFIGS[1], 1)
    process = InverseHeat(GridLaplacian((8, 8)), Schedule(6, 6.0), 0.01)
    assert process.delta == 0.0125
    u_0, k, eps = torch.rand(6, 1, 8, 8), torch.arange(1, 7), torch.randn(6, 1, 8, 8)
    blur = DCTBlur(process.schedule.sigma_B.float().tolist(), 8, "cpu")
    with torch.no_grad():
        noisy = blur(u_0, k) + 0.01 * eps
        expected = (theirs(noisy, k) - (blur(u_0, k - 1) - noisy)).square().flatten(1).sum(1)
        torch.testing.assert_close(process.loss(ours, u_0, k, eps), expected, rtol=1e-4, atol=1e-6)

        u_K = process.blur(u_0, torch.full((6,), 6))
        config = SimpleNamespace(model=SimpleNamespace(K=6), device="cpu")
        torch.manual_seed(3)
        chain = get_sampling_fn_inverse_heat(config, u_K, None, 0.0125, "cpu", share_noise=True)
        expected, *_ = chain(theirs)
        torch.manual_seed(3)
        noises = [torch.randn(1, 1, 8, 8) for _ in range(6)]
        found = sample(process, ours, u_K, lambda k: noises[k - 1])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
