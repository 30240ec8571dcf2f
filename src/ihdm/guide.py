"""Checks of the weaker model that another's samples are to be guided away from (`networks/guidance.py`)."""

from __future__ import annotations

import torch
from torch import nn

from ihdm.config import KIND, Config, differences
from ihdm.errors import UsageError
from ihdm.model_folder import OF_PRIOR, ModelConfig
from ihdm.processes import Process


def check_weaker(ours: ModelConfig, theirs: ModelConfig) -> None:
    """Refuse a model whose network answers another question: of another process, other data or other labels."""
    changed = differences(Config(process=ours.process), Config(process=theirs.process))
    if changed:
        kind = f"process.{KIND}"
        named = {kind: changed[kind]} if kind in changed else changed
        unlike = ", ".join(f"{name}={their} instead of {our}" for name, (our, their) in named.items())
        raise UsageError(f"the weaker model must have the same process, but it has {unlike}")
    if ours.domain != theirs.domain:
        raise UsageError(
            f"the weaker model must make the same kind of data: {ours.domain.words}, not {theirs.domain.words}"
        )
    if ours.labels.names != theirs.labels.names:
        known = theirs.labels.words if theirs.labels else "none"
        raise UsageError(f"the weaker model must know the same labels, but it knows {known}")


def check_other_network(ours: nn.Module, theirs: nn.Module) -> None:
    """Refuse the same weights, which would double the work and change nothing."""
    one, two = ours.state_dict(), theirs.state_dict()
    if one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one):
        raise UsageError(
            "the weaker model has the same weights, so guiding away from it changes nothing; give a smaller one, or "
            "one that was trained for fewer steps"
        )


def check_same_data(ours: Process, theirs: Process) -> None:
    """Refuse a model whose process learned something different from its data, apart from rounding and signs of axes.

    The images that samples start from (the prior) may differ.
    """
    one, other = (
        {name: tensor.double().abs() for name, tensor in process.state().items() if not name.startswith(OF_PRIOR)}
        for process in (ours, theirs)
    )
    alike = one.keys() == other.keys() and all(one[name].shape == other[name].shape for name in one)
    if not alike or not all(torch.allclose(one[name], other[name], rtol=1e-3, atol=1e-6) for name in one):
        raise UsageError(
            "the weaker model must be trained on the same data, but what its process remembers of its data differs"
        )
