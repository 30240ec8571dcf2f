"""Shared by all tests: tiny things to work with."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

# Some virtual machines claim AMX and kill whoever uses it; bfloat16 works there without. Before torch is loaded.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import torch
from accidents import pytest_collection_modifyitems, pytest_terminal_summary

from ihdm.config import Config
from ihdm.data import ImageSet
from ihdm.labels import Labels

__all__ = ["pytest_collection_modifyitems", "pytest_terminal_summary"]  # hooks of pytest

# The tensors are tiny: threads would only wait for each other, and badly so on a busy machine.
torch.set_num_threads(1)


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture
def tiny_config() -> Config:
    """A run of a few seconds: 8x8 images, ten levels, a network of some thousand parameters."""
    return Config().with_settings(
        [
            "process.K=10",
            "process.skip=linear",
            "network.channels=8",
            "network.multipliers=1,2",
            "network.attention=1",
            "network.blocks=1",
            "trainer.steps=6",
            "trainer.batch_size=8",
            "trainer.warmup=2",
            "trainer.lr=0.002",
            "trainer.log_every=2",
            "trainer.checkpoint_every=3",
            "trainer.sample_every=6",
            "trainer.samples=4",
            "engine.device=cpu",
        ]
    )


@pytest.fixture
def tiny_images() -> ImageSet:
    """Blobs: a bright square at a random place, as a data set that a tiny network can learn."""
    generator = torch.Generator().manual_seed(1)
    images = torch.zeros(40, 1, 8, 8, dtype=torch.uint8)
    for image, (top, left) in zip(images, torch.randint(0, 5, (40, 2), generator=generator).tolist()):
        image[0, top : top + 4, left : left + 4] = 220
    return ImageSet("blobs", images[:32], images[32:])


@pytest.fixture
def labelled(tiny_images) -> ImageSet:
    """The blobs, by whether they are left, in the middle or right."""
    numbers = [(images[:, 0].argmax(-1).amax(-1) // 2).long() for images in (tiny_images.train, tiny_images.held_out)]
    counts = torch.bincount(numbers[0], minlength=3).tolist()
    return replace(
        tiny_images,
        labels=Labels(("left", "middle", "right"), tuple(counts)),
        train_labels=numbers[0],
        held_out_labels=numbers[1],
    )
