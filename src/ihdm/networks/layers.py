"""The layers of networks: residual blocks and what they are made of, embeddings of the level and of labels.

If vectors (biases, weights of normalisations) are given once per image, (B, C) instead of (C,), the GPU kernels do the
work: that is how `engine.py` asks for them. Every kernel has its plain twin here.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ihdm import kernels
from ihdm.constant import everywhere
from ihdm.networks.pyramid import cropped

Resample = Literal["pool", "conv"]

IN_CACHE, MOST_KEPT = 2**18, 2**24  # entries of attention matrices on a CPU
BUT_CUDNN = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class Conv(nn.Module):
    """A convolution of 3 pixels along each axis, initialised as in torch; a residual may be added to its result."""

    def __init__(self, width_in: int, width: int, axes: int, stride: int = 1, zero: bool = False):
        super().__init__()
        size = {1: (1, 3), 2: (3, 3), 3: (3, 3, 3)}[axes]
        self.stride, self.padding = tuple(stride if n > 1 else 1 for n in size), tuple(n // 2 for n in size)
        self.weight, self.bias = nn.Parameter(torch.empty(width, width_in, *size)), nn.Parameter(torch.empty(width))
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        nn.init.uniform_(self.bias, -1 / (bound := math.sqrt(width_in * math.prod(size))), 1 / bound)
        _zero(self, zero)

    def forward(self, x: Tensor, residual: Tensor | None = None, its_bias: Tensor | None = None) -> Tensor:
        bias = self.bias if its_bias is None else self.bias + its_bias
        if bias.ndim == 2:
            return kernels.add(self.with_bias(x, None), bias, residual)
        return _sum(self.with_bias(x, bias), residual)

    def with_bias(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution with another bias than its own, or none."""
        return self._convolved(x, self.weight, bias)

    def _convolved(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        convolve: Any = F.conv2d if x.ndim == 4 else F.conv3d
        if weight.requires_grad and x.dtype == torch.bfloat16 and x.device.type == "cpu" and self._mistaken(x):
            bias = None if bias is None else wide(bias)
            return convolve(wide(x), wide(weight), bias, self.stride, self.padding).to(x.dtype)
        return convolve(x, weight, bias, self.stride, self.padding)

    def _mistaken(self, x: Tensor) -> bool:
        """Whether oneDNN's gradient of the weights in bfloat16 may be wrong, or written beyond its end.

        Those of torch 2.13.0 are, on CPUs, for some shapes of volumes and where a stride meets a single pixel.
        """
        return x.ndim == 5 or (max(self.stride) > 1 and x.shape[-1] == 1)


class SmallStem(Conv):
    """A convolution of a state on a smaller grid, in float32: bfloat16 would round the noise there away."""

    def forward(self, u: Tensor, depth: int) -> Tensor:  # type: ignore[override]
        small = cropped(wide(u), depth)
        return _biased(self._convolved(small, self.weight.to(small.dtype)).to(u.dtype), self.bias)


class Mix(nn.Linear):
    """A linear map of each pixel's channels; a residual may be added to its result."""

    def __init__(self, width_in: int, width: int, zero: bool = False):
        super().__init__(width_in, width)
        _zero(self, zero)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if self.bias.ndim == 2:
            return kernels.add(_image(F.linear(_pixels(x), self.weight), x), self.bias, residual)
        if x.requires_grad or x.is_cuda:
            h = _image(super().forward(_pixels(x)), x)
            return h if residual is None else residual + h  # in the memory order of the residual
        return _sum(_mixed(self.weight, x).add_(everywhere(self.bias, x)), residual)


class LevelEmbedding(nn.Module):
    """cos and sin of k at geometrically spaced frequencies, then a small MLP; `known` is added before its last SiLU."""

    def __init__(self, channels: int, width: int):
        super().__init__()
        self.channels = channels
        self.first, self.second = nn.Linear(channels, width), nn.Linear(width, width)

    def forward(self, k: Tensor, known: Tensor | None = None) -> Tensor:
        half, dtype = self.channels // 2, self.first.weight.dtype
        exponent = torch.arange(half, device=k.device, dtype=torch.float32) / half
        angle = k.float()[:, None] * torch.exp(-math.log(10000) * exponent)
        h = F.pad(torch.cat([angle.cos(), angle.sin()], dim=1), (0, self.channels - 2 * half))
        h = F.silu(F.linear(h.to(dtype), self.first.weight) + self.first.bias)
        h = F.linear(h.to(dtype), self.second.weight) + self.second.bias
        return F.silu(h if known is None else h + known).to(dtype)


class LabelEmbedding(nn.Module):
    """A vector for each label and one for none. From 0 instead of a random start, labels would be learned far later."""

    def __init__(self, labels: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(labels + 1, width))

    def forward(self, label: Tensor | None, images: int) -> Tensor:
        """By a product, whose gradient is a product too: it sums in the same order each time, and can be recorded."""
        if label is None:
            return self.weight[-1].expand(images, -1)
        numbers = torch.arange(len(self.weight), device=label.device)
        return (label[:, None] == numbers).to(self.weight.dtype) @ self.weight


class Norm(nn.GroupNorm):
    """GroupNorm of feature maps joined along the channels, then SiLU and dropout if asked for.

    At most 32 groups, as in the paper, and fewer in narrow networks, so that each has at least four channels.
    """

    def __init__(self, width: int, silu: bool = False, dropout: float = 0.0):
        super().__init__(max(g for g in range(1, 33) if width % g == 0 and (g == 1 or width // g >= 4)), width)
        self.silu, self.dropout = silu, dropout

    def forward(  # type: ignore[override]
        self, parts: Sequence[Tensor], shift: Tensor | None = None, seed: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """The result, and the feature maps themselves to go on with; shift (B, C) is added before normalising."""
        if self.weight.ndim == 2:
            options = self.num_groups, self.eps, self.silu, shift, self.dropout, seed
            return kernels.norm(parts, self.weight, self.bias, *options)
        x = parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1)
        h = x if shift is None else x + everywhere(shift, x)
        precise = h if h.device.type == "cpu" else h.float()  # on a CPU group_norm computes in float32 by itself
        y = F.group_norm(precise, self.num_groups, self.weight, self.bias, self.eps).to(x.dtype)
        y = F.silu(y, inplace=not y.requires_grad) if self.silu else y
        return F.dropout(y, self.dropout, seed is not None), x


class Block(nn.Module):
    """A residual block, h = skip(x) + f(x, k), followed by attention if asked for."""

    def __init__(self, width_in: int, width: int, embedding: int, dropout: float, axes: int, attend: bool):
        super().__init__()
        self.enter_norm = Norm(width_in, silu=True)
        self.enter = Conv(width_in, width, axes)
        self.level = nn.Linear(embedding, width)
        self.leave_norm = Norm(width, silu=True, dropout=dropout)
        self.leave = Conv(width, width, axes, zero=True)
        self.skip = Skip(width_in, width) if width_in != width else None
        self.attention = Attention(width) if attend else None

    def forward(self, shift: Tensor, seed: Tensor | None, *parts: Tensor) -> Tensor:
        """x comes in parts, to be joined along the channels; shift (B, C) is the level's, and the bias of `enter`.

        A shift (1, C) is the same for all images, and so a bias like any other.
        """
        y, *parts = self.enter_norm(parts)
        own = shift[0] if shift.shape[0] == 1 and self.enter.bias.ndim == 1 else None
        y, _ = self.leave_norm([self.enter.with_bias(y, own)], shift if own is None else None, seed)
        h = self.leave(y, parts[0]) if self.skip is None else self.leave(y, self.skip(parts), self.skip.bias)
        return h if self.attention is None else self.attention(h)


class Skip(nn.Conv2d):
    """A linear map of each pixel's channels, which may come in parts; its bias is left to whoever adds the result."""

    bias: Tensor

    def __init__(self, width_in: int, width: int):
        super().__init__(width_in, width, 1)

    def forward(self, parts: Sequence[Tensor]) -> Tensor:  # type: ignore[override]
        if len(parts) == 1 and not (parts[0].requires_grad or parts[0].is_cuda):
            return _mixed(self.weight.flatten(1), parts[0])
        if len(parts) == 1 and parts[0].ndim == 4:
            return F.conv2d(parts[0], self.weight)
        weights = self.weight.flatten(1).split([part.shape[1] for part in parts], dim=1)
        h = _pixels(parts[0]).flatten(0, 1) @ weights[0].T
        for part, weight in zip(parts[1:], weights[1:]):
            h.addmm_(_pixels(part).flatten(0, 1), weight.T)  # in place: a product's gradient does not need its result
        return _image(h.unflatten(0, (parts[0].shape[0], -1)), parts[0])


class Attention(nn.Module):
    """Residual self-attention over all pixels, one head."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = Norm(width)
        self.qkv = Mix(width, 3 * width)
        self.project = Mix(width, width, zero=True)

    def forward(self, x: Tensor) -> Tensor:
        y, x = self.norm([x])
        q, k, v = _pixels(self.qkv(y)).chunk(3, dim=-1)
        return self.project(_image(_attended(q, k, v), x), x)


class Downsample(nn.Module):
    """Halves each axis, rounding up."""

    def __init__(self, width: int, resample: Resample, axes: int = 2):
        super().__init__()
        self.size = (1, 2) if axes == 1 else (2,) * axes
        self.conv = Conv(width, width, axes, stride=2) if resample == "conv" else None

    def forward(self, x: Tensor) -> Tensor:
        if self.conv is None:
            pool: Any = F.avg_pool2d if x.ndim == 4 else F.avg_pool3d
            size = [min(pair) for pair in zip(self.size, x.shape[2:])]  # avg_pool3d refuses shorter axes,
            given = wide(x) if x.ndim == 5 and x.device.type == "cpu" else x  # and on a CPU lower precisions
            return pool(given, size, ceil_mode=True, count_include_pad=False).to(x.dtype)
        return self.conv(x)


class Upsample(nn.Module):
    """Doubles each axis by repetition, and cuts it to the size of the finer feature map."""

    def __init__(self, width: int, resample: Resample, axes: int = 2):
        super().__init__()
        self.factors = (1.0, 2.0) if axes == 1 else (2.0,) * axes
        self.conv = Conv(width, width, axes) if resample == "conv" else None

    def forward(self, x: Tensor, size: Sequence[int]) -> Tensor:
        if self.conv is None or self.factors != (2, 2) or size[0] % 2 or size[1] % 2:
            x = F.interpolate(x, scale_factor=self.factors, mode="nearest")
            for dim, n in enumerate(size, start=2):
                x = x.narrow(dim, 0, n)
            return x if self.conv is None else self.conv(x)
        # Repeating pixels and convolving is the same as one transposed convolution, which has 4/9 of the arithmetic.
        kernel = 4 * F.avg_pool2d(self.conv.weight.flip(2, 3), 2, stride=1, padding=1)
        kernel, bias = kernel.transpose(0, 1), self.conv.bias
        if bias.ndim == 2:
            return kernels.add(F.conv_transpose2d(x, kernel, stride=2, padding=1), bias)
        return F.conv_transpose2d(x, kernel, bias, stride=2, padding=1)


def _attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(width)) v, for pixels (B, L, width).

    There is no fast kernel for wide heads on a GPU, nor for few pixels or in bfloat16 on a CPU; there it is better to
    write the attention matrix to memory, if it is not too large, in bfloat16 for a few images at a time. cuDNN's
    kernel, which torch prefers on some GPUs, gives gradients that are not finite where all products of a pixel are far
    below zero (pytorch issue 196678).
    """
    images, length, width = q.shape
    if (width > 256 and images * length**2 <= 2**31) if q.is_cuda else length**2 <= IN_CACHE // 64:
        return _written_out(q, k, v)
    kept = images if q.requires_grad else 1  # matrices that are in memory at the same time
    slow = not q.is_cuda and q.dtype == torch.bfloat16 and not torch.compiler.is_compiling()
    if slow and kept * length**2 <= MOST_KEPT:
        parts = (tensor.split(max(1, IN_CACHE // length**2)) for tensor in (q, k, v))
        return torch.cat([_written_out(*part) for part in zip(*parts)])
    if not q.is_cuda and length**2 > IN_CACHE:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()  # torch writes the whole matrix for other orders
    with sdpa_kernel(BUT_CUDNN) if q.is_cuda and q.requires_grad else contextlib.nullcontext():
        return F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]


def _written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(torch.bmm(q * q.shape[-1] ** -0.5, k.mT), dim=-1) @ v


def _mixed(weight: Tensor, x: Tensor) -> Tensor:
    """A linear map of each pixel's channels, by one product per image: the fastest way on a CPU without gradients."""
    return (weight @ x.flatten(2)).unflatten(2, x.shape[2:])


def _biased(h: Tensor, bias: Tensor) -> Tensor:
    return kernels.add(h, bias) if bias.ndim == 2 else h + everywhere(bias, h)


def _sum(h: Tensor, residual: Tensor | None) -> Tensor:
    """h + residual, computed in place if no gradient needs h."""
    if residual is None:
        return h
    return h + residual if h.requires_grad else h.add_(residual)


def wide(x: Tensor) -> Tensor:
    """x in float32, or in its own type if that is more precise."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _pixels(x: Tensor) -> Tensor:
    """(B, C, *grid) as (B, pixels, C), without a copy if the memory is in that order already."""
    return x.flatten(2).transpose(1, 2)


def _image(pixels: Tensor, like: Tensor) -> Tensor:
    """The reverse of `_pixels`, for feature maps of the same size as `like`."""
    return pixels.transpose(1, 2).unflatten(2, like.shape[2:])


def _zero(layer: nn.Module, zero: bool) -> None:
    """Let a layer start from zero, if asked, so that its residual block starts as the identity."""
    if zero:
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)
