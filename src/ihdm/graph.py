"""The heat equation on the nodes of a graph, or on a surface given as a mesh.

Heat flows along edges, more along those with larger weights: du_i/dt = sum_j w_ij (u_j - u_i). On a path of nodes this
is the heat equation of a grid, apart from its frequencies: its eigenvectors are the same cosines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ihdm.basis import Laplacian, Times, checked_data, checked_times
from ihdm.constant import Constant
from ihdm.disk import size_words
from ihdm.eigenvectors import Matrix, lowest
from ihdm.errors import UsageError
from ihdm.host import host_bytes
from ihdm.remembered import remembered
from ihdm.settings import whole

if TYPE_CHECKING:
    from typing_extensions import Self

Array = NDArray[Any]
ArrayLike = Any  # numbers in an array, a tensor or lists

DENSE_MOST = 4096  # nodes up to which all eigenvectors are computed, unless fewer are asked for
USUAL_MODES = 512  # eigenvectors of larger graphs
LARGEST = 1e100  # sum of the weights at a node, whose square must be finite
ROUND = 1e-3  # share by which the radii of a sphere may differ
SQUARES, STRIPS = 4, 6  # float64 matrices n x n, and n x modes, that are in memory at the same time


class GraphLaplacian(Laplacian):
    """Laplace = W - D on the n nodes of a graph, W the weights of its edges and D their sums; data are (B, C, n).

    edges: (E, 2), pairs of nodes 0..n-1, each once, in either direction; weights: (E,), positive, 1 unless given.
    normalised: D^-1/2 (W - D) D^-1/2 instead, whose eigenvalues are between -2 and 0 and whose blank state is not
    constant, but proportional to the roots of D.
    modes: how many of the lowest eigenvectors to compute, by default all for up to 4,096 nodes, and 512 for more.
    kept: whether those of large graphs are stored in the cache folder for the next time.

    Every part that is not connected to others has a blank state of its own, and a first eigenvalue of exactly 0.

    With fewer modes than nodes, what data have beyond the lowest eigenvectors is approximated: all of it decays at one
    rate, the mean of the eigenvalues that are left out, which follows from the trace. The basis is still complete and,
    up to rounding, orthonormal: a product of reflections, I - A T A^T with A of shape (n, modes), whose first columns
    are the eigenvectors. If several share an eigenvalue, either all of them are among the modes or none.
    """

    def __init__(
        self,
        n: int,
        edges: ArrayLike,
        weights: ArrayLike | None = None,
        normalised: bool = False,
        modes: int | None = None,
        kept: bool = False,
    ):
        self._set_up(n, *checked_edges(n, edges, weights), normalised, modes, kept)

    @classmethod
    def from_mesh(cls, positions: ArrayLike, faces: ArrayLike, modes: int | None = None, kept: bool = False) -> Self:
        """The cotangent Laplacian of a surface of triangles, divided by the mean area of a node.

        positions: (n, 3); faces: (F, 3), the nodes of each triangle. Units are those of the positions. Dividing by one
        area for all nodes keeps it symmetric, and its blank state constant. Where nodes are spread evenly it is the
        Laplacian of the surface; elsewhere it differs from that as their areas differ.
        """
        positions, faces = checked_mesh(positions, faces)
        edges, weights = cotangents(positions, faces)
        laplacian = cls.__new__(cls)
        laplacian._set_up(len(positions), edges, weights / mean_area(positions, faces), False, modes, kept)
        return laplacian

    def _set_up(self, n: int, edges: Array, weights: Array, normalised: bool, modes: int | None, kept: bool) -> None:
        usual = n if n <= DENSE_MOST else USUAL_MODES
        modes = min(usual if modes is None else whole("modes", modes, 1), n)
        dense = n <= DENSE_MOST or modes == n
        _check_memory(n, modes, dense)
        self.grid, self.edges, self.weights, self.normalised = (n,), edges, weights, normalised
        matrix = _matrix(n, edges, weights, normalised)
        if not (matrix.diagonal < LARGEST).all():
            raise UsageError("weights, or the angles and areas of a mesh, are too large to compute with")
        self.parts = int(matrix.parts.max()) + 1
        values, vectors = (remembered if kept else lowest)(matrix, modes, dense)
        self.modes = len(values)
        rest = (matrix.diagonal.sum() - values.sum()) / max(n - self.modes, 1)
        rates = np.append(values, np.full(n - self.modes, rest))
        self._eigenvalues = Constant(torch.from_numpy(-rates + 0.0))
        self._basis = _Whole(vectors) if self.modes == n else _Completed(vectors)
        self.peak = float(n * np.square(vectors).max()) if self.modes == n else float(n)

    def __repr__(self) -> str:
        return f"GraphLaplacian({self.grid[0]} nodes, {len(self.edges)} edges, {self.modes} modes)"

    def eigenvectors(self, count: int) -> Tensor:
        """The `count` lowest, in columns (n, count), float64; only the first `modes` of them are exact."""
        with torch.device("cpu"):
            return self.from_spectrum(torch.eye(count, self.grid[0], dtype=torch.float64)[None])[0].T

    def to_spectrum(self, u: Tensor, lowest: Sequence[int] | None = None) -> Tensor:
        """u_hat = V^T u (Eq. 2), or only the `lowest` of its coefficients."""
        count = self.grid[0] if lowest is None else lowest[0]
        return self._basis.to_spectrum(checked_data(u, self.grid), count).to(u.dtype)

    def from_spectrum(self, u_hat: Tensor) -> Tensor:
        """u = V u_hat (Eq. 2)."""
        return self._basis.from_spectrum(checked_data(u_hat, self.grid)).to(u_hat.dtype)

    def dissipate(self, u: Tensor, t: Times) -> Tensor:
        """F(t) u = V exp(t eigenvalues) V^T u (Eq. 2)."""
        wide, times = checked_data(u, self.grid), checked_times(u, t)
        u_hat = self._basis.to_spectrum(wide, self.grid[0])
        decay = torch.exp(times[..., None, None] * self.eigenvalues_like(wide))
        return self._basis.from_spectrum(decay * u_hat).to(u.dtype)


class _Whole:
    """All eigenvectors, as a matrix."""

    def __init__(self, vectors: Array):
        self._vectors = Constant(torch.from_numpy(vectors))

    def to_spectrum(self, u: Tensor, count: int) -> Tensor:
        return u @ self._vectors.like(u)[:, :count]

    def from_spectrum(self, u_hat: Tensor) -> Tensor:
        return u_hat @ self._vectors.like(u_hat).mT


class _Completed:
    """Some eigenvectors V, (n, m), and the rest of a complete basis, using only products with n x m matrices.

    With E the first m columns of the identity and S signs, let A = E - V S and T = (A^T E)^-1. Then
    Q = I - A T A^T is orthogonal, and Q E = V S: it is a product of m Householder reflections in compact form. Their
    choice of signs keeps A^T E far from singular; here the first m coefficients are multiplied by these signs.
    """

    def __init__(self, vectors: Array):
        self.m = vectors.shape[1]
        signs = np.sign(np.diag(np.linalg.qr(vectors, mode="r")))
        across = -vectors * signs
        across[range(self.m), range(self.m)] += 1
        self._across, self._signs = Constant(torch.from_numpy(across)), Constant(torch.from_numpy(signs))
        self._middle = Constant(torch.from_numpy(np.linalg.inv(across[: self.m].T)))

    def to_spectrum(self, u: Tensor, count: int) -> Tensor:
        across, signs = self._across.like(u), self._signs.like(u)
        inside = u @ across
        low = (u[..., : self.m] - inside) * signs  # V^T u, from A = E - V S
        if count <= self.m:
            return low[..., :count]
        rest = u[..., self.m :] - inside @ self._middle.like(u) @ across[self.m :].mT
        return torch.cat([low, rest], -1)[..., :count]

    def from_spectrum(self, u_hat: Tensor) -> Tensor:
        across, signs = self._across.like(u_hat), self._signs.like(u_hat)
        turned = torch.cat([u_hat[..., : self.m] * signs, u_hat[..., self.m :]], -1)
        return turned - turned @ across @ self._middle.like(u_hat).mT @ across.mT


def checked_edges(n: int, edges: ArrayLike, weights: ArrayLike | None = None) -> tuple[Array, Array]:
    """Edges as int64 (E, 2) and their weights as float64 (E,); anything else is refused."""
    edges = _numbers(edges, "edges", 2)
    _check_nodes(edges, whole("the number of nodes", n, 1), "edge")
    loops = np.flatnonzero(edges[:, 0] == edges[:, 1])
    if len(loops):
        raise UsageError(f"edge {loops[0]} goes from node {edges[loops[0], 0]} to itself; leave out such edges")
    ordered = np.sort(edges, 1)
    _, first, count = np.unique(ordered, axis=0, return_index=True, return_counts=True)
    if (count > 1).any():
        i, j = edges[first[count > 1][0]]
        raise UsageError(f"the edge between {i} and {j} is given more than once; give each once, in either direction")
    found = np.ones(len(edges)) if weights is None else np.asarray(weights)
    if found.shape != (len(edges),) or found.dtype.kind not in "fiu":
        raise UsageError(f"weights are a number for each of {len(edges):,} edges, not {found.dtype} of {found.shape}")
    found = found.astype(np.float64)
    wrong = np.flatnonzero(~(np.isfinite(found) & (found > 0)))
    if len(wrong):
        raise UsageError(f"the weight of edge {wrong[0]} is {found[wrong[0]]:g}; weights must be finite and above 0")
    return edges, found


def checked_mesh(positions: ArrayLike, faces: ArrayLike) -> tuple[Array, Array]:
    """Positions as float64 (n, 3) and faces as int64 (F, 3); faces that are not triangles are refused."""
    places = checked_positions(positions)
    faces = _numbers(faces, "faces", 3)
    _check_nodes(faces, len(places), "face")
    area = areas(places, faces)
    flat = np.flatnonzero(area <= 1e-12 * area.max(initial=0))
    if len(flat) or not len(area):
        which = f"face {flat[0]} has no area" if len(flat) else "there are no faces"
        raise UsageError(f"{which}; a mesh is made of triangles with three different corners")
    return places, faces


def checked_positions(positions: ArrayLike) -> Array:
    """Positions as float64 (n, 3)."""
    places = np.asarray(positions)
    if places.ndim != 2 or places.shape[1] != 3 or places.dtype.kind not in "fiu":
        raise UsageError(f"positions must be three numbers for each node, (n, 3), not {places.dtype} of {places.shape}")
    if not np.isfinite(places).all():
        raise UsageError("positions have values that are not finite numbers")
    return places.astype(np.float64)


def cotangents(positions: Array, faces: Array) -> tuple[Array, Array]:
    """The edges of a mesh, each once, and as weights half the sum of the cotangents of the angles opposite to them.

    Where angles are obtuse, weights may be negative, but no eigenvalue of -Laplace is, as for all finite elements.
    """
    pairs, halves = [], []
    for corner in range(3):
        i, j, k = (faces[:, (corner + turn) % 3] for turn in range(3))
        one, other = positions[j] - positions[i], positions[k] - positions[i]
        pairs.append(np.sort(np.stack([j, k], 1), 1))
        halves.append((one * other).sum(1) / np.linalg.norm(np.cross(one, other), axis=1) / 2)
    edges, place = np.unique(np.concatenate(pairs), axis=0, return_inverse=True)
    return edges, np.bincount(place.reshape(-1), np.concatenate(halves))


def areas(positions: Array, faces: Array) -> Array:
    """The areas of triangles, (F,)."""
    one, other = (positions[faces[:, corner]] - positions[faces[:, 0]] for corner in (1, 2))
    return np.linalg.norm(np.cross(one, other), axis=1) / 2


def mean_area(positions: Array, faces: Array) -> float:
    """The mean area of the nodes of a mesh, each of which has a third of its triangles."""
    return float(areas(positions, faces).sum()) / len(positions)


def sphere_radius(positions: Array, faces: Array) -> float | None:
    """The radius of a closed mesh whose nodes are all equally far from one point; None for others."""
    if len(faces) != 2 * (len(positions) - 2):  # Euler's formula, with three edges for two faces
        return None
    columns = np.concatenate([2 * positions, np.ones((len(positions), 1))], 1)
    centre = np.linalg.lstsq(columns, np.square(positions).sum(1), rcond=None)[0][:3]  # |p|^2 = 2 p c + r^2 - |c|^2
    distance = np.linalg.norm(positions - centre, axis=1)
    return float(distance.mean()) if np.ptp(distance) < ROUND * distance.mean() else None


def nearest(points: ArrayLike, neighbours: int) -> Array:
    """Edges (E, 2) between each of the points (n, d) and its nearest `neighbours`, for `GraphLaplacian`."""
    places = torch.as_tensor(np.asarray(points, np.float64), device="cpu")
    if not 1 <= neighbours < len(places):
        raise UsageError(f"{len(places)} points can have 1 to {len(places) - 1} neighbours, not {neighbours}")
    rows = [
        torch.cdist(some, places, compute_mode="donot_use_mm_for_euclid_dist")
        .scatter(1, own[:, None], torch.inf)  # no point is its own neighbour
        .topk(neighbours, largest=False)
        .indices
        for some, own in zip(places.split(512), torch.arange(len(places), device="cpu").split(512))
    ]
    others = torch.cat(rows).numpy()
    pairs = np.stack([np.repeat(np.arange(len(others)), neighbours), others.reshape(-1)], 1)
    return np.unique(np.sort(pairs, 1), axis=0)


def connected(n: int, edges: Array) -> Array:
    """The number of the part that each node is in, (n,); nodes that are connected are in the same part.

    Each node points to the least one that it is known to be connected with. Wherever an edge joins two of these, the
    larger one is made to point to the smaller, so each round removes at least half of those that have others beside
    them.
    """
    least, (i, j) = np.arange(n), edges.T
    while (apart := least[i] != least[j]).any():
        ends = np.sort([least[i][apart], least[j][apart]], 0)
        np.minimum.at(least, ends[1], ends[0])
        while not np.array_equal(further := least[least], least):
            least = further
    return np.unique(least, return_inverse=True)[1].reshape(-1)


def _matrix(n: int, edges: Array, weights: Array, normalised: bool) -> Matrix:
    """-Laplace, with its blank state."""
    i, j = edges.T
    degrees = np.bincount(i, weights, n) + np.bincount(j, weights, n)
    entries, kernel = -weights, np.ones(n)
    if normalised:
        kernel = np.sqrt(np.where(degrees > 0, degrees, 1))
        entries, degrees = entries / (kernel[i] * kernel[j]), np.where(degrees > 0, 1.0, 0.0)
    return Matrix(edges, entries, degrees, kernel, connected(n, edges))


def _numbers(values: ArrayLike, what: str, columns: int) -> Array:
    found = np.asarray(values)
    if found.size == 0:
        found = np.zeros((0, columns), np.int64)
    if found.ndim != 2 or found.shape[1] != columns or found.dtype.kind not in "iu":
        raise UsageError(f"{what} must be {columns} whole numbers each, not {found.dtype} of {found.shape}")
    return found.astype(np.int64)


def _check_nodes(rows: Array, n: int, what: str) -> None:
    outside = np.flatnonzero(((rows < 0) | (rows >= n)).any(1))
    if len(outside):
        row = ", ".join(map(str, rows[outside[0]]))
        raise UsageError(f"{what} {outside[0]} is {row}, but there are only the nodes 0 to {n - 1}")


def _check_memory(n: int, modes: int, dense: bool) -> None:
    needed, there = 8 * n * (SQUARES * n if dense else STRIPS * modes), host_bytes()
    if needed > there:
        raise UsageError(
            f"the {modes:,} lowest eigenvectors of {n:,} nodes take {size_words(needed)} of memory, and this machine "
            f"has {size_words(there)}; take fewer nodes" + ", or, in Python, fewer eigenvectors (modes)" * (modes > 1)
        )
