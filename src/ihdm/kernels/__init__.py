"""GPU kernels for what surrounds the convolutions: normalisation, activation, dropout, biases and residuals.

Between convolutions a U-Net only moves memory, so what counts is how often each feature map is read and written.
Here normalisation, SiLU and dropout are one pass, which reads two feature maps as if they were joined, without joining
them; the backward pass also adds the gradient of the residual branch. `networks/layers.py` holds the same mathematics
in plain PyTorch, and a test compares the two.

Feature maps are (B, C, H, W) in channels_last memory: pixel by pixel, all channels together. Vectors that act on
channels are given once per image, (B, C), although all rows are the same. So their gradients need not be summed over
images here; that is done for all vectors of the network together (`engine.Lowered`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ihdm.errors import UsageError

WHOLE = 16_384  # elements: up to so many, a program holds all pixels of its channels in registers
TILE = 4096  # elements that it holds otherwise
CHUNK = 1024  # pixels of a large map that one program goes through
DIVISIONS = {  # up to so many pixels: columns, warps and registers of a program, forward and backward
    16: ((64, 2, 64), (32, 2, 128)),
    64: ((32, 2, 64), (32, 2, 128)),
    256: ((32, 8, 64), (32, 4, 168)),
    WHOLE: ((32, 16, 128), (16, 8, 255)),
}  # the fastest on an H200 (docs/performance.md)
REGISTERS = 65_536  # of a multiprocessor
MOST_IMAGES = 65_535  # CUDA's limit for the second dimension of a grid

_COMPILING = ContextVar("compiling", default=False)


def usable(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels can run there; on the meta device they only make their outputs, to count memory."""
    return dtype == torch.bfloat16 and (device.type == "meta" or (device.type == "cuda" and _can_compile()))


@cache
def _can_compile() -> bool:
    """Whether Triton is installed, for NVIDIA GPUs, and there is the C compiler that it needs."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang") or shutil.which("cc")
    return find_spec("triton") is not None and torch.version.hip is None and compiler is not None


def norm(
    parts: Sequence[Tensor],
    weight: Tensor,
    bias: Tensor,
    groups: int,
    eps: float,
    silu: bool,
    shift: Tensor | None = None,
    dropout: float = 0.0,
    seed: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """y = dropout(silu(group_norm(parts joined along the channels + shift))), and the parts again.

    shift: (B, C), or (1, C) for all, added to every pixel; seed: one integer that determines the dropout.
    If the returned parts are used further on, their gradient is added to the normalisation's in the same pass.
    """
    dropout = 0.0 if seed is None else dropout
    shift = None if shift is None else shift.expand(len(parts[0]), -1)
    return _Norm.apply(shift, weight, bias, seed, groups, eps, silu, dropout, *parts)


def add(h: Tensor, bias: Tensor, x: Tensor | None = None) -> Tensor:
    """h + bias + x, the bias (B, C) added to every pixel."""
    return _Add.apply(h, bias, x)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        shift: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        seed: Tensor | None,
        groups: int,
        eps: float,
        silu: bool,
        dropout: float,
        *parts: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        parts = tuple(_channels_last(part) for part in parts)
        work = _Work(parts, groups, silu, dropout)
        y = _empty_image(parts[0], work.channels)
        stats, sums = weight.new_empty(2, work.images, groups), work.new_sums(2, groups, weight)
        inputs = (parts[0], parts[-1], shift, 0 if shift is None else shift.stride(0))
        if sums is not None:
            work.launch("norm_sums", *inputs, sums)
        work.launch("norm_forward", *inputs, weight, bias, seed, y, stats, sums, eps, **work.activation)
        ctx.save_for_backward(shift, weight, bias, seed, stats, *parts)
        ctx.options = (groups, silu, dropout)
        return (y, *parts)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *residual: Tensor | None) -> tuple[Tensor | None, ...]:
        shift, weight, bias, seed, stats, *parts = ctx.saved_tensors
        added: list[Any] = [None]
        if any(part is not None for part in residual):
            added = [torch.zeros_like(x) if dx is None else _channels_last(dx) for x, dx in zip(parts, residual)]
        dx = [torch.empty_like(part) for part in parts]
        dweight, dbias = weight.new_empty(weight.shape), bias.new_empty(bias.shape)
        dshift = None if shift is None else shift.new_empty(shift.shape)
        groups, silu, dropout = ctx.options
        work = _Work(parts, groups, silu, dropout, backward=True)
        sums = work.new_sums(3, work.channels, weight)
        vectors = (shift, 0 if shift is None else shift.stride(0), weight, bias, seed)
        inputs = (parts[0], parts[-1], *vectors, stats, _channels_last(dy))
        if sums is not None:
            work.launch("norm_backward_sums", *inputs, sums, **work.activation)
        outputs = (dx[0], dx[-1], dshift, dweight, dbias)
        work.launch("norm_backward", *inputs, added[0], added[-1], *outputs, sums, **work.activation)
        return dshift, dweight, dbias, None, None, None, None, None, *dx


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, bias: Tensor, x: Tensor | None) -> Tensor:
        h, x = _channels_last(h), None if x is None else _channels_last(x)
        total = torch.empty_like(h)
        channels, pixels = h.shape[1], len(h) * h[0, 0].numel()
        columns = min(64, _power_of_two(channels))
        grid = (-(-channels // columns) * -(-pixels * columns // TILE),)
        launch("programs.add", grid, h, bias, x, total, pixels, channels, ROWS=TILE // columns, COLUMNS=columns)
        ctx.residual = x is not None
        return total

    @staticmethod
    def backward(ctx: Any, dtotal: Tensor) -> tuple[Tensor | None, ...]:
        dtotal = _channels_last(dtotal)
        images, channels, pixels = len(dtotal), dtotal.shape[1], dtotal[0, 0].numel()
        chunks = -(-pixels // CHUNK)
        dbias = dtotal.new_empty(images, chunks, channels, dtype=torch.float32)
        columns = min(32, _power_of_two(channels))
        rows = min(CHUNK, TILE // columns, _power_of_two(pixels))
        chunk = min(CHUNK, rows * -(-pixels // rows))
        grid = (-(-channels // columns), images, chunks)
        launch("programs.sum_pixels", grid, dtotal, dbias, pixels, channels, CHUNK=chunk, ROWS=rows, COLUMNS=columns)
        return dtotal, dbias.sum(1) if chunks > 1 else dbias[:, 0], dtotal if ctx.residual else None


class _Work:
    """How normalising is divided: each program takes some groups of one image, and all or a chunk of its pixels."""

    def __init__(self, parts: Sequence[Tensor], groups: int, silu: bool, dropout: float, backward: bool = False):
        self.images = len(parts[0])
        if self.images > MOST_IMAGES:
            raise UsageError(
                f"the GPU kernels take at most {MOST_IMAGES:,} images at a time, not {self.images:,}; set a larger "
                f"trainer.accumulate to divide a batch into smaller parts"
            )
        widths, pixels = [part.shape[1] for part in parts], parts[0].shape[2] * parts[0].shape[3]
        self.channels = sum(widths)
        size = self.channels // groups
        slots, rows = _power_of_two(size), _power_of_two(pixels)
        self.whole = rows * max(slots, 16) <= WHOLE
        columns, warps, registers = 64, 8, 128  # so that two programs or more fit on a multiprocessor
        if self.whole:
            columns, warps, registers = DIVISIONS[min(most for most in DIVISIONS if rows <= most)][backward]
            warps = min(16, warps * max(1, slots // columns))
        at_once = max(slots, columns) // slots
        while groups % at_once:
            at_once //= 2
        rows = rows if self.whole else min(CHUNK, max(1, TILE // (at_once * slots)))
        self.chunks = 1 if self.whole else -(-pixels // CHUNK)
        self.grid = (groups // at_once, self.images, self.chunks)
        self.options = {
            "PIXELS": pixels,
            "C1": widths[0],
            "C2": self.channels - widths[0],
            "SIZE": size,
            "SLOTS": slots,
            "GROUPS": at_once,
            "ROWS": rows,
            "CHUNK": rows if self.whole else CHUNK,
            "FULL": slots == size and pixels % (rows if self.whole else CHUNK) == 0,
            "num_warps": warps,
            "maxnreg": min(registers, REGISTERS // (32 * warps)),
        }
        self.activation = {
            "SILU": silu,
            "DROPOUT": dropout > 0,
            "threshold": min(int(dropout * 2**32), 2**32 - 1),
            "scale": 1 / (1 - dropout),
        }

    def new_sums(self, count: int, width: int, like: Tensor) -> Tensor | None:
        """Space for each chunk's sums; none is needed where one program sees all pixels."""
        return None if self.whole else like.new_empty(count, self.images, self.chunks, width)

    def launch(self, name: str, *arguments: Any, **options: Any) -> None:
        launch(f"programs.{name}", self.grid, *arguments, **(self.options | options))


