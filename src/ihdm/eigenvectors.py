"""The lowest eigenvectors of a sparse symmetric matrix, the same ones on every machine.

An eigenvector is determined up to its sign, and those that share an eigenvalue up to a rotation. Libraries choose as
they like, and differently on another processor. What a model has learned is stored in the eigenbasis, so the choice is
made here: eigenvectors that share an eigenvalue are those nearest to fixed random vectors projected to their space.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ihdm.errors import UsageError
from ihdm.extras import needs
from ihdm.noise import SeededNoise

Array = NDArray[Any]

SAME = 1e-10  # of the largest diagonal entry: eigenvalues that differ by less count as equal
SHIFT = 1e-6  # of the mean diagonal entry, added to make the matrix invertible


@dataclass(frozen=True)
class Matrix:
    """A symmetric matrix with no negative eigenvalue, of one block or several; each has 0 as an eigenvalue, once.

    edges: (E, 2), the places of entries off the diagonal, each once; entries: (E,), their values; diagonal: (n,).
    kernel: (n,), positive: its piece on each block has the eigenvalue 0. parts: (n,), the number of each node's block.
    """

    edges: Array
    entries: Array
    diagonal: Array
    kernel: Array
    parts: Array

    def __len__(self) -> int:
        return len(self.diagonal)

    @cached_property
    def nodes(self) -> list[Array]:
        """The nodes of each block."""
        order = np.argsort(self.parts, kind="stable")
        return np.split(order, np.cumsum(np.bincount(self.parts))[:-1])

    @cached_property
    def same(self) -> float:
        """By how much eigenvalues may differ and still count as equal."""
        return SAME * float(self.diagonal.max(initial=0))

    def dense(self) -> Array:
        matrix = np.diag(self.diagonal)
        i, j = self.edges.T
        matrix[i, j] = matrix[j, i] = self.entries
        return matrix

    def times(self, x: Array) -> Array:
        """The product of the matrix with columns (n, count)."""
        i, j = self.edges.T
        found = self.diagonal[:, None] * x
        for column, own in zip(found.T, x.T):
            column += np.bincount(i, self.entries * own[j], len(self)) + np.bincount(
                j, self.entries * own[i], len(self)
            )
        return found

    def sparse(self, shift: float) -> Any:
        """The matrix with `shift` added to its diagonal, in SciPy's form."""
        i, j = self.edges.T
        nodes, pair = np.arange(len(self)), (np.concatenate([i, j]), np.concatenate([j, i]))
        places = np.concatenate([nodes, pair[0]]), np.concatenate([nodes, pair[1]])
        values = np.concatenate([self.diagonal + shift, self.entries, self.entries])
        return _scipy().sparse.csc_matrix((values, places), shape=(len(self),) * 2)


def lowest(matrix: Matrix, modes: int, dense: bool) -> tuple[Array, Array]:
    """The lowest eigenvalues, in order, and their eigenvectors, in columns; float64.

    At most `modes`: if one is left out, so are all that share its eigenvalue. The first eigenvalues are zeros, one for
    each block. dense: compute all of them, with NumPy; else no more than are wanted, with SciPy.
    """
    values, vectors = _all(matrix) if dense else _some(matrix, modes)
    bounds = np.flatnonzero(np.diff(values) > matrix.same) + 1
    ends = [len(matrix.nodes), *bounds, *([len(matrix)] if len(values) == len(matrix) else [])]
    count = max(end for end in ends if end <= max(modes, ends[0]))
    return values[:count], vectors[:, :count]


def _all(matrix: Matrix) -> tuple[Array, Array]:
    """All of them, block by block, so that every eigenvector lies on one block."""
    n, whole = len(matrix), matrix.dense()
    values, vectors, group = np.zeros(n), np.zeros((n, n)), np.full(n, -1)
    zeros, place = [], 0
    for nodes in matrix.nodes:
        own = slice(place, place + len(nodes))
        found, basis = np.linalg.eigh(whole[np.ix_(nodes, nodes)])
        basis[:, 0] = _unit(matrix.kernel[nodes])
        basis[:, 1:] = _settled(found[1:], basis[:, 1:], matrix.same)
        values[own], vectors[nodes, own] = found.clip(0), basis
        zeros.append(place)
        place += len(nodes)
    values[zeros] = 0
    others = _without(values, zeros)
    group[others] = _groups(values[others], matrix.same)
    order = np.lexsort((np.arange(n), group))  # values that are equal up to rounding come in the order of the blocks
    return np.maximum.accumulate(values[order]), vectors[:, order]


