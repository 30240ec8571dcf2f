"""The U-Net that takes one step back (App. B.1).

Residual blocks with GroupNorm and SiLU, the level k added in each as a sinusoidal embedding, attention on the coarse
feature maps. If images have labels, theirs are added to the embedding. Any number of channels and any size: odd ones
are rounded up going down, cut going up. Signals of one axis go through as images of height 1; volumes have three axes.

Coarse levels may be seen on smaller grids (`pyramid.py`): then a state enters at the resolution of its size, by a stem
of its own, and leaves there by a head of its own. Finer resolutions are left out; coarser ones serve all depths.

Where vectors (biases, weights of normalisations) are given for each image, (B, C) instead of (C,), the GPU's kernels do
the work: that is how `engine.py` asks for them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn

from ihdm import kernels
from ihdm.domains import Domain
from ihdm.errors import UsageError
from ihdm.heat import GridLaplacian, smaller
from ihdm.networks.pyramid import Part, by_counts, by_levels, counts, cropped, embedded, joined
from ihdm.settings import setting

Resample = Literal["pool", "conv"]


@dataclass(frozen=True)
class UNetSettings:
    """The U-Net (App. B.1)."""

    channels: int = setting(128, "width of the finest feature map", least=4, most=65_536)
    multipliers: tuple[int, ...] = setting(
        (1, 2, 2, 2), "width of each resolution, in units of channels", least=1, most=64
    )
    blocks: int = setting(4, "residual blocks per resolution", least=1, most=64)
    attention: tuple[int, ...] = setting(
        (2, 3), "resolutions with attention, or none; l stands for maps of size / 2^l", least=0
    )
    dropout: float = setting(0.1, "dropout rate in residual blocks", least=0, most=0.99)
    resample: Resample = setting("pool", "average pooling, as in the paper, or strided convolutions")
    groups: int | None = setting(
        None, "groups of each normalisation; auto: 32, fewer where they would have less than four channels", least=1
    )
    pyramid: tuple[int, ...] = setting(
        (), "levels from which half the size, a quarter, ... suffices the network (ihdm info MODEL), or none", least=1
    )

    def __post_init__(self) -> None:
        if not self.multipliers:
            raise UsageError("network.multipliers must give at least one resolution, such as 1,2,2")
        if self.attention and max(self.attention) >= len(self.multipliers):
            raise UsageError(
                f"network.attention names resolution {max(self.attention)}, but network.multipliers "
                f"gives only resolutions 0..{len(self.multipliers) - 1}"
            )
        if self.groups is not None and self.channels % self.groups:
            raise UsageError(f"network.channels={self.channels} cannot be divided into network.groups={self.groups}")
        if list(self.pyramid) != sorted(set(self.pyramid)):
            raise UsageError(f"network.pyramid must grow from number to number, unlike {_listed(self.pyramid)}")
        if len(self.pyramid) >= len(self.multipliers):
            raise UsageError(
                f"network.pyramid names {len(self.pyramid)} smaller sizes, but network.multipliers gives only "
                f"{len(self.multipliers) - 1} below the finest"
            )


class UNet(nn.Module):
    """f(u_k, k), from (B, channels_in, H, W) and levels (B,) to (B, channels_out, H, W).

    channels: width of the finest feature map; multipliers: width of each resolution, in units of it.
    blocks: residual blocks per resolution going down (one more going up).
    attention: resolutions with attention, counted from the finest: l stands for maps of size / 2^l.
    resample: "pool" averages down and repeats up, as the paper; "conv" adds convolutions, as the authors' code.
    groups: of each normalisation; None: as `Norm` chooses.
    pyramid: the first level of each smaller grid.
    labels: how many it can be told of, as a condition (B,): 0, 1, ..., and `labels` for none, as without a condition.
    axes: of the data, 1 to 3.
    Set `checkpoint` to keep only what enters each block for the backward pass, and compute the rest again.
    """

    Settings = UNetSettings
    fused = True
    float32_layers = (nn.GroupNorm,)
    checkpoint = False
    spread: int | None = None  # in training: over how many levels a batch is spread evenly, if it is

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        channels: int = 128,
        multipliers: Sequence[int] = (1, 2, 2, 2),
        blocks: int = 4,
        attention: Sequence[int] = (2, 3),
        dropout: float = 0.1,
        resample: Resample = "pool",
        groups: int | None = None,
        pyramid: Sequence[int] = (),
        labels: int = 0,
        axes: int = 2,
    ):
        super().__init__()
        self.dropout, self.pyramid, self.axes = dropout, tuple(pyramid), axes
        self.fused = axes < 3  # the GPU's kernels know images
        embedding = 4 * channels
        widths = [channels * multiplier for multiplier in multipliers]
        coarsest = len(widths) - 1
        self.blocks, self.resolutions = blocks, len(widths)

        def block(width_in: int, width: int, level: int) -> Block:
            return Block(width_in, width, embedding, dropout, axes, attend=level in attention)

        self.embed_level = LevelEmbedding(channels, embedding)
        self.stem = Conv(channels_in, widths[0], axes)
        self.down = nn.ModuleList()
        width, skips = widths[0], [widths[0]]
        for level in range(len(widths)):
            for _ in range(blocks):
                self.down.append(block(width, widths[level], level))
                width = widths[level]
                skips.append(width)
            if level < coarsest:
                self.down.append(Downsample(width, resample, axes))
                skips.append(width)
        self.middle = nn.ModuleList(
            [Block(width, width, embedding, dropout, axes, attend=attend) for attend in (True, False)]
        )
        self.up = nn.ModuleList()
        for level in reversed(range(len(widths))):
            for _ in range(blocks + 1):
                self.up.append(block(width + skips.pop(), widths[level], level))
                width = widths[level]
            if level > 0:
                self.up.append(Upsample(width, resample, axes))
        self.head_norm = Norm(width, silu=True)
        self.head = Conv(width, channels_out, axes, zero=True)
        depths = range(1, 1 + len(self.pyramid))
        self.stems = nn.ModuleList(SmallStem(channels_in, widths[depth - 1], axes) for depth in depths)
        self.head_norms = nn.ModuleList(Norm(widths[depth], silu=True) for depth in depths)
        self.heads = nn.ModuleList(Conv(widths[depth], channels_out, axes, zero=True) for depth in depths)
        self.embed_label = LabelEmbedding(labels, embedding) if labels else None
        for layer in self.modules():
            if groups and isinstance(layer, Norm):
                layer.num_groups = groups

    @classmethod
    def from_settings(cls, settings: UNetSettings, domain: Domain, labels: int = 0) -> UNet:
        """The untrained network for images, or for other data on a grid."""
        if not isinstance(domain.laplacian, GridLaplacian):
            raise UsageError(f"the U-Net is for grids, not for {domain.kind}; take another network (network.kind)")
        channels = domain.shape[0]
        return cls(channels, channels, **vars(settings), labels=labels, axes=len(domain.grid))

    @staticmethod
    def words(settings: UNetSettings, domain: Domain) -> str:
        """The network in a line, for `ihdm info`."""
        sizes = [_listed(smaller(domain.grid, level), "x") for level in settings.attention]
        seen = [
            f", {_listed(smaller(domain.grid, depth), 'x')} from level {level} on"
            for depth, level in enumerate(settings.pyramid, start=1)
        ]
        widths = ", ".join(str(settings.channels * multiplier) for multiplier in settings.multipliers)
        where, more = ", ".join(sizes) or "the middle only", "s" * (settings.blocks > 1)
        return f"U-Net, {widths} channels, {settings.blocks} block{more} each, attention at {where}{''.join(seen)}"

    def expect_levels(self, K: int, images: int) -> None:
        """Be trained with batches of so many images or more, whose levels are evenly spread over 1..K."""
        self.spread = K
        for depth, count in enumerate(counts(images, K, self.pyramid)):
            if count < 1:
                raise UsageError(
                    f"network.pyramid={_listed(self.pyramid)} leaves size / {2**depth} no image of {images} whose "
                    f"levels are spread over 1..{K}; take larger batches, or leave out that size"
                )

    def depth_parts(self, k: Tensor) -> list[Part]:
        """How a batch of levels k is divided; in training without looking at them, so that it can be recorded."""
        if self.training and self.spread and self.pyramid:
            return by_counts(k, self.spread, self.pyramid)
        return by_levels(k, self.pyramid)

    def forward(self, u: Tensor, k: Tensor, condition: Tensor | None = None, depth: int | None = None) -> Tensor:
        """depth: that of all images, whatever their levels; None: as `depth_parts` says."""
        if condition is not None and self.embed_label is None:
            raise UsageError("this U-Net knows nothing but the state and its level: it takes no condition")
        parts = self.depth_parts(k) if depth is None else [Part(None, depth)]
        if self.axes == 1:
            return joined(self._answer, parts, u[:, :, None], k, condition)[:, :, 0]
        return joined(self._answer, parts, u, k, condition)

    def _answer(self, depth: int | None, u: Tensor, k: Tensor, label: Tensor | None) -> Tensor:
        """At one depth, which enters after so many resolutions, and leaves before them."""
        at = depth or 0
        down = list(self.down)[at * (self.blocks + 1) :]  # blocks and a step down
        up = list(self.up)[: (self.resolutions - at) * (self.blocks + 2) - 1]  # one block more, and a step up but here
        settings = iter(self._settings(k, label, [*down, *self.middle, *up]))
        h = self.stems[at - 1](u, at) if at else self.stem(u)
        skips = [h]
        for layer in down:
            h = self._through(layer, next(settings), h) if isinstance(layer, Block) else layer(h)
            skips.append(h)
        for block in self.middle:
            h = self._through(block, next(settings), h)
        for layer in up:
            if isinstance(layer, Block):
                h = self._through(layer, next(settings), h, skips.pop())
            else:
                h = layer(h, size=skips[-1].shape[2:])
        if not at:
            return self.head(self.head_norm([h])[0])
        answer = self.heads[at - 1](self.head_norms[at - 1]([h])[0])
        return embedded(_wide(answer), u.shape[2:])

    def _settings(
        self, k: Tensor, label: Tensor | None, layers: Sequence[nn.Module]
    ) -> list[tuple[Tensor, Tensor | None]]:
        """For each block what its level adds to each channel, in one product for all, and a seed for its dropout.

        One row for all images if they share their level, as samples do, and no labels tell them apart.
        """
        k = k[:1] if k.stride(0) == 0 else k  # a level that was expanded
        known = None if self.embed_label is None else self.embed_label(label, k.shape[0])
        blocks = [layer for layer in layers if isinstance(layer, Block)]
        weight = torch.cat([block.level.weight for block in blocks])
        level_bias = torch.cat([block.level.bias for block in blocks], -1)
        enter_bias = torch.cat([block.enter.bias for block in blocks], -1)
        shifts = F.linear(self.embed_level(k, known), weight) + level_bias + enter_bias
        by_block = shifts.split([block.level.out_features for block in blocks], dim=1)
        if not (self.training and self.dropout):
            return [(shift, None) for shift in by_block]
        seeds = torch.randint(2**31, (len(blocks), 2), device=k.device)  # in pairs, so that each starts at 16 bytes
        return list(zip(by_block, seeds[:, 0].unbind()))

    def _through(self, block: nn.Module, settings: tuple[Tensor, Tensor | None], *parts: Tensor) -> Tensor:
        if not (self.checkpoint and torch.is_grad_enabled()):
            return block(*settings, *parts)
        weights: dict[str, Tensor] = dict(block.named_parameters())  # as they are now; they may be others later

        def run(*inputs: Tensor) -> Tensor:
            return torch.func.functional_call(block, weights, inputs)

        random = settings[1] is not None and weights["leave.bias"].ndim == 1  # kernels get their randomness as a seed
        return torch.utils.checkpoint.checkpoint(run, *settings, *parts, use_reentrant=False, preserve_rng_state=random)


class Conv(nn.Module):
    """A convolution of 3 pixels along each axis, to whose result a residual may be added; begun as torch does."""

    def __init__(self, width_in: int, width: int, axes: int = 2, stride: int = 1, zero: bool = False):
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
        """With another than its own, or none."""
        return self._convolved(x, self.weight, bias)

    def _convolved(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return (F.conv2d if x.ndim == 4 else F.conv3d)(x, weight, bias, self.stride, self.padding)


class SmallStem(Conv):
    """A convolution of a state on a smaller grid, in float32: there noise is less than what bfloat16 rounds away."""

    def forward(self, u: Tensor, depth: int) -> Tensor:  # type: ignore[override]
        small = cropped(_wide(u), depth)
        return _biased(self._convolved(small, self.weight.to(small.dtype)).to(u.dtype), self.bias)


class Mix(nn.Linear):
    """A linear map of each pixel's channels, to whose result a residual may be added."""

    def __init__(self, width_in: int, width: int, zero: bool = False):
        super().__init__(width_in, width)
        _zero(self, zero)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        if self.bias.ndim == 2:
            return kernels.add(_image(F.linear(_pixels(x), self.weight), x), self.bias, residual)
        if x.requires_grad or x.is_cuda:
            h = _image(super().forward(_pixels(x)), x)
            return h if residual is None else residual + h  # in the memory order of the residual
        return _sum(_mixed(self.weight, x).add_(_everywhere(self.bias, x)), residual)


