"""Eigenvectors that took long to compute, kept in the cache folder for the next time.

Nothing in such a file is executed, and none is trusted: its bytes must have the checksum that it states, and its
vectors must be orthonormal and solve the eigenvalue equation of the matrix at hand. Otherwise all is computed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from numpy.typing import NDArray
from safetensors.numpy import save_file

from ihdm.cache import cache_folder
from ihdm.disk import kept_file
from ihdm.eigenvectors import Matrix, lowest

Array = NDArray[Any]

LEAST = 1500  # nodes from which on eigenvectors are kept: those of 1,000 nodes take 0.3 s (docs/domains.md)
LONG = 4000  # nodes from which on it takes long enough to be announced
MOST = 8  # files that are kept, the last ones used; for 4,096 nodes each has 134 MB
FORM = "1"  # of what is kept: to be changed if eigenvectors are ever chosen in another way
PROBES = 4  # random vectors that the equations are checked with
OFF = 1e-8  # error allowed in the equations; that of rounding is about 1e-12
SUM = "blake2b"


def remembered(matrix: Matrix, modes: int, dense: bool) -> tuple[Array, Array]:
    """What `lowest` gives: from the cache if it is there and right, else computed and kept there."""
    if len(matrix) < LEAST:
        return lowest(matrix, modes, dense)
    path = cache_folder() / "eigenvectors" / f"{_name(matrix, modes, dense)}.safetensors"
    if path.exists():
        try:
            return _read(path, matrix)
        except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
            print(f"warning: {path} does not hold what it should ({error}); it is computed again", file=sys.stderr)
    if len(matrix) >= LONG:
        print(f"computing {modes:,} eigenvectors of {len(matrix):,} nodes: slow, but only once", file=sys.stderr)
    found = lowest(matrix, modes, dense)
    try:
        _write(path, *found)
    except (OSError, safetensors.SafetensorError) as error:
        print(f"warning: the eigenvectors could not be saved for the next time ({error})", file=sys.stderr)
    return found


def _name(matrix: Matrix, modes: int, dense: bool) -> str:
    """A digest of all that the result depends on."""
    parts = matrix.edges, matrix.entries, matrix.diagonal, matrix.kernel, matrix.parts
    return _sum(*parts, of=f"{FORM} {len(matrix)} {modes} {dense}")


def _read(path: Path, matrix: Matrix) -> tuple[Array, Array]:
    with safetensors.safe_open(path, "np") as file:
        told, values, vectors = (file.metadata() or {}).get(SUM), file.get_tensor("values"), file.get_tensor("vectors")
    if told != _sum(values, vectors):
        raise ValueError("it is damaged")
    check(matrix, values, vectors)
    with contextlib.suppress(OSError):
        os.utime(path)
    return values, vectors


def check(matrix: Matrix, values: Array, vectors: Array) -> None:
    """ValueError unless vectors (n, m) are orthonormal and eigenvectors of the matrix with values (m,), in order.

    Checked with a few random combinations of them, each of which contains all of them.
    """
    n, count = len(matrix), len(values)
    if values.dtype != np.float64 or vectors.dtype != np.float64 or vectors.shape != (n, count) or not count:
        raise ValueError(f"{vectors.dtype} of {vectors.shape} are not eigenvectors of {n:,} nodes")
    x = np.random.default_rng(0).standard_normal((count, PROBES))
    mixed, scale = vectors @ x, float(matrix.diagonal.max(initial=0)) or 1.0
    if not np.abs(vectors.T @ mixed - x).max() < OFF:
        raise ValueError("its vectors are not orthonormal")
    if not np.abs(matrix.times(mixed) - vectors @ (values[:, None] * x)).max() < OFF * scale:
        raise ValueError("its vectors are those of another graph")
    if values[0] != 0 or not (np.diff(values) >= 0).all():
        raise ValueError("its eigenvalues are not in order")


def _write(path: Path, values: Array, vectors: Array) -> None:
    """Write the file. The oldest ones make room."""
    tensors = {"values": np.ascontiguousarray(values), "vectors": np.ascontiguousarray(vectors)}
    with kept_file(path) as unfinished:
        save_file(tensors, unfinished, {SUM: _sum(values, vectors)})
    for old in sorted(path.parent.glob("*.safetensors"), key=lambda file: file.stat().st_mtime)[:-MOST]:
        old.unlink(missing_ok=True)


def _sum(*parts: Array, of: str = "") -> str:
    digest = hashlib.blake2b(of.encode(), digest_size=16)
    for part in parts:
        digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()
