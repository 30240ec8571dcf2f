"""Networks, with which a process takes its steps back.

A network is one file: a `torch.nn.Module` with its settings beside it, and a line in the registry. It is called with
states (B, C, *grid), their levels (B,) and, if it is to know more than that, a condition; its answer has the shape of
the states (docs/your-own-process.md).
"""

from __future__ import annotations

import inspect
from collections.abc import Sized
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ihdm.domains import Domain
from ihdm.errors import UsageError
from ihdm.processes.process import Network
from ihdm.registry import NETWORKS


class Described(Protocol):
    """What a network is built from, such as a `ModelConfig`."""

    @property
    def network(self) -> Any: ...

    @property
    def domain(self) -> Domain: ...

    @property
    def labels(self) -> Sized: ...


def build_network(config: Described, checkpoint: bool = False) -> nn.Module:
    """The untrained network; `checkpoint`: whether it recomputes activations in the backward pass, if it can."""
    kind, labels = NETWORKS.of(config.network), {"labels": len(config.labels)} if config.labels else {}
    if labels and "labels" not in inspect.signature(kind.from_settings).parameters:
        raise UsageError(
            f"the network {NETWORKS.kind(config.network)} cannot be told labels: its from_settings has no parameter "
            f"labels; leave out data.labels=true, or use another network (network.kind)"
        )
    network = kind.from_settings(config.network, config.domain, **labels)
    if len(_demanded(network)) > 2:
        raise UsageError(
            f"the forward of network {NETWORKS.kind(config.network)} requires {', '.join(_demanded(network))}; it must "
            f"work with a state and its level alone: make the condition optional, forward(u, k, condition=None)"
        )
    if not any(weight.requires_grad for weight in network.parameters()):
        raise UsageError(
            f"the network {NETWORKS.kind(config.network)} has nothing to learn: its from_settings must make it with at "
            f"least one parameter (torch.nn.Parameter) that takes a gradient"
        )
    network.checkpoint = checkpoint
    return network


def described_weights(config: Described) -> dict[str, Tensor]:
    """A network's weights by name, of their shapes and types, without memory for the weights themselves."""
    with torch.device("meta"):
        return build_network(config).state_dict()


def _demanded(network: nn.Module) -> list[str]:
    """The arguments that a network cannot be called without."""
    named = inspect.signature(network.forward).parameters.items()
    optional = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return [name for name, given in named if given.default is given.empty and given.kind not in optional]


def has_fused_path(network: nn.Module) -> bool:
    """Whether a network can use the GPU kernels: it does if given its vectors once per image (`engine.py`)."""
    return bool(getattr(network, "fused", False))


def float32_layers(network: nn.Module) -> tuple[type[nn.Module], ...]:
    """Layers whose weights stay in float32, whatever precision the network computes in."""
    return tuple(getattr(network, "float32_layers", ()))


def expect_levels(network: Any, K: int, images: int) -> None:
    """Tell a network, if it has the method, that in training the levels of a batch are evenly spread over 1..K.

    images: how many a batch has, or its smallest part.
    """
    if hasattr(network, "expect_levels"):
        network.expect_levels(K, images)


def told(network: Any, condition: Tensor | None) -> Network:
    """The network as a process calls it, with only states and levels; the condition is filled in."""

    def answer(u: Tensor, k: Tensor) -> Tensor:
        found = network(u, k) if condition is None else network(u, k, condition)
        if found.shape[1:] != u.shape[1:]:  # others could be broadcast without a word
            raise UsageError(
                f"the network answers with {tuple(found.shape[1:])} to each state of {tuple(u.shape[1:])}; an answer "
                f"has the shape of the states"
            )
        return found

    return answer


__all__ = ["build_network", "described_weights", "expect_levels", "float32_layers", "has_fused_path", "told"]
