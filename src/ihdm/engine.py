"""How the arithmetic is done: devices, precision, recorded steps."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import faulthandler
import gc
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ihdm import kernels
from ihdm.config import Device, Precision
from ihdm.errors import UsageError
from ihdm.networks import float32_layers, has_fused_path
from ihdm.networks.pyramid import depth_option, joined, parts_of
from ihdm.optimisation import LoweredAdam

Module = TypeVar("Module", bound=nn.Module)

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
LEAST_BF16_PIXELS = 24 * 24  # smaller images, and volumes, are no faster in bfloat16 on a CPU (docs/design.md)
WARMUP = 2  # calls before one is recorded
PATIENCE = 10.0  # seconds that a small product may take


def choose_device(name: Device = "auto") -> torch.device:
    """The device by name; "auto" is the GPU if there is one."""
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    available = [device for device in here if here[device]]
    if name != "auto" and name not in available:
        raise UsageError(f"this machine has no device {name!r}; available: {', '.join(available)}")
    return torch.device(available[0] if name == "auto" else name)


def exact_device(device: torch.device) -> torch.device:
    """Where to compute in float64: on the device, or on the CPU if the device cannot."""
    return torch.device("cpu") if device.type == "mps" else device


def keep_freed_memory() -> None:
    """Let this process, on Linux, keep the memory that it frees for its own use, instead of returning it each time.

    On a CPU large feature maps otherwise come as fresh pages from the system (docs/performance.md).
    Programs should call this, not libraries, because it applies to the whole process.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None and mallopt(M_MMAP_THRESHOLD, 2**30):  # glibc's, if it takes so large a number
        mallopt(M_TRIM_THRESHOLD, 2**30)


