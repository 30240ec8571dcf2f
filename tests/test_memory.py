from __future__ import annotations

from functools import partial

import pytest
import torch

from ihdm import memory
from ihdm.config import load_config
from ihdm.errors import IhdmError
from ihdm.model_folder import ModelConfig
from ihdm.networks import build_network
from ihdm.networks.unet import UNet


def test_peak_memory_counts_what_is_alive_at_once():
    def work() -> None:
        a = torch.empty(1000, device="meta")
        b = a + 1
        del a
        c = b + 1
        del b, c

    assert memory._peak(work) == 2 * 4000


def test_the_largest_batch_that_fits():
    def needed(batch: int) -> int:
        return max(500, 100 + 10 * batch)  # small batches are dominated by the weights

    assert memory.largest_batch(needed, 64, free=10_000) == 64
    assert memory.largest_batch(needed, 64, free=701 / memory.SHARE) == 60
    assert memory.largest_batch(needed, 64, free=5) == 0
    assert memory.largest_batch(needed, 1, free=5) == 0


def test_the_batch_that_fits_a_real_network():
    config = load_config("cifar10-small")
    build = partial(build_network, ModelConfig.of(config, (3, 32, 32)))
    for count in (memory.to_sample, memory.to_train):
        needed = partial(count, build, (3, 32, 32), precision=torch.bfloat16)
        assert memory.largest_batch(needed, 512, free=(needed(100) + 1) / memory.SHARE) == 100


def test_what_kernels_keep_is_counted_too():
    """On a GPU in bfloat16 a step keeps less than half of what plain float32 keeps."""
    build = partial(UNet, 3, 3, channels=32, multipliers=(1, 2), blocks=1, attention=(1,))
    plain, fused = (memory.to_train(build, (3, 32, 32), 64, p) for p in (torch.float32, torch.bfloat16))
    weights = 20 * sum(parameter.numel() for parameter in build().parameters())
    assert 0.25 < (fused - weights) / (plain - weights) < 0.5


def test_other_errors_are_not_taken_for_lack_of_memory():
    with pytest.raises(RuntimeError, match="shape"), memory.advice(lambda: "buy more"):
        raise RuntimeError("shape mismatch")
    with pytest.raises(IhdmError, match="buy more"), memory.advice(lambda: "buy more"):
        raise MemoryError
