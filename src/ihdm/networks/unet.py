"""The U-Net that takes one step back (App. B.1).

Residual blocks with GroupNorm and SiLU, the level k added in each as a sinusoidal embedding, attention on the coarse
feature maps. Labels, if there are any, are added to the embedding. Any number of channels and any size will do: odd
sizes are rounded up going down and cut going up. Signals pass as images of height 1; volumes have three axes.

Coarse levels may be seen on smaller grids (`pyramid.py`): then a state enters at the resolution of its size, through a
stem of its own, and leaves there through its own head. Finer resolutions are skipped; coarser ones serve all depths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn

from ihdm.domains import Domain
from ihdm.domains.domain import by
from ihdm.errors import UsageError
from ihdm.heat import GridLaplacian, smaller
from ihdm.networks.layers import (
    Block,
    Conv,
    Downsample,
    LabelEmbedding,
    LevelEmbedding,
    Norm,
    Resample,
    SmallStem,
    Upsample,
    wide,
)
from ihdm.networks.pyramid import Part, by_counts, by_levels, counts, embedded, joined
from ihdm.settings import check, setting


@dataclass(frozen=True)
class UNetSettings:
    """The U-Net (App. B.1)."""

    channels: int = setting(128, "width of the finest feature map", least=4, most=65_536)
    multipliers: tuple[int, ...] = setting(
        (1, 2, 2, 2), "width at each resolution, in units of channels", least=1, most=64
    )
    blocks: int = setting(4, "residual blocks per resolution", least=1, most=64)
    attention: tuple[int, ...] = setting(
        (2, 3), "resolutions with attention besides the middle, or none; l: maps of size / 2^l", least=0
    )
    dropout: float = setting(0.1, "dropout rate in residual blocks", least=0, most=0.99)
    resample: Resample = setting("pool", "average pooling, as in the paper, or strided convolutions")
    groups: int | None = setting(
        None, "groups per normalisation; auto: 32, or fewer to keep at least four channels in each", least=1
    )
    pyramid: tuple[int, ...] = setting(
        (), "levels from which the network sees half the size, a quarter, ... (see ihdm info MODEL), or none", least=1
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
            raise UsageError(f"the levels in network.pyramid must grow, unlike {_listed(self.pyramid)}")
        if len(self.pyramid) >= len(self.multipliers):
            raise UsageError(
                f"network.pyramid names {len(self.pyramid)} smaller sizes, but network.multipliers gives only "
                f"{len(self.multipliers) - 1} below the finest"
            )


class UNet(nn.Module):
    """f(u_k, k), from (B, channels_in, H, W) and levels (B,) to (B, channels_out, H, W).

    channels: width of the finest feature map; multipliers: width of each resolution, in units of `channels`.
    blocks: residual blocks per resolution going down (one more going up).
    attention: resolutions with attention, counted from the finest: l stands for maps of size / 2^l.
    resample: "pool" averages down and repeats up, as in the paper; "conv" adds convolutions, as in the authors' code.
    groups: how many each normalisation has; None: as `Norm` chooses.
    pyramid: the first level of each smaller grid.
    labels: how many it knows. A condition (B,) names them: 0, 1, ..., or `labels` for none, as without a condition.
    axes: how many the data have, 1 to 3.
    Set `checkpoint` to keep only the input of each block for the backward pass, and recompute the rest.
    """

    Settings = UNetSettings
    fused = True
    float32_layers = (nn.GroupNorm,)
    checkpoint = False
    spread: int | None = None  # in training: over how many levels each batch is evenly spread, if it is

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
        given = channels, tuple(multipliers), blocks, tuple(attention), dropout, resample, groups, tuple(pyramid)
        check(UNetSettings(*given), "network.")
        self.dropout, self.pyramid, self.axes = dropout, tuple(pyramid), axes
        self.fused = axes < 3  # the GPU kernels cannot do volumes
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
            raise UsageError(f"the U-Net is for grids, not for {domain.kind}; use another network (network.kind)")
        channels = domain.shape[0]
        return cls(channels, channels, **vars(settings), labels=labels, axes=len(domain.grid))

    @staticmethod
    def words(settings: UNetSettings, domain: Domain) -> str:
        """The network in a line, for `ihdm info`."""
        sizes = [by(smaller(domain.grid, level)) for level in settings.attention]
        seen = [
            f", {by(smaller(domain.grid, depth))} from level {level} on"
            for depth, level in enumerate(settings.pyramid, start=1)
        ]
        widths = ", ".join(str(settings.channels * multiplier) for multiplier in settings.multipliers)
        where, more = ", ".join(sizes) or "the middle only", "s" * (settings.blocks > 1)
        return f"U-Net, {widths} channels, {settings.blocks} block{more} each, attention at {where}{''.join(seen)}"

    def expect_levels(self, K: int, images: int) -> None:
        """Prepare for training with batches of so many images or more, whose levels are evenly spread over 1..K."""
        self.spread = K
        for depth, count in enumerate(counts(images, K, self.pyramid)):
            if count < 1:
                raise UsageError(
                    f"network.pyramid={_listed(self.pyramid)} leaves no image for size / {2**depth} in a batch of "
                    f"{images} with levels spread over 1..{K}; take larger batches, or leave out that size"
                )

    def depth_parts(self, k: Tensor) -> list[Part]:
        """How a batch with levels k is divided by depth; in training without reading k, so that it can be recorded."""
        if self.training and self.spread and self.pyramid:
            return by_counts(k, self.spread, self.pyramid)
        return by_levels(k, self.pyramid)

    def forward(self, u: Tensor, k: Tensor, condition: Tensor | None = None, depth: int | None = None) -> Tensor:
        """depth: for all images, whatever their levels; None: as `depth_parts` says."""
        if condition is not None and self.embed_label is None:
            raise UsageError("this U-Net was built without labels, so it takes no condition")
        parts = self.depth_parts(k) if depth is None else [Part(None, depth)]
        if self.axes == 1:
            return joined(self._answer, parts, u[:, :, None], k, condition)[:, :, 0]
        return joined(self._answer, parts, u, k, condition)

    def _answer(self, depth: int | None, u: Tensor, k: Tensor, label: Tensor | None) -> Tensor:
        """The answer at one depth: the `depth` finest resolutions are skipped, going down and going up."""
        at = depth or 0
        down = list(self.down)[at * (self.blocks + 1) :]  # a resolution has its blocks and a Downsample
        up = list(self.up)[: (self.resolutions - at) * (self.blocks + 2) - 1]  # one block more; no Upsample at last
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
        return embedded(wide(answer), u.shape[2:])

    def _settings(
        self, k: Tensor, label: Tensor | None, layers: Sequence[nn.Module]
    ) -> list[tuple[Tensor, Tensor | None]]:
        """For each block what the level adds to its channels, in one product for all, and a seed for its dropout.

        There is one row for all images if they share their level, as samples do, and no labels tell them apart.
        """
        k = k[:1] if k.stride(0) == 0 else k  # one level, expanded
        known = None if self.embed_label is None else self.embed_label(label, k.shape[0])
        blocks = [layer for layer in layers if isinstance(layer, Block)]
        weight = torch.cat([block.level.weight for block in blocks])
        level_bias = torch.cat([block.level.bias for block in blocks], -1)
        enter_bias = torch.cat([block.enter.bias for block in blocks], -1)
        shifts = F.linear(self.embed_level(k, known), weight) + level_bias + enter_bias
        by_block = shifts.split([block.level.out_features for block in blocks], dim=1)
        if not (self.training and self.dropout):
            return [(shift, None) for shift in by_block]
        seeds = torch.randint(2**31, (len(blocks), 2), device=k.device)  # in pairs, to align each to 16 bytes
        return list(zip(by_block, seeds[:, 0].unbind()))

    def _through(self, block: nn.Module, settings: tuple[Tensor, Tensor | None], *parts: Tensor) -> Tensor:
        if not (self.checkpoint and torch.is_grad_enabled()):
            return block(*settings, *parts)
        weights: dict[str, Tensor] = dict(block.named_parameters())  # as they are now; later there may be others

        def run(*inputs: Tensor) -> Tensor:
            return torch.func.functional_call(block, weights, inputs)

        random = settings[1] is not None and weights["leave.bias"].ndim == 1  # kernels are given a seed
        return torch.utils.checkpoint.checkpoint(run, *settings, *parts, use_reentrant=False, preserve_rng_state=random)


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