def choose_precision(name: Precision, device: torch.device, grid: Sequence[int]) -> torch.dtype:
    """What the network computes in for data on such a grid: bfloat16 where it is faster, unless told otherwise.

    The choice does not depend on timing, so that the same command gives the same result.
    """
    if name == "bf16" and device.type == "cpu" and not _survives_bf16():
        raise UsageError("this processor claims to compute in bfloat16, but crashes when it does; take float32")
    if name != "auto":
        return {"float32": torch.float32, "bf16": torch.bfloat16}[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    faster = device.type == "cpu" and len(grid) < 3 and math.prod(grid) >= LEAST_BF16_PIXELS
    return torch.bfloat16 if faster and _claims_bf16() and _survives_bf16() else torch.float32


def _claims_bf16() -> bool:
    """Whether the processor claims instructions for bfloat16, without which it is no faster."""
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # absent from some versions of torch
    return any(getattr(torch.cpu, check, lambda: False)() for check in checks)


@cache
def _survives_bf16() -> bool:
    """Whether a product in bfloat16 completes: some virtual machines claim AMX, and kill any process that uses it."""
    return not hasattr(os, "fork") or survives(lambda: torch.ones(64, 64).bfloat16() @ torch.ones(64, 64).bfloat16())


def survives(work: Callable[[], Any]) -> bool:
    """Whether work completes, tried in a child process, which takes milliseconds; one that hangs counts as killed."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):  # else the child would go on as if it were this process
            faulthandler.disable()  # its crash needs no report
            torch.set_num_threads(1)  # threads do not survive a fork
            work()
            os._exit(0)
        os._exit(1)
    end = time.monotonic() + PATIENCE
    while (found := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.002)
    return found[1] == 0


class Lowered(nn.Module):
    """A network that computes in `precision` from float32 weights, and answers in float32.

    With the GPU kernels, vectors stay in float32 and are given once per image; otherwise the weights of the network's
    `float32_layers` stay. The optimiser may have all others in lower precision already, and places for all gradients.
    """

    optimizer: LoweredAdam | None = None

    def __init__(self, network: nn.Module, precision: torch.dtype, fused: bool = True):
        super().__init__()
        self.network, self.precision, self.fused = network, precision, fused and has_fused_path(network)

    def by_kernels(self, device: torch.device) -> bool:
        """Whether it computes with the GPU kernels on a device."""
        return self.fused and kernels.usable(device, self.precision)

    def forward(self, u: Tensor, k: Tensor, *condition: Tensor) -> Tensor:
        named, u = dict(self.network.named_parameters()), u.to(self.precision)
        if not self.by_kernels(u.device):
            kept = {name: named[name] for name in self._kept()}
            return functional_call(self.network, kept | self._converted(named, kept), (u, k, *condition)).float()
        vectors = {name: weight for name, weight in named.items() if weight.ndim == 1}
        lower, parts = self._converted(named, vectors), parts_of(self.network, k)
        sizes = [len(k if part.rows is None else part.rows) for part in parts]
        per_image = iter(_PerImage.apply(sizes, self.optimizer, *vectors.values()))

        def answer(depth: int | None, *inputs: Tensor) -> Tensor:
            weights = lower | dict(zip(vectors, per_image))
            return functional_call(self.network, weights, inputs, depth_option(depth))

        return joined(answer, parts, u, k, *condition).float()

    def _converted(self, named: dict[str, nn.Parameter], kept: Iterable[str]) -> dict[str, Tensor]:
        names = [name for name in named if name not in set(kept)]
        weights = (named[name] for name in names)
        lower = _Stored.apply(self.optimizer, *weights) if self.optimizer else _Convert.apply(self.precision, *weights)
        return dict(zip(names, lower))

    def _kept(self) -> list[str]:
        layers = float32_layers(self.network)
        modules = [(name, module) for name, module in self.network.named_modules() if isinstance(module, layers)]
        return [f"{name}.{part}" for name, module in modules for part, _ in module.named_parameters(recurse=False)]


def compile_ahead(network: nn.Module, u: Tensor, precision: torch.dtype, update: bool = False) -> None:
    """Compile the kernels that the network needs for batches like `u`, with gradients if it is being trained.

    update: those of `LoweredAdam`, too. A note in Triton's cache says that it was done: finding out what is needed
    takes a second or more, because of what torch imports.
    """
    if not (has_fused_path(network) and kernels.usable(u.device, precision)):
        return
    shapes = [tuple(weight.shape) for weight in network.parameters()]
    needs = network.training, getattr(network, "dropout", None), u.shape, str(precision), update
    note = kernels.Note(f"{torch.cuda.get_device_capability(u.device)} {needs} {shapes} {network}")
    if note.is_there():
        return
    lower = Lowered(copy.deepcopy(network).to("meta"), precision)
    with kernels.compile_ahead(), torch.set_grad_enabled(network.training):
        answer = lower(torch.empty_like(u, device="meta"), torch.empty(len(u), device="meta"))
        if network.training:
            answer.sum().backward()
        if update:
            LoweredAdam(lower.network, copy.deepcopy(lower.network), 1.0, precision).update(u.new_empty(2).to("meta"))
    note.leave()


class _Convert(torch.autograd.Function):
    """Tensors in another precision, and their gradients back in their own: a few launches for all of them."""

    @staticmethod
    def forward(ctx: Any, precision: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.like = tensors
        converted = [torch.empty_like(tensor, dtype=precision) for tensor in tensors]
        torch._foreach_copy_(converted, list(tensors))
        return tuple(converted)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        converted = [torch.empty_like(tensor) for tensor in ctx.like]
        torch._foreach_copy_(converted, list(gradients))
        return None, *converted


class _Stored(torch.autograd.Function):
    """Matrices as an optimiser has them in another precision; their gradients are given to it."""

    @staticmethod
    def forward(ctx: Any, optimizer: LoweredAdam, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.optimizer = optimizer
        return tuple(optimizer.lower)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        ctx.optimizer.put(ctx.optimizer.of_matrices, gradients)
        return None, *(None for _ in gradients)


class _PerImage(torch.autograd.Function):
    """Vectors, expanded to all images of each part of a batch; their gradients are summed over images all at once.

    optimizer: what is given these sums; None: they become the vectors' own gradients.
    """

    @staticmethod
    def forward(ctx: Any, sizes: Sequence[int], optimizer: LoweredAdam | None, *vectors: Tensor) -> tuple[Tensor, ...]:
        ctx.optimizer, ctx.widths = optimizer, [len(vector) for vector in vectors]
        return tuple(vector.expand(images, -1) for images in sizes for vector in vectors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        count = len(ctx.widths)
        parts = [torch.cat(gradients[n : n + count], dim=1) for n in range(0, len(gradients), count)]
        sums = torch.cat(parts).sum(0).split(ctx.widths)
        if ctx.optimizer is None:
            return None, None, *sums
        ctx.optimizer.put(ctx.optimizer.of_vectors, sums)
        return None, None, *(None for _ in sums)


def lowered(network: nn.Module, precision: torch.dtype, fused: bool = True) -> nn.Module:
    """The network computing in `precision`: for float32 the network itself.

    fused: whether it may use kernels that take some seconds to compile at the first use.
    """
    return network if precision == torch.float32 else Lowered(network, precision, fused)


def placed(network: Module, device: torch.device) -> Module:
    """The network on a device, with its weights in the memory order that suits its convolutions."""
    flat = device.type == "cuda" and all(weight.ndim < 5 for weight in network.parameters())
    order = torch.channels_last if flat else torch.preserve_format
    return network.to(device=device, memory_format=order)  # type: ignore[call-overload]


class Frozen:
    """A copy of a network as it is now, for use without gradients or dropout; it answers in float32.

    Set `depth` to have it see all images on one of its grids (`networks/pyramid.py`), whatever their levels.
    """

    depth: int | None = None

    def __init__(self, network: nn.Module, precision: torch.dtype = torch.float32, fused: bool = True):
        device = next(network.parameters()).device
        self.precision, self.module = precision, placed(copy.deepcopy(network), device).eval().requires_grad_(False)
        fused, kept = fused and has_fused_path(network) and kernels.usable(device, precision), float32_layers(network)
        for module in self.module.modules():
            for name, weight in list(module.named_parameters(recurse=False)):
                if fused and weight.ndim == 1:
                    converted = weight[None].float()
                elif isinstance(module, kept):
                    converted = weight.to(torch.promote_types(precision, torch.float32))
                else:
                    converted = weight.to(precision)
                delattr(module, name)
                module.register_buffer(name, converted)

    def __call__(self, u: Tensor, k: Tensor, *condition: Tensor) -> Tensor:
        with torch.inference_mode():
            return self.module(u.to(self.precision), k, *condition, **depth_option(self.depth)).float()


Work = TypeVar("Work", bound=Callable[..., Tensor])


def recorded(work: Work, device: torch.device, generators: Sequence[torch.Generator] = ()) -> Work:
    """The same function, made faster where that is possible: on a GPU it is replayed from a recording."""
    return Recorded(work, device, generators) if device.type == "cuda" else work  # type: ignore[return-value]


class Recorded:
    """A function of tensors on a GPU that is recorded once, as a CUDA graph, and then replayed.

    A replay launches everything at once; one by one, a slow host could not launch operations as fast as the GPU works.
    The first calls run as usual, so that libraries choose their algorithms; the next one is recorded. What the
    function does besides returning tensors, such as updating weights, happens at every call. It must not wait for
    the GPU, and must find the same tensors in the same places each time, except its arguments.
    """

    def __init__(self, work: Callable[..., Tensor], device: torch.device, generators: Sequence[torch.Generator]):
        self.work, self.device, self.generators, self.warmup = work, device, generators, WARMUP
        self._graph: torch.cuda.CUDAGraph | None = None
        self._stream = torch.cuda.Stream(device)

    def __call__(self, *inputs: Tensor | None) -> Tensor:
        """Inputs that are None must be None in every call."""
        with torch.cuda.device(self.device):
            return self._call(inputs)

    def _call(self, inputs: Sequence[Tensor | None]) -> Tensor:
        with _choosing_algorithms():
            if self.warmup > 0:
                self.warmup -= 1
                return self._aside(inputs)
            if self._graph is None:
                self._record(inputs)
        for held, given in zip(self._inputs, inputs):
            if held is not None and given is not None:
                held.copy_(given, non_blocking=True)
        self._graph.replay()  # type: ignore[union-attr]
        return self._outputs.clone()

    def _aside(self, inputs: Sequence[Tensor | None]) -> Tensor:
        """Run on another stream, as recording will."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            outputs = self.work(*inputs)
        torch.cuda.current_stream().wait_stream(self._stream)
        return outputs.clone()

    def _record(self, inputs: Sequence[Tensor | None]) -> None:
        self._inputs = [None if given is None else given.clone() for given in inputs]
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        with collected(), torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            self._outputs = self.work(*self._inputs)
        self._graph = graph


@contextlib.contextmanager
def collected() -> Iterator[None]:
    """Collect garbage now, and none while this lasts: freeing an old recording would break one in the making."""
    gc.collect()
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


@contextlib.contextmanager
def _choosing_algorithms() -> Iterator[None]:
    """Let ways to compute convolutions be timed, and use those that were chosen."""
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
