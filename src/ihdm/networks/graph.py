"""A network on the nodes of a graph or a mesh.

In residual blocks features travel in two ways: far, by the heat equation for a time that each of them learns, as in
DiffusionNet (Sharp, Attaiki, Crane, Ovsjanikov 2022), and to neighbours, along the edges. Otherwise each node is
computed by itself; the lowest eigenvectors tell it where it is. Levels and labels are embedded as in the U-Net.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ihdm.constant import Constant
from ihdm.domains import Domain
from ihdm.errors import UsageError
from ihdm.graph import GraphLaplacian
from ihdm.networks.layers import LabelEmbedding, LevelEmbedding, Norm, wide
from ihdm.settings import setting

MATRIX_MOST = 2048  # up to so many nodes, neighbours are summed by one product with a matrix, which is faster there


@dataclass(frozen=True)
class GraphSettings:
    """The network on graphs."""

    channels: int = setting(64, "features per node", least=4, most=65_536)
    blocks: int = setting(6, "residual blocks", least=1, most=64)
    modes: int = setting(128, "eigenvectors along which heat spreads in a block; all, if fewer", least=1, most=65_536)
    places: int = setting(
        48, "eigenvectors that tell nodes where they are; 0: only surroundings tell nodes apart", least=0, most=1024
    )
    dropout: float = setting(0.0, "dropout rate in residual blocks", least=0, most=0.99)


class GraphNet(nn.Module):
    """f(u_k, k), from (B, C, n) and levels (B,) to (B, C, n), for the graph of a Laplacian.

    channels: features per node; blocks: residual blocks; modes: eigenvectors for heat; places: those that tell where
    nodes are.
    labels: how many it knows. A condition (B,) names them: 0, 1, ..., or `labels` for none, as without a condition.
    """

    Settings = GraphSettings
    float32_layers = (nn.GroupNorm,)

    def __init__(
        self,
        laplacian: GraphLaplacian,
        data_channels: int,
        channels: int = 64,
        blocks: int = 6,
        modes: int = 128,
        places: int = 48,
        dropout: float = 0.0,
        labels: int = 0,
    ):
        super().__init__()
        embedding = 4 * channels
        places = min(places, laplacian.modes - 1)
        self.surroundings = Surroundings(laplacian, min(modes, laplacian.modes), places)
        self.embed_level = LevelEmbedding(channels, embedding)
        self.embed_label = LabelEmbedding(labels, embedding) if labels else None
        widest = max(laplacian.side / 2, 2.0)
        self.octaves = Constant(2.0 ** torch.arange(1 + int(math.log2(widest)), device="cpu"))
        self.stem = PerNode(data_channels * (2 + len(self.octaves.value)), channels)
        self.blocks = nn.ModuleList(Block(channels, places, embedding, dropout, widest) for _ in range(blocks))
        self.head_norm = Norm(channels, silu=True)
        self.head = PerNode(channels, data_channels, zero=True)

    @classmethod
    def from_settings(cls, settings: GraphSettings, domain: Domain, labels: int = 0) -> GraphNet:
        """The untrained network for fields on a graph."""
        laplacian = domain.laplacian
        if not isinstance(laplacian, GraphLaplacian):
            raise UsageError(f"the network graph is for graphs, not for {domain.kind}; use network.kind=unet")
        return cls(laplacian, domain.shape[0], **vars(settings), labels=labels)

    @staticmethod
    def words(settings: GraphSettings, domain: Domain) -> str:
        """The network in a line, for `ihdm info`."""
        modes, blocks = min(settings.modes, domain.grid[0]), f"{settings.blocks} block{'s' * (settings.blocks > 1)}"
        return f"graph network, {settings.channels} features, {blocks}, heat along {modes} eigenvectors"

    def forward(self, u: Tensor, k: Tensor, condition: Tensor | None = None) -> Tensor:
        if condition is not None and self.embed_label is None:
            raise UsageError("this network was built without labels, so it takes no condition")
        known = None if self.embed_label is None else self.embed_label(condition, k.shape[0])
        embedded = self.embed_level(k, known)
        h = self.stem(torch.cat([u, self._details(u)], 1))
        for block in self.blocks:
            h = block(h, embedded, self.surroundings)
        return self.head(self.head_norm([h])[0])

    def _details(self, u: Tensor) -> Tensor:
        """Differences between blurs over 0, 1, 2, 4, ... nodes, scaled to the same size: else the largest hides all.

        Scaling would make the rounding of bfloat16 as large as some of them.
        """
        v = wide(u)
        times = (self.octaves.like(v).square() / 2).log()
        blurred = [v, *(self.surroundings.heat(v, t.expand(v.shape[1])) for t in times), v.mean(-1, keepdim=True)]
        details = torch.cat([one - other for one, other in zip(blurred, blurred[1:])], 1)
        return (F.normalize(details, dim=-1) * math.sqrt(v.shape[-1])).to(u.dtype)


class Block(nn.Module):
    """x + f(x, k); f sees each node's features, those that heat brings and its neighbours', scaled by its place."""

    def __init__(self, width: int, places: int, embedding: int, dropout: float, widest: float):
        super().__init__()
        self.dropout = dropout
        self.enter_norm = Norm(width, silu=True)
        sigma_B = torch.logspace(0, math.log10(widest), width)
        self.log_t = nn.Parameter((sigma_B.square() / 2).log())
        self.enter = PerNode(3 * width, width)
        self.where = PerNode(places, width, zero=True) if places else None
        self.level = nn.Linear(embedding, width)
        self.leave_norm = Norm(width, silu=True)
        self.leave = PerNode(width, width, zero=True)

    def forward(self, x: Tensor, embedded: Tensor, surroundings: Surroundings) -> Tensor:
        y, x = self.enter_norm([x])
        y = self.enter(torch.cat([y, surroundings.heat(y, self.log_t), surroundings.neighbours(y)], 1))
        y = y if self.where is None else y * (1 + self.where(surroundings.places(y)))
        y, _ = self.leave_norm([y], self.level(embedded))
        return x + self.leave(F.dropout(y, self.dropout, self.training))


class PerNode(nn.Linear):
    """A linear map of each node's features, (B, C, n)."""

    def __init__(self, width_in: int, width: int, zero: bool = False):
        super().__init__(width_in, width)
        if zero:
            nn.init.zeros_(self.weight)
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.baddbmm(self.bias[:, None], self.weight.expand(x.shape[0], -1, -1), x)


