"""How a trained network is put to work: precision, recording, and batches that fit into memory."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from ihdm import memory
from ihdm.engine import Frozen, compile_ahead, recorded
from ihdm.errors import UsageError
from ihdm.networks import build_network, has_fused_path
from ihdm.networks.pyramid import parts_of

if TYPE_CHECKING:
    from ihdm.model_folder import ModelConfig

MOST_PIXELS = {"cuda": 2**20, "cpu": 2**16}  # in a batch: more are no faster
MOST_IMAGES = {"cuda": 2**14, "cpu": 256}

Work = TypeVar("Work", bound=Callable[..., Tensor])


@dataclass(frozen=True)
class Execution:
    """How arithmetic is done; affects results only by rounding.

    precision: of the network. compiled: on a GPU, use compiled kernels and recorded steps, which start some seconds
    later and are faster. batch_size: images computed at a time; None: as many as pay off and fit into memory.
    progress: show a progress bar.
    """

    precision: torch.dtype = torch.float32
    compiled: bool = True
    batch_size: int | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        if self.batch_size is not None and self.batch_size < 1:
            raise UsageError(f"a batch must have at least 1 image, not {self.batch_size}")

    def quiet(self) -> Execution:
        return replace(self, progress=False)


USUAL = Execution()


class Runner:
    """A network, as it is now, ready to compute without gradients."""

    def __init__(self, network: nn.Module, config: ModelConfig, execution: Execution):
        self.config, self.execution = config, execution
        self.device = next(network.parameters()).device
        self.modules: list[nn.Module] = []
        self.frozen: list[Frozen] = []
        self.network = self.beside(network)

    def beside(self, network: nn.Module) -> Frozen:
        """One more network, ready to compute with the others."""
        self.modules.append(network)
        self.frozen.append(Frozen(network, self.execution.precision, self.execution.compiled))
        return self.frozen[-1]

    def size(self, n: int) -> int:
        """How many of n images to compute at a time: no more than pay off, nor than fit into memory."""
        return even(n, self.execution.batch_size or self._fitting(n))

    def _fitting(self, n: int) -> int:
        kind, pixels = "cuda" if self.device.type == "cuda" else "cpu", math.prod(self.config.shape[1:])
        most = max(1, min(n, MOST_IMAGES[kind], MOST_PIXELS[kind] // pixels))
        if kind == "cuda":
            most = max(1, memory.largest_batch(self._needed(), most, memory.free_bytes(self.device)))
        return most

    def recorded(self, work: Work, size: int) -> Work:
        """A function that uses the network for batches of a size, made faster where that is possible.

        The second argument of the function is the level, one for all images or one for each.
        """
        if not self.execution.compiled:
            return work
        like = torch.empty(size, *self.config.shape, device=self.device)
        for module in self.modules:
            compile_ahead(module, like, self.execution.precision)
        return ByDepth(work, self.frozen, self.device)  # type: ignore[return-value]

    def advice(self, size: int) -> contextlib.AbstractContextManager[None]:
        """If there is not enough memory for batches of a size, raise an error that says what would fit."""
        return memory.advice(lambda: self._fewer(size))

    def _fewer(self, size: int) -> str:
        fitting = memory.largest_batch(self._needed(), size // 2, memory.all_bytes(self.device))
        advice = f"; {fitting} should fit (--batch-size {fitting})" if fitting else ", or even for one"
        return f"not enough memory for {size} images at a time{advice}"

    def _needed(self) -> Callable[[int], int]:
        execution = self.execution
        fused = execution.compiled and self.device.type == "cuda" and has_fused_path(self.modules[0])
        build: Any = partial(build_network, self.config)
        return lambda batch: memory.to_sample(build, self.config.shape, batch, execution.precision, fused)


class ByDepth:
    """Work with networks, recorded once for each depth at which they see images; batches of mixed depth are not."""

    def __init__(self, work: Callable[..., Tensor], networks: Sequence[Frozen], device: torch.device):
        self.work, self.networks, self.device = work, networks, device
        self._recorded: dict[tuple[int | None, ...], Callable[..., Tensor]] = {}

    def __call__(self, state: Tensor, k: Tensor, *rest: Tensor | None) -> Tensor:
        parts = [parts_of(network.module, k.view(-1)) for network in self.networks]
        if any(len(some) > 1 for some in parts):
            return self.work(state, k, *rest)
        depths = tuple(some[0].depth for some in parts)
        if depths not in self._recorded:
            self._recorded[depths] = recorded(self.work, self.device)
        for network, depth in zip(self.networks, depths):
            network.depth = depth
        try:
            return self._recorded[depths](state, k, *rest)
        finally:
            for network in self.networks:
                network.depth = None


def even(n: int, most: int) -> int:
    """The size of batches, at most `most`, if n things are divided into as few batches as possible, as equally."""
    return -(-n // -(-n // most)) if n else 1