class LevelEmbedding(nn.Module):
    """cos and sin of k at geometrically spaced frequencies, then a small MLP; `known` is added before its end."""

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
    """A vector for each label and one for none. From 0 instead of by chance, labels would be learned far later."""

    def __init__(self, labels: int, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(labels + 1, width))

    def forward(self, label: Tensor | None, images: int) -> Tensor:
        """As a product, whose gradient is one too: it adds up in the same order each time, and can be recorded."""
        if label is None:
            return self.weight[-1].expand(images, -1)
        numbers = torch.arange(len(self.weight), device=label.device)
        return (label[:, None] == numbers).to(self.weight.dtype) @ self.weight


class Norm(nn.GroupNorm):
    """GroupNorm of feature maps side by side, then SiLU and dropout where asked.

    At most 32 groups, as the paper; of four channels or more where the network is narrow.
    """

    def __init__(self, width: int, silu: bool = False, dropout: float = 0.0):
        super().__init__(max(g for g in range(1, 33) if width % g == 0 and (g == 1 or width // g >= 4)), width)
        self.silu, self.dropout = silu, dropout

    def forward(  # type: ignore[override]
        self, parts: Sequence[Tensor], shift: Tensor | None = None, seed: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """The result, and the feature maps again, to go on with; shift (B, C) is added to them first."""
        if self.weight.ndim == 2:
            options = self.num_groups, self.eps, self.silu, shift, self.dropout, seed
            return kernels.norm(parts, self.weight, self.bias, *options)
        x = parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=1)
        h = x if shift is None else x + _everywhere(shift, x)
        wide = h if h.device.type == "cpu" else h.float()  # a CPU computes in float32 by itself
        y = F.group_norm(wide, self.num_groups, self.weight, self.bias, self.eps).to(x.dtype)
        y = F.silu(y, inplace=not y.requires_grad) if self.silu else y
        return F.dropout(y, self.dropout, seed is not None), x


class Block(nn.Module):
    """A residual block, with attention after it where asked: h = skip(x) + f(x, k)."""

    def __init__(self, width_in: int, width: int, embedding: int, dropout: float, axes: int = 2, attend: bool = False):
        super().__init__()
        self.enter_norm = Norm(width_in, silu=True)
        self.enter = Conv(width_in, width, axes)
        self.level = nn.Linear(embedding, width)
        self.leave_norm = Norm(width, silu=True, dropout=dropout)
        self.leave = Conv(width, width, axes, zero=True)
        self.skip = Skip(width_in, width) if width_in != width else None
        self.attention = Attention(width) if attend else None

    def forward(self, shift: Tensor, seed: Tensor | None, *parts: Tensor) -> Tensor:
        """x is given in parts, to be joined along the channels; shift (B, C) is that of the level, and enter's bias.

        A shift (1, C) is that of all images, and so a bias like any other.
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
            h = torch.addmm(h, _pixels(part).flatten(0, 1), weight.T)
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
    """Half of each axis, rounded up."""

    def __init__(self, width: int, resample: Resample, axes: int = 2):
        super().__init__()
        self.size = (1, 2) if axes == 1 else (2,) * axes
        self.conv = Conv(width, width, axes, stride=2) if resample == "conv" else None

    def forward(self, x: Tensor) -> Tensor:
        if self.conv is None:
            pool: Any = F.avg_pool2d if x.ndim == 4 else F.avg_pool3d
            return pool(x, self.size, ceil_mode=True, count_include_pad=False)
        return self.conv(x)


class Upsample(nn.Module):
    """Twice each axis by repetition, cut to the size of the finer feature map."""

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
        # Repeating pixels and convolving is one transposed convolution, with 4/9 of the arithmetic.
        kernel = 4 * F.avg_pool2d(self.conv.weight.flip(2, 3), 2, stride=1, padding=1)
        kernel, bias = kernel.transpose(0, 1), self.conv.bias
        if bias.ndim == 2:
            return kernels.add(F.conv_transpose2d(x, kernel, stride=2, padding=1), bias)
        return F.conv_transpose2d(x, kernel, bias, stride=2, padding=1)


def _attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(width)) v, for pixels (B, L, width).

    There is no fast kernel for heads that are wide (on a GPU) or for few pixels (on a CPU): then it is better to
    write the attention matrix to memory, if it is not too large.
    """
    images, length, width = q.shape
    if (width > 256 and images * length**2 <= 2**31) if q.is_cuda else length <= 64:
        return torch.softmax(torch.bmm(q * width**-0.5, k.mT), dim=-1) @ v
    return F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]


def _mixed(weight: Tensor, x: Tensor) -> Tensor:
    """A linear map of each pixel's channels, one product for each image: on a CPU, without gradients, the fastest."""
    return (weight @ x.flatten(2)).unflatten(2, x.shape[2:])


def _everywhere(vector: Tensor, x: Tensor) -> Tensor:
    """Channels (C,) or (B, C), with ones added so that they go with feature maps."""
    return vector.view(*vector.shape, *[1] * (x.ndim - 2))


def _biased(h: Tensor, bias: Tensor) -> Tensor:
    return kernels.add(h, bias) if bias.ndim == 2 else h + _everywhere(bias, h)


def _sum(h: Tensor, residual: Tensor | None) -> Tensor:
    """h + residual, in the place of h where no gradient needs it."""
    if residual is None:
        return h
    return h + residual if h.requires_grad else h.add_(residual)


def _wide(x: Tensor) -> Tensor:
    """In float32, unless it has more digits already."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _pixels(x: Tensor) -> Tensor:
    """(B, C, *grid) as (B, pixels, C), without a copy if the memory is in that order already."""
    return x.flatten(2).transpose(1, 2)


def _image(pixels: Tensor, like: Tensor) -> Tensor:
    """The reverse of `_pixels`, for feature maps of the same size as `like`."""
    return pixels.transpose(1, 2).unflatten(2, like.shape[2:])


def _zero(layer: nn.Module, zero: bool) -> None:
    """Let a residual branch start as the identity, if asked."""
    if zero:
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)


def _listed(numbers: Sequence[int], between: str = ",") -> str:
    return between.join(map(str, numbers))
