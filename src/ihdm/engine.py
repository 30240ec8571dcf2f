"""How the arithmetic is done: devices, precision, memory."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ihdm.config import Device, Precision
from ihdm.errors import UsageError
from ihdm.processes import Network

LEAST_BF16_PIXELS = 24 * 24  # smaller images are no faster in bfloat16 on a CPU (docs/design.md)


def choose_device(name: Device = "auto") -> torch.device:
    """The device by name; "auto" is the GPU if there is one."""
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    available = [device for device in here if here[device]]
    if name != "auto" and name not in available:
        raise UsageError(f"this machine has no device {name!r}; available: {', '.join(available)}")
    return torch.device(available[0] if name == "auto" else name)


def choose_precision(name: Precision, device: torch.device, pixels: int) -> torch.dtype:
    """What the network computes in for images of so many pixels: bfloat16 where it is faster, unless told otherwise.

    The choice does not depend on timing, so that the same command gives the same result.
    """
    if name != "auto":
        return {"float32": torch.float32, "bf16": torch.bfloat16}[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    native = device.type == "cpu" and _cpu_computes_in_bf16()
    return torch.bfloat16 if native and pixels >= LEAST_BF16_PIXELS else torch.float32


def _cpu_computes_in_bf16() -> bool:
    """Whether the processor has instructions for it, without which bfloat16 is only a detour."""
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # absent from some versions of torch
    return any(getattr(torch.cpu, check, lambda: False)() for check in checks)


def inference(network: nn.Module, precision: torch.dtype = torch.float32) -> Network:
    """The network for use without gradients or dropout, computing in `precision`, answering in float32."""
    lower = precision != torch.float32

    def run(u: Tensor, k: Tensor) -> Tensor:
        with _evaluating(network), torch.inference_mode(), torch.autocast(u.device.type, precision, enabled=lower):
            return network(u, k).float()

    return run


@contextlib.contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    """Switch off dropout, for a network that is being trained."""
    was_training = network.training
    if was_training:
        network.eval()
    try:
        yield
    finally:
        if was_training:
            network.train()


def peak_memory(work: Callable[[], Any]) -> int:
    """The most bytes that tensors made by `work` take up at one time; on the meta device nothing is computed."""
    with _Peak() as peak:
        work()
    return peak.most


class _Peak(TorchDispatchMode):
    """Counts the storages that operators make, until they are freed."""

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
