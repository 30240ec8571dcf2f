"""Eigenvectors in the cache: the same as computed ones, or computed again."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from ihdm import remembered
from ihdm.domains import GraphDomain
from ihdm.graph import GraphLaplacian

RING = [(i, (i + 1) % 24) for i in range(24)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The files, in a cache that keeps small graphs too."""
    monkeypatch.setenv("IHDM_CACHE", str(tmp_path))
    monkeypatch.setattr(remembered, "LEAST", 20)
    return tmp_path / "eigenvectors"


@pytest.fixture
def computed(monkeypatch):
    """How often eigenvectors are computed."""
    calls: list[int] = []
    lowest = remembered.lowest
    monkeypatch.setattr(remembered, "lowest", lambda matrix, *rest: calls.append(len(matrix)) or lowest(matrix, *rest))
    return calls


def ring(weights=None, modes=None) -> GraphLaplacian:
    return GraphLaplacian(24, RING, weights, modes=modes, kept=True)


def basis(laplacian: GraphLaplacian) -> torch.Tensor:
    return laplacian.eigenvectors(24)


def test_they_are_computed_once_and_are_the_same(folder, computed):
    first, second = ring(), ring()
    assert basis(first).equal(basis(second)) and first.eigenvalues.equal(second.eigenvalues)
    assert basis(first).equal(basis(GraphLaplacian(24, RING)))
    assert computed == [24] and len(list(folder.iterdir())) == 1
    GraphDomain((1, 24), edges=RING).laplacian  # noqa: B018
    assert computed == [24]
    ring(modes=7), ring(weights=np.full(24, 2.0))
    assert computed == [24] * 3 and len(list(folder.iterdir())) == 3


def test_what_takes_long_is_said_once(folder, monkeypatch, capsys):
    ring()
    assert not capsys.readouterr().err
    monkeypatch.setattr(remembered, "LONG", 24)
    ring(modes=7), ring(modes=7)
    assert capsys.readouterr().err == "computing 7 eigenvectors of 24 nodes: slow, but only once\n"


def test_small_graphs_and_those_that_nobody_asked_to_keep_are_not_kept(folder, computed):
    GraphLaplacian(19, RING[:18], kept=True)
    GraphLaplacian(24, RING)
    assert computed == [19] and not folder.exists()


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def one_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def without_sum(path: Path) -> None:
    save_file(load_file(path), path)


def something_else(path: Path) -> None:
    save_file({"weights": np.ones(3)}, path)


@pytest.mark.parametrize("harm", [cut_off, one_bit, without_sum, something_else])
def test_a_damaged_file_is_told_and_made_again(harm, folder, computed, capsys):
    right = basis(ring())
    (path,) = folder.iterdir()
    harm(path)
    assert basis(ring()).equal(right) and computed == [24, 24]
    assert f"warning: {path} does not hold what it should" in capsys.readouterr().err
    assert basis(ring()).equal(right) and computed == [24, 24] and not capsys.readouterr().err


def test_a_whole_file_of_another_graph_is_told(folder, computed, capsys):
    ring()
    (path,) = folder.iterdir()
    content = path.read_bytes()
    path.unlink()
    other = np.linspace(1, 2, 24)
    right = basis(ring(other))
    (path,) = folder.iterdir()
    path.write_bytes(content)
    assert basis(ring(other)).equal(right) and "those of another graph" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values, vectors: (values, vectors[:, :5]), "not eigenvectors"),
        (lambda values, vectors: (values, vectors.astype(np.float32)), "not eigenvectors"),
        (lambda values, vectors: (values, vectors * 1.001), "not orthonormal"),
        (lambda values, vectors: (values * np.nan, vectors), "another graph"),
        (lambda values, vectors: (values[::-1], vectors[:, ::-1]), "not in order"),
    ],
)
def test_what_is_no_solution_is_told_apart(change, message, folder, monkeypatch):
    seen = []
    monkeypatch.setattr(
        remembered, "lowest", lambda *a, own=remembered.lowest: seen.append((a[0], own(*a))) or seen[0][1]
    )
    ring()
    (matrix, (values, vectors)), *_ = seen
    remembered.check(matrix, values, vectors)
    with pytest.raises(ValueError, match=message):
        remembered.check(matrix, *change(values, vectors))


def test_the_oldest_make_room_and_a_folder_that_cannot_be_written_is_told(folder, monkeypatch, capsys):
    monkeypatch.setattr(remembered, "MOST", 2)
    for number in range(4):
        ring(weights=np.full(24, 1.0 + number))
        for file in folder.iterdir():
            os.utime(file, (file.stat().st_mtime - 10,) * 2)
    assert len(list(folder.iterdir())) == 2
    monkeypatch.setenv("IHDM_CACHE", str(next(folder.iterdir())))  # a file, where no folder can be
    assert basis(ring()).shape == (24, 24)
    assert "could not be saved for the next time" in capsys.readouterr().err