class Surroundings:
    """How features travel on a graph: constants, copied to whatever device needs them.

    None is used through a view (such as `basis.mT`): where guidance branches, torch.export refuses that.
    """

    def __init__(self, laplacian: GraphLaplacian, modes: int, places: int = 0):
        self.nodes = laplacian.grid[0]
        self._places = Constant(laplacian.eigenvectors(1 + places)[:, 1:].T * math.sqrt(self.nodes))
        self._eigenvalues = Constant(laplacian.eigenvalues[:modes])
        self._eigenvectors = Constant(laplacian.eigenvectors(modes))
        ends = np.concatenate([laplacian.edges, laplacian.edges[:, ::-1]])
        weights = np.tile(laplacian.weights.clip(0), 2)  # some angles of a mesh give negative ones
        degrees = np.bincount(ends[:, 0], weights, self.nodes)
        scale = 1 / np.sqrt(np.where(degrees > 0, degrees, 1))
        weights = weights * scale[ends[:, 0]] * scale[ends[:, 1]]
        self._matrix: Constant | None = None
        if self.nodes <= MATRIX_MOST:
            matrix = np.zeros((self.nodes, self.nodes))
            matrix[ends[:, 0], ends[:, 1]] = weights
            self._matrix = Constant(torch.from_numpy(matrix))
        parts = (ends[:, 0], ends[:, 1], weights)
        self._to, self._come, self._weights = (Constant(torch.from_numpy(part.copy())) for part in parts)

    def places(self, x: Tensor) -> Tensor:
        """Where nodes are: the lowest eigenvectors, repeated for each sample of x, (B, places, n)."""
        return self._places.like(x).expand(x.shape[0], -1, -1)

    def heat(self, x: Tensor, log_t: Tensor) -> Tensor:
        """F(t) x for x (B, C, n), along the lowest eigenvectors only, with a time t for each channel (Eq. 2)."""
        basis = self._eigenvectors.like(x)
        times = log_t.float().exp()[:, None]
        decay = torch.exp(times * self._eigenvalues.like(times))
        return F.linear(x @ basis * decay.to(x.dtype), basis)

    def neighbours(self, x: Tensor) -> Tensor:
        """D^-1/2 W D^-1/2 x, along the nodes of x (B, C, n)."""
        if self._matrix is not None:
            return x @ self._matrix.like(x)
        first = x.movedim(-1, 0)
        moved = first.index_select(0, self._come.like(x, torch.long)) * self._weights.like(x)[:, None, None]
        return torch.zeros_like(first).index_add(0, self._to.like(x, torch.long), moved).movedim(0, -1)