def _without(values: Array, zeros: list[int]) -> Array:
    """The places of the values without those of the zeros, in the order of the values."""
    order = np.argsort(values, kind="stable")
    return order[~np.isin(order, zeros)]


def _some(matrix: Matrix, modes: int) -> tuple[Array, Array]:
    """The `modes` lowest and the one after them, by Lanczos iterations with the inverse."""
    n, blocks = len(matrix), len(matrix.nodes)
    if blocks >= modes:
        raise UsageError(
            f"{blocks:,} parts, each with a blank state of its own, leave none of {modes:,} eigenvectors for what is "
            f"between blank and sharp; leave out nodes without edges, or ask for more eigenvectors (modes)"
        )
    linalg = _scipy().sparse.linalg
    shift = SHIFT * float(matrix.diagonal.mean())
    solve = linalg.splu(matrix.sparse(shift)).solve
    found = np.zeros((n, blocks))
    for block, nodes in enumerate(matrix.nodes):
        found[nodes, block] = _unit(matrix.kernel[nodes])

    def next_ones(count: int) -> tuple[Array, Array]:
        """The lowest of those that are orthogonal to all found so far."""

        def inverse(x: Array) -> Array:
            return _apart(solve(_apart(x, found)), found)

        operator = linalg.LinearOperator((n, n), matvec=inverse, dtype=np.float64)
        values, vectors = linalg.eigsh(operator, k=count, which="LM", v0=_apart(_random(n, 1)[0], found))
        return 1 / values - shift, np.linalg.qr(_apart(vectors, found))[0]

    values, vectors = next_ones(modes - blocks)
    found = np.concatenate([found, vectors], 1)
    while True:  # Lanczos may miss one of several with the same eigenvalue: then it is the lowest that is left
        after, vector = next_ones(1)
        values, found = np.append(values, after), np.concatenate([found, vector], 1)
        if after[0] >= values[:-1].max() - matrix.same:
            break
    order = np.argsort(values, kind="stable")
    values, vectors = values[order].clip(0), found[:, blocks:][:, order]
    settled = _settled(values[:-1], vectors[:, :-1], matrix.same)
    vectors = np.concatenate([found[:, :blocks], settled, vectors[:, -1:]], 1)
    return np.concatenate([np.zeros(blocks), values]), vectors


def _settled(values: Array, vectors: Array, same: float) -> Array:
    """The same eigenvectors, with signs and rotations that do not depend on the library."""
    groups = _groups(values, same)
    sizes = np.bincount(groups) if len(groups) else np.zeros(0, int)
    random = _random(len(vectors), max(sizes, default=0)).T
    settled = vectors * np.where((random[:, :1] * vectors).sum(0) < 0, -1.0, 1.0) if len(sizes) else vectors.copy()
    ends = np.cumsum(sizes)
    for start, end in zip(ends - sizes, ends):
        if end - start > 1:
            left, _, right = np.linalg.svd(vectors[:, start:end].T @ random[:, : end - start])
            settled[:, start:end] = vectors[:, start:end] @ (left @ right)
    return settled


def _groups(values: Array, same: float) -> Array:
    """A number for each of the sorted values, the same for those that count as equal."""
    return np.concatenate([[0], np.cumsum(np.diff(values) > same)])[: len(values)]


def _random(n: int, count: int) -> Array:
    """Fixed vectors in rows, (count, n), with no symmetry."""
    with torch.device("cpu"):
        return SeededNoise(0, torch.arange(count), (n,))(0).double().numpy()


def _unit(vector: Array) -> Array:
    return vector / np.linalg.norm(vector)


def _apart(x: Array, found: Array) -> Array:
    """x without its part in the space of some orthonormal vectors; removed twice, because of rounding."""
    for _ in range(2):
        x = x - found @ (found.T @ x)
    return x


def _scipy() -> Any:
    try:
        import scipy.sparse.linalg
    except ImportError as error:
        raise UsageError(needs("a graph of so many nodes", "graphs", "SciPy")) from error
    return scipy
