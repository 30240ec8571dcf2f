"""How much memory a network needs, counted without computing anything, and which batch fits."""

from __future__ import annotations

import contextlib
import re
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ihdm.engine import lowered
from ihdm.errors import IhdmError
from ihdm.host import host_bytes

SHARE = 0.85  # what part of free memory a batch may take: counting is not exact, and allocators lose some
Build = Callable[[], nn.Module]


def to_sample(
    build: Build, shape: tuple[int, ...], batch: int, precision: torch.dtype = torch.float32, fused: bool = True
) -> int:
    """Bytes for the weights and for the largest moment of one evaluation of the network that `build` makes.

    fused: whether bfloat16 is computed with the GPU's kernels.
    """
    with torch.device("meta"), torch.no_grad():
        network = build().eval()
        u, k = torch.empty(batch, *shape), torch.ones(batch, dtype=torch.long)
        peak = _peak(lambda: lowered(network, precision, fused)(u, k))
    return sum(p.nbytes for p in network.parameters()) + u.nbytes + peak


def to_train(
    build: Build, shape: tuple[int, ...], batch: int, precision: torch.dtype = torch.float32, fused: bool = True
) -> int:
    """Bytes for weights, gradients, Adam and the average, and for the largest moment of a step."""
    with torch.device("meta"):
        network = build().train()
        u, k = torch.empty(batch, *shape), torch.ones(batch, dtype=torch.long)
        peak = _peak(lambda: lowered(network, precision, fused)(u, k).sum().backward())
    return 5 * sum(p.nbytes for p in network.parameters()) + u.nbytes + peak


def largest_batch(needed: Callable[[int], int], most: int, free: float) -> int:
    """The largest batch, up to `most`, for which `needed` is within a safe share of `free`; 0 if there is none."""
    if most and needed(most) <= SHARE * free:
        return most
    return bisect_right(range(1, most), SHARE * free, key=needed)


def free_bytes(device: torch.device) -> int:
    """The memory that a GPU has left."""
    torch.cuda.empty_cache()
    return torch.cuda.mem_get_info(device)[0]


def all_bytes(device: torch.device) -> int:
    """All the memory of a device, free or not."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    return host_bytes()


@contextlib.contextmanager
def advice(say: Callable[[], str]) -> Iterator[None]:
    """If memory runs out while this lasts, raise an error that says what to do."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not ran_out(error):
            raise
        raise IhdmError(say()) from error


def ran_out(error: BaseException) -> bool:
    """Whether an error says that there is not enough memory."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and bool(re.search("out of memory|allocate memory", str(error)))
    )


def _peak(work: Callable[[], Any]) -> int:
    """The most bytes that tensors made by `work` take up at one time."""
    with _Peak() as peak:
        work()
    return peak.most


class _Peak(TorchDispatchMode):
    """Counts the bytes of storages that operators make, until they are freed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._alive: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, Tensor):
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self._alive:
            self._alive.add(key)
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self.now -= size
