"""Fields: values on the nodes of a graph, or of a mesh such as a globe."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ihdm.domains.domain import Domain, Shape
from ihdm.domains.drawing import Drawing, colours
from ihdm.errors import UsageError
from ihdm.graph import (
    GraphLaplacian,
    checked_edges,
    checked_mesh,
    checked_positions,
    connected,
    cotangents,
    mean_area,
    sphere_radius,
)

TENSORS = "edges", "weights", "positions", "faces"


@dataclass(frozen=True, eq=False)
class GraphDomain(Domain):
    """Fields (C, n) on n nodes, connected by edges (E, 2) with weights (E,), or by faces (F, 3) at positions (n, 3).

    low, high: what 0 and 1 stand for in each channel, by default 0 and 1. A graph may have positions too, for pictures.
    Blur widths are in units of edges; on a mesh, in units of the distance between nodes, the root of their mean area.
    """

    kind = "graphs"
    axes = 1
    noun = "field"
    unit = "node"
    suffix = ".npy"

    shape: Shape
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    edges: Tensor | None = None
    weights: Tensor | None = None
    positions: Tensor | None = None
    faces: Tensor | None = None

    def __post_init__(self) -> None:
        if len(self.shape) != 2:
            raise ValueError(f"the shape of a field is channels and nodes, not {self.shape}")
        self._check_range()
        self._check_graph()
        if self.positions is not None and len(self.positions) != self.shape[1]:
            raise UsageError(f"there are {len(self.positions):,} positions for {self.shape[1]:,} nodes")

    def _check_range(self) -> None:
        channels = self.shape[0]
        low, high = (tuple(map(float, ends)) for ends in (self.low or [0] * channels, self.high or [1] * channels))
        if not len(low) == len(high) == channels:
            raise ValueError(f"{channels} channels need as many values in low and high, not {len(low)} and {len(high)}")
        if not all(-math.inf < least < most < math.inf for least, most in zip(low, high)):
            raise ValueError(f"{low} to {high} is not a range of values; each must be finite, and high above low")
        self._set(low=low, high=high)

    def _check_graph(self) -> None:
        if (self.edges is None) == (self.faces is None):
            raise UsageError("a graph has either edges, or positions and faces")
        if self.edges is not None:
            edges, weights = map(torch.from_numpy, checked_edges(self.shape[1], self.edges, self.weights))
            self._set(edges=edges, weights=None if self.weights is None else weights)
            if self.positions is not None:
                self._set(positions=torch.from_numpy(checked_positions(self.positions)))
            return
        if self.weights is not None:
            raise UsageError("weights belong to edges; those of a mesh follow from its angles")
        if self.positions is None:
            raise UsageError("faces need the positions of the nodes")
        positions, faces = map(torch.from_numpy, checked_mesh(self.positions, self.faces))
        self._set(positions=positions, faces=faces)

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GraphDomain):
            return NotImplemented
        one, two = self.state(), other.state()
        alike = (self.shape, self.low, self.high, set(one)) == (other.shape, other.low, other.high, set(two))
        return alike and all(tensor.equal(two[name]) for name, tensor in one.items())

    def __hash__(self) -> int:
        return hash((self.shape, self.low, self.high))

    @cached_property
    def laplacian(self) -> GraphLaplacian:
        with torch.device("cpu"):
            if self.positions is None or self.faces is None:
                return GraphLaplacian(self.shape[1], self.edges, self.weights, kept=True)
            spacing = math.sqrt(mean_area(self.positions.numpy(), self.faces.numpy()))
            return GraphLaplacian.from_mesh(self.positions / spacing, self.faces, kept=True)

    @cached_property
    def parts(self) -> int:
        """How many parts the graph has that are not connected with each other."""
        edges = self.edges
        if edges is None:
            edges = torch.from_numpy(cotangents(self.positions.numpy(), self.faces.numpy())[0])  # type: ignore[union-attr]
        return int(connected(self.shape[1], edges.numpy()).max()) + 1

    @cached_property
    def radius(self) -> float | None:
        """The radius of a mesh that is a sphere, in units of the distance between nodes; None for all others."""
        if self.positions is None or self.faces is None:
            return None
        positions, faces = self.positions.numpy(), self.faces.numpy()
        found = sphere_radius(positions, faces)
        return None if found is None else found / math.sqrt(mean_area(positions, faces))

    @property
    def frequency_words(self) -> str:
        return super().frequency_words if self.radius is None else "degree l"

    def frequencies(self, radians: Tensor) -> Tensor:
        """On a sphere, degrees l of spherical harmonics, whose eigenvalues are -l(l + 1) / radius^2."""
        return radians if self.radius is None else (0.25 + (self.radius * radians) ** 2).sqrt() - 0.5

    @property
    def words(self) -> str:
        channels, nodes = self.shape
        several = f" in {channels} channels" if channels > 1 else ""
        apart = f", in {self.parts:,} parts that are not connected" if self.parts > 1 else ""
        return f"{nodes:,} nodes of a {'graph' if self.faces is None else 'mesh'}{several}{apart}"

    def pictures(self, u: Tensor) -> Tensor:
        """A mesh, or points, from two sides; without positions, the nodes in rows, in the order of the slowest wave."""
        if self._drawing is not None:
            return self._drawing.pictures(u)
        nodes = self.shape[1]
        side = math.ceil(math.sqrt(nodes))
        slowest = self.laplacian.eigenvectors(min(self.parts + 1, nodes))[:, -1]
        rows = u.new_ones(*u.shape[:2], side * side)
        rows[..., :nodes] = u[..., slowest.argsort(stable=True).to(u.device)]
        there = (torch.arange(side * side, device=u.device) < nodes).view(side, side)
        return torch.where(there, colours(rows.unflatten(-1, (side, side))), 1.0)

    @cached_property
    def _drawing(self) -> Drawing | None:
        with torch.device("cpu"):
            return None if self.positions is None else Drawing.of(self.positions, self.faces)

    def scaled(self, values: Tensor) -> Tensor:
        """Values (..., C, n) in the units of the data, scaled to [0, 1]."""
        low, high = self._ends()
        return (values - low) / (high - low)

    def values(self, u: Tensor) -> Tensor:
        """The reverse of `scaled`."""
        low, high = self._ends()
        return low + u.cpu() * (high - low)

    def _ends(self) -> tuple[Tensor, Tensor]:
        low, high = (torch.tensor(ends, dtype=torch.float64)[:, None] for ends in (self.low, self.high))
        return low, high

    def write(self, u: Tensor, path: Path) -> None:
        """Write a field, (C, n), in the units of the data."""
        np.save(path, self.values(u).float().numpy())

    def data_settings(self) -> dict[str, Any]:
        return super().data_settings() | {"range": tuple(chain(*zip(self.low, self.high)))}

    def tree(self) -> dict[str, Any]:
        return {"low": list(self.low), "high": list(self.high)}

    def state(self) -> dict[str, Tensor]:
        tensors = {name: getattr(self, name) for name in TENSORS}
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    @classmethod
    def restored(cls, shape: Shape, tree: Mapping[str, Any], state: Mapping[str, Tensor]) -> GraphDomain:
        if others := (set(tree) - {"low", "high"}) | (set(state) - set(TENSORS)):
            raise ValueError(f"fields have no {', '.join(sorted(others))}")
        return cls(shape, tuple(tree["low"]), tuple(tree["high"]), **state)