def launch(name: str, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Start a kernel, "module.name"; on the meta device there is nothing to do, except within `compile_ahead`."""
    if arguments[0].is_meta and not _COMPILING.get():
        return
    module, name = name.split(".")
    kernel = getattr(import_module(f"ihdm.kernels.{module}"), name)  # imports Triton, which takes a second
    if arguments[0].is_meta:
        described = (argument.dtype if isinstance(argument, Tensor) else argument for argument in arguments)
        kernel.warmup(*described, grid=grid, **options)
    else:
        with torch.cuda.device_of(arguments[0]):
            kernel[grid](*arguments, **options)


@contextlib.contextmanager
def compile_ahead() -> Iterator[None]:
    """Compile the kernels that are launched within on the meta device, in parallel, which is faster than one by one."""
    import triton

    mode = getattr(triton, "AsyncCompileMode", None)  # from Triton 3.4 on
    with ThreadPoolExecutor() as threads, mode(threads) if mode else contextlib.nullcontext():
        before = _COMPILING.set(mode is not None)
        try:
            yield
        finally:
            _COMPILING.reset(before)


class Note:
    """A note in Triton's cache that the kernels for something were compiled before; it goes when the cache goes."""

    NAME = "compiled"

    def __init__(self, what: str):
        from triton import __version__
        from triton.runtime.cache import get_cache_manager

        sources = [path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("*.py"))]
        text = "\n".join([what, __version__, *sources])
        self._cache: Any = None
        with contextlib.suppress(OSError):  # a cache that cannot be written has no notes
            self._cache = get_cache_manager(hashlib.sha256(text.encode()).hexdigest())

    def is_there(self) -> bool:
        return self._cache is not None and self._cache.get_file(self.NAME) is not None

    def leave(self) -> None:
        if self._cache is not None:
            with contextlib.suppress(OSError):
                self._cache.put("", self.NAME, binary=False)


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _empty_image(like: Tensor, channels: int) -> Tensor:
    size = (len(like), channels, *like.shape[2:])
    return torch.empty(size, memory_format=torch.channels_last, dtype=like.dtype, device=like.device)


def _power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()
