"""Which model may be the weaker one beside another, whose samples are guided away from it (`networks/guidance.py`)."""

from __future__ import annotations

import torch

from ihdm.config import KIND, Config, differences
from ihdm.errors import UsageError
from ihdm.model_folder import OF_PRIOR, ModelConfig
from ihdm.processes import Process


def check_weaker(ours: ModelConfig, theirs: ModelConfig) -> None:
    """Refuse a model whose network answers another question."""
    one, two = (Config(process=config.process).tree()["process"] for config in (ours, theirs))
    if one != two:
        changed = differences(Config(process=ours.process), Config(process=theirs.process))
        named = (
            [f"process.{KIND}"] if f"process.{KIND}" in changed else [n for n in changed if n.startswith("process.")]
        )
        unlike = ", ".join(f"{name}={changed[name][1]} instead of {changed[name][0]}" for name in named)
        raise UsageError(f"a weaker model to be guided away from has the same process, and this one has {unlike}")
    if ours.domain != theirs.domain:
        raise UsageError(
            f"a weaker model to be guided away from makes the same kind of data: {ours.domain.words}, not "
            f"{theirs.domain.words}"
        )
    if ours.labels.names != theirs.labels.names:
        known = theirs.labels.words if theirs.labels else "none"
        raise UsageError(f"a weaker model to be guided away from knows the same labels, and this one knows {known}")


def check_same_data(ours: Process, theirs: Process) -> None:
    """Refuse one that has learned something else of its data, but for rounding and the signs of axes.

    Of the images that samples start from, either may have fewer.
    """
    one, other = (
        {name: tensor.double().abs() for name, tensor in process.state().items() if not name.startswith(OF_PRIOR)}
        for process in (ours, theirs)
    )
    alike = one.keys() == other.keys() and all(one[name].shape == other[name].shape for name in one)
    if not alike or not all(torch.allclose(one[name], other[name], rtol=1e-3, atol=1e-6) for name in one):
        raise UsageError(
            "a weaker model to be guided away from is trained on the same data, and this one's have another spectrum"
        )
