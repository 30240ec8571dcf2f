"""The U-Net that takes one step back (App. B.1).

Residual blocks with GroupNorm and SiLU, the level k added in each as a sinusoidal embedding, attention on the coarse
feature maps. Any number of channels and any height and width: odd sizes are rounded up going down, cut going up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn

Resample = Literal["pool", "conv"]


class UNet(nn.Module):
    """f(u_k, k), from (B, channels_in, H, W) and levels (B,) to (B, channels_out, H, W).

    channels: width of the finest feature map; multipliers: width of each resolution, in units of it.
    blocks: residual blocks per resolution going down (one more going up).
    attention: resolutions with attention, counted from the finest: l stands for maps of size / 2^l.
    resample: "pool" averages down and repeats up, as the paper; "conv" adds convolutions, as the authors' code.
    Set `checkpoint` to keep only what enters each block for the backward pass, and compute the rest again.
    """

    checkpoint = False

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
    ):
        super().__init__()
        embedding = 4 * channels
        widths = [channels * multiplier for multiplier in multipliers]
        coarsest = len(widths) - 1

        def block(width_in: int, width: int, level: int) -> Block:
            return Block(width_in, width, embedding, dropout, attend=level in attention)

        self.embed_level = LevelEmbedding(channels, embedding)
        self.stem = nn.Conv2d(channels_in, widths[0], 3, padding=1)
        self.down = nn.ModuleList()
        width, skips = widths[0], [widths[0]]
        for level in range(len(widths)):
            for _ in range(blocks):
                self.down.append(block(width, widths[level], level))
                width = widths[level]
                skips.append(width)
            if level < coarsest:
                self.down.append(Downsample(width, resample))
                skips.append(width)
        self.middle = nn.ModuleList(
            [Block(width, width, embedding, dropout, attend=True), Block(width, width, embedding, dropout)]
        )
        self.up = nn.ModuleList()
        for level in reversed(range(len(widths))):
            for _ in range(blocks + 1):
                self.up.append(block(width + skips.pop(), widths[level], level))
                width = widths[level]
            if level > 0:
                self.up.append(Upsample(width, resample))
        self.head = nn.Sequential(group_norm(width), nn.SiLU(), _zeroed(nn.Conv2d(width, channels_out, 3, padding=1)))

    def forward(self, u: Tensor, k: Tensor) -> Tensor:
        embedding = self.embed_level(k)
        h = self.stem(u)
        skips = [h]
        for layer in self.down:
            h = self._through(layer, h, embedding)
            skips.append(h)
        for layer in self.middle:
            h = self._through(layer, h, embedding)
        for layer in self.up:
            if isinstance(layer, Upsample):
                h = layer(h, size=skips[-1].shape[-2:])
            else:
                h = self._through(layer, torch.cat([h, skips.pop()], dim=1), embedding)
        return self.head(h)

    def _through(self, layer: nn.Module, h: Tensor, embedding: Tensor) -> Tensor:
        if self.checkpoint and torch.is_grad_enabled():
            return torch.utils.checkpoint.checkpoint(layer, h, embedding, use_reentrant=False)
        return layer(h, embedding)


class LevelEmbedding(nn.Module):
    """cos and sin of k at geometrically spaced frequencies, then a small MLP."""

    def __init__(self, channels: int, width: int):
        super().__init__()
        self.channels = channels
        self.mlp = nn.Sequential(nn.Linear(channels, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())

    def forward(self, k: Tensor) -> Tensor:
        half = self.channels // 2
        exponent = torch.arange(half, device=k.device, dtype=torch.float32) / half
        angle = k.float()[:, None] * torch.exp(-math.log(10000) * exponent)
        waves = torch.cat([angle.cos(), angle.sin()], dim=1)
        return self.mlp(F.pad(waves, (0, self.channels - 2 * half)))


class Block(nn.Module):
    """A residual block, with attention after it where asked: h = skip(x) + f(x, k)."""

    def __init__(self, width_in: int, width: int, embedding: int, dropout: float, attend: bool = False):
        super().__init__()
        self.enter = nn.Sequential(group_norm(width_in), nn.SiLU(), nn.Conv2d(width_in, width, 3, padding=1))
        self.level = nn.Linear(embedding, width)
        self.leave = nn.Sequential(
            group_norm(width), nn.SiLU(), nn.Dropout(dropout), _zeroed(nn.Conv2d(width, width, 3, padding=1))
        )
        self.skip = nn.Identity() if width_in == width else nn.Conv2d(width_in, width, 1)
        self.attention = Attention(width) if attend else nn.Identity()

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        h = self.enter(x) + self.level(embedding)[:, :, None, None]
        return self.attention(self.skip(x) + self.leave(h))


class Attention(nn.Module):
    """Residual self-attention over all pixels, one head."""

    def __init__(self, width: int):
        super().__init__()
        self.norm = group_norm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = _zeroed(nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        pixels = self.norm(x).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(pixels)[:, None].chunk(3, dim=-1)
        attended = F.scaled_dot_product_attention(q, k, v)[:, 0]
        return x + self.project(attended).transpose(1, 2).view_as(x)


class Downsample(nn.Module):
    """Half the height and width, rounded up."""

    def __init__(self, width: int, resample: Resample):
        super().__init__()
        self.op = (
            nn.Conv2d(width, width, 3, stride=2, padding=1)
            if resample == "conv"
            else nn.AvgPool2d(2, ceil_mode=True, count_include_pad=False)
        )

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        return self.op(x)


class Upsample(nn.Module):
    """Twice the height and width by repetition, cut to the size of the finer feature map."""

    def __init__(self, width: int, resample: Resample):
        super().__init__()
        self.op = nn.Conv2d(width, width, 3, padding=1) if resample == "conv" else nn.Identity()

    def forward(self, x: Tensor, size: Sequence[int]) -> Tensor:
        x = F.interpolate(x, scale_factor=2, mode="nearest")
        return self.op(x[..., : size[0], : size[1]])


def group_norm(width: int) -> nn.GroupNorm:
    """At most 32 groups, as the paper; of four channels or more where the network is narrow."""
    groups = max(g for g in range(1, 33) if width % g == 0 and (g == 1 or width // g >= 4))
    return nn.GroupNorm(groups, width)


def _zeroed(layer: nn.Conv2d | nn.Linear) -> nn.Module:
    """Start at zero, so that a residual branch starts as the identity."""
    nn.init.zeros_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
