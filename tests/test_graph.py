"""The heat equation on graphs against closed forms, in float64."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import scipy.linalg
import torch
from scipy.spatial import ConvexHull

from ihdm import eigenvectors, graph
from ihdm.errors import UsageError
from ihdm.graph import GraphLaplacian, nearest
from ihdm.heat import GridLaplacian, cosine_basis
from ihdm.prior import kept_modes


def path(n: int) -> list[tuple[int, int]]:
    return [(i, i + 1) for i in range(n - 1)]


def cycle(n: int) -> list[tuple[int, int]]:
    return [(i, (i + 1) % n) for i in range(n)]


def complete(n: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(n) for j in range(i)]


def random_graph(n: int, share: float = 0.15, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    edges = np.argwhere(np.triu(random.random((n, n)) < share, 1))
    return edges, random.random(len(edges)) + 0.1


def sphere(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes of about the same area, on a spiral."""
    place = np.arange(n) + 0.5
    z, angle = 1 - 2 * place / n, math.pi * (3 - math.sqrt(5)) * place
    radius = np.sqrt(1 - z**2)
    nodes = np.stack([radius * np.cos(angle), radius * np.sin(angle), z], 1)
    return nodes, ConvexHull(nodes).simplices


def field(n: int, batch: int = 2, channels: int = 3) -> torch.Tensor:
    return torch.rand(batch, channels, n, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def matrix_of(laplacian: GraphLaplacian) -> torch.Tensor:
    """The whole basis, in columns."""
    n = laplacian.grid[0]
    return laplacian.from_spectrum(torch.eye(n, dtype=torch.float64)[None])[0].T


@pytest.mark.parametrize("n", [2, 7, 32])
def test_a_path_has_the_cosines_of_a_grid(n):
    laplacian = GraphLaplacian(n, path(n))
    k = torch.arange(n).double()
    torch.testing.assert_close(laplacian.eigenvalues, 2 * torch.cos(math.pi * k / n) - 2, atol=1e-12, rtol=0)
    agreement = laplacian.eigenvectors(n).T @ cosine_basis(n)
    torch.testing.assert_close(agreement.abs(), torch.eye(n).double(), atol=1e-12, rtol=0)
    if n > 2:
        assert laplacian.side == pytest.approx(GridLaplacian((n,)).side, rel=0.01)


@pytest.mark.parametrize("n", [5, 12])
def test_a_cycle_has_fourier_modes(n):
    laplacian = GraphLaplacian(n, cycle(n))
    frequency = torch.arange(n + 1).div(2, rounding_mode="floor")[1:].double()
    torch.testing.assert_close(laplacian.eigenvalues, 2 * torch.cos(2 * math.pi * frequency / n) - 2)
    for m in range(1, n // 2):
        wave = torch.cos(2 * math.pi * m * torch.arange(n).double() / n + 0.3)[None, None]
        decay = math.exp(1.7 * (2 * math.cos(2 * math.pi * m / n) - 2))
        torch.testing.assert_close(laplacian.dissipate(wave, 1.7), decay * wave)


def test_in_a_complete_graph_all_waves_are_equally_fast():
    laplacian, u = GraphLaplacian(6, complete(6)), field(6)
    torch.testing.assert_close(laplacian.eigenvalues, torch.tensor([0.0, *[-6.0] * 5]).double())
    mean = u.mean(-1, keepdim=True)
    torch.testing.assert_close(laplacian.dissipate(u, 0.1), mean + math.exp(-0.6) * (u - mean))


def test_weights_are_conductances():
    """Two nodes approach their mean twice as fast as heat flows between them."""
    u = torch.tensor([[[1.0, 0.0]]]).double()
    blurred = GraphLaplacian(2, [(1, 0)], [3.0]).dissipate(u, 0.2)
    difference = math.exp(-2 * 3 * 0.2)
    torch.testing.assert_close(blurred, torch.tensor([[[1 + difference, 1 - difference]]]).double() / 2)


def test_each_part_has_a_blank_state_of_its_own():
    edges = [*path(4), (5, 6), (6, 7), (7, 5)]  # and node 4 by itself
    laplacian, u = GraphLaplacian(8, edges), field(8)
    assert laplacian.parts == 3 and bool((laplacian.eigenvalues[:3] == 0).all()) and laplacian.eigenvalues[3] < -0.1
    blank = laplacian.dissipate(u, 1e6)
    for part in ([0, 1, 2, 3], [4], [5, 6, 7]):
        mean = u[..., part].mean(-1, keepdim=True)
        torch.testing.assert_close(blank[..., part], mean.expand(*u.shape[:2], len(part)))
    touched = laplacian.eigenvectors(8).abs() > 1e-12
    on_parts = torch.stack([touched[part].any(0) for part in ([0, 1, 2, 3], [4], [5, 6, 7])])
    assert bool((on_parts.sum(0) == 1).all())  # every eigenvector lies on one of them


def test_parts_of_long_graphs_are_found_at_once():
    """Two paths whose nodes have their numbers by chance; to go along them node by node would take minutes."""
    order = np.random.default_rng(0).permutation(200_000)
    edges = np.concatenate([np.stack([path[:-1], path[1:]], 1) for path in (order[:50_000], order[50_000:])])
    found = graph.connected(len(order), edges)
    assert found.max() == 1 and found[0] == 0
    assert [len(set(found[path])) for path in (order[:50_000], order[50_000:])] == [1, 1]
    assert graph.connected(3, np.zeros((0, 2), int)).tolist() == [0, 1, 2]


def test_the_normalised_one_is_that_of_the_degrees():
    edges, weights = random_graph(12, 0.4)
    laplacian = GraphLaplacian(13, edges, weights, normalised=True)  # the last node is alone
    w = torch.zeros(13, 13).double()
    w[edges[:, 0], edges[:, 1]] = w[edges[:, 1], edges[:, 0]] = torch.from_numpy(weights)
    degree = w.sum(0)
    scale = torch.where(degree > 0, degree, 1.0).rsqrt()
    expected = scale[:, None] * (w - degree.diag()) * scale
    vectors = matrix_of(laplacian)
    torch.testing.assert_close(vectors * laplacian.eigenvalues @ vectors.T, expected)
    assert laplacian.eigenvalues.min() >= -2 and laplacian.parts == 2
    torch.testing.assert_close(vectors[:12, 0] / vectors[0, 0], (degree[:12] / degree[0]).sqrt())


def test_a_spheres_mesh_has_spherical_harmonics_in_the_limit():
    degrees = [degree for degree in range(6) for _ in range(2 * degree + 1)]
    exact = torch.tensor([-degree * (degree + 1.0) for degree in degrees[1:]]).double()
    errors = []
    for n in (250, 1000):
        positions, faces = sphere(n)
        laplacian = GraphLaplacian.from_mesh(positions, faces)
        assert float(laplacian.eigenvalues[0]) == 0
        errors.append(float((laplacian.eigenvalues[1 : len(degrees)] / exact - 1).abs().max()))
    assert errors[1] < 0.03 and errors[1] < 0.35 * errors[0]
    x, y, z = torch.from_numpy(positions).T  # those of the larger one: harmonics of degree 1, 2, 2
    for harmonic, degree in ((z, 1), (x * y, 2), (3 * z**2 - 1, 2)):
        blurred = laplacian.dissipate(harmonic[None, None], 0.1)[0, 0]
        assert float((blurred - math.exp(-0.1 * degree * (degree + 1)) * harmonic).norm() / harmonic.norm()) < 0.01


def test_a_meshs_units_are_those_of_its_positions():
    positions, faces = sphere(60)
    one, large = (GraphLaplacian.from_mesh(scale * positions, faces) for scale in (1.0, 7.0))
    torch.testing.assert_close(large.eigenvalues * 49, one.eigenvalues)
    assert large.side == pytest.approx(7 * one.side)


@pytest.mark.parametrize("normalised", [False, True])
def test_dissipation_is_the_exponential_of_the_matrix(normalised):
    edges, weights = random_graph(20)
    laplacian, u = GraphLaplacian(20, edges, weights, normalised), field(20)
    vectors = matrix_of(laplacian)
    matrix = (vectors * laplacian.eigenvalues @ vectors.T).numpy()
    expected = u.numpy() @ scipy.linalg.expm(0.8 * matrix)
    np.testing.assert_allclose(laplacian.dissipate(u, 0.8), expected, atol=1e-12)


@pytest.mark.parametrize("modes", [None, 6])
def test_times_may_be_one_or_one_for_each_or_several(modes):
    laplacian, u = GraphLaplacian(12, path(12), modes=modes), field(12)
    several = torch.tensor([[0.3, 2.0], [0.0, 1.0], [2.5, 0.5]]).double()
    together = laplacian.dissipate(u, several)
    assert together.shape == (3, 2, 3, 12)
    for times, blurred in zip(several, together):
        torch.testing.assert_close(laplacian.dissipate(u, times.tolist()), blurred)
        for i in range(2):
            torch.testing.assert_close(laplacian.dissipate(u[i : i + 1], float(times[i])), blurred[i : i + 1])
    torch.testing.assert_close(laplacian.dissipate(u, 0.0), u)
    torch.testing.assert_close(laplacian.dissipate(u, 1e7), u.mean(-1, keepdim=True).expand_as(u))
    for wrong in (-1.0, math.inf, [[1.0, math.nan]]):
        with pytest.raises(ValueError, match="finite and not negative"):
            laplacian.dissipate(u, wrong)
    with pytest.raises(ValueError, match=r"\(B, C, 12\)"):
        laplacian.dissipate(field(11), 1.0)
    half = laplacian.dissipate(u.half(), torch.tensor([0.5, 8.0]))
    assert half.dtype == torch.float16
    t = torch.tensor([0.3, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(laplacian.dissipate, (u.requires_grad_(), t))


@pytest.mark.parametrize("modes", [1, 2, 7, 11, 30])
@pytest.mark.parametrize("sparse", [False, True])
def test_some_eigenvectors_are_completed_to_a_basis(modes, sparse, monkeypatch):
    edges, weights = random_graph(30, 0.3)
    whole = GraphLaplacian(30, edges, weights)
    if sparse:
        monkeypatch.setattr(graph, "DENSE_MOST", 10)
    if sparse and modes == 1:
        with pytest.raises(UsageError, match="leave none of 1 eigenvectors"):
            GraphLaplacian(30, edges, weights, modes=1)
        return
    laplacian = GraphLaplacian(30, edges, weights, modes=modes)
    basis = matrix_of(laplacian)
    torch.testing.assert_close(basis.T @ basis, torch.eye(30).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(laplacian.to_spectrum(basis.T[None])[0], torch.eye(30).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(basis[:, :modes], whole.eigenvectors(modes), atol=1e-9, rtol=0)
    torch.testing.assert_close(laplacian.eigenvalues[:modes], whole.eigenvalues[:modes], atol=1e-9, rtol=0)
    torch.testing.assert_close(laplacian.eigenvalues.sum(), whole.eigenvalues.sum())
    assert bool((laplacian.eigenvalues[modes:] == laplacian.eigenvalues[-1]).all())
    u = field(30)
    for count in {1, modes, min(modes + 3, 30)}:
        torch.testing.assert_close(laplacian.to_spectrum(u, [count]), laplacian.to_spectrum(u)[..., :count])
    smooth = whole.eigenvectors(modes).sum(1)[None, None]  # it has no more than these
    torch.testing.assert_close(laplacian.dissipate(smooth, 0.4), whole.dissipate(smooth, 0.4), atol=1e-9, rtol=0)


def test_lanczos_finds_all_eigenvectors_of_one_eigenvalue(monkeypatch):
    """On a torus most have four, and eight some; those that a cut would divide are left out."""
    n = 12
    edges = [
        (a * n + b, c * n + d) for a in range(n) for b in range(n) for c, d in (((a + 1) % n, b), (a, (b + 1) % n))
    ]
    whole = GraphLaplacian(n * n, edges)
    monkeypatch.setattr(graph, "DENSE_MOST", 10)
    for modes, cut in ((37, 37), (40, 37), (8, 5)):
        laplacian = GraphLaplacian(n * n, edges, modes=modes)
        assert laplacian.modes == cut
        torch.testing.assert_close(laplacian.eigenvectors(cut), whole.eigenvectors(cut), atol=1e-7, rtol=0)


def test_no_library_has_a_say_in_eigenvectors(monkeypatch):
    """Whatever basis of their space it gives for equal eigenvalues: what a model knows is kept in this one."""
    expected = GraphLaplacian(14, [*cycle(8), *[(8 + i, 8 + j) for i, j in complete(6)]]).eigenvectors(14)
    plain = np.linalg.eigh

    def another(matrix):
        values, vectors = plain(matrix)
        groups = eigenvectors._groups(values, 1e-9)
        for group in set(groups):
            own = groups == group
            turn = np.linalg.qr(np.random.default_rng(5).standard_normal((own.sum(),) * 2))[0]
            vectors[:, own] = -vectors[:, own] @ turn
        return values + 1e-14 * np.random.default_rng(6).standard_normal(len(values)), vectors

    monkeypatch.setattr(np.linalg, "eigh", another)
    found = GraphLaplacian(14, [*cycle(8), *[(8 + i, 8 + j) for i, j in complete(6)]]).eigenvectors(14)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=0)


def test_the_prior_may_drop_what_is_below_rounding():
    """`peak` bounds the entries of the basis, so that what is dropped is less than half a unit in the last place."""
    for modes in (None, 20):
        positions, faces = sphere(120)
        laplacian = GraphLaplacian.from_mesh(positions, faces, modes=modes)
        assert float(matrix_of(laplacian).square().max()) * 120 <= laplacian.peak * (1 + 1e-9)
        kept = kept_modes(laplacian, 0.5)
        assert 0 < int(kept.sum()) < 120 and bool(kept[0])
        u = field(120)
        blurred = laplacian.dissipate(u, 0.5)
        again = laplacian.from_spectrum(laplacian.to_spectrum(blurred) * kept)
        assert float((again - blurred).abs().max()) < 2.0**-24


def test_nearest_neighbours_are_edges():
    points = np.array([[0.0], [1.0], [2.5], [10.0]])
    assert nearest(points, 1).tolist() == [[0, 1], [1, 2], [2, 3]]
    assert nearest(points, 3).tolist() == sorted(map(list, map(sorted, complete(4))))
    with pytest.raises(UsageError, match="1 to 3 neighbours"):
        nearest(points, 4)


@pytest.mark.parametrize(
    ("edges", "weights", "message"),
    [
        ([(0, 1), (1, 4)], None, "edge 1 is 1, 4, but there are only the nodes 0 to 3"),
        ([(0, -1)], None, "only the nodes 0 to 3"),
        ([(0, 1), (2, 2)], None, "edge 1 goes from node 2 to itself"),
        ([(0, 1), (1, 0)], None, "between 0 and 1 is given more than once"),
        ([(0, 1), (1, 2)], [1.0, -0.5], "the weight of edge 1 is -0.5; weights must be finite and above 0"),
        ([(0, 1)], [0.0], "above 0"),
        ([(0, 1)], [math.nan], "finite"),
        ([(0, 1)], [1.0, 2.0], "a number for each of 1 edges"),
        ([(0, 1)], [1e200], "too large to compute with"),
        ([(0, 1, 2)], None, "2 whole numbers each"),
        ([(0.5, 1.0)], None, "2 whole numbers each"),
    ],
)
def test_what_is_no_graph_is_refused(edges, weights, message):
    with pytest.raises(UsageError, match=message):
        GraphLaplacian(4, edges, weights)


@pytest.mark.parametrize(
    ("positions", "faces", "message"),
    [
        (np.zeros((3, 2)), [(0, 1, 2)], "three numbers for each node"),
        (np.eye(3), [(0, 1, 3)], "face 0 is 0, 1, 3, but there are only the nodes 0 to 2"),
        (np.eye(3), [(0, 1, 1)], "face 0 has no area"),
        (np.eye(3), [], "there are no faces"),
        (np.full((3, 3), math.inf), [(0, 1, 2)], "not finite"),
    ],
)
def test_what_is_no_mesh_is_refused(positions, faces, message):
    with pytest.raises(UsageError, match=message):
        GraphLaplacian.from_mesh(positions, faces)


def test_numbers_of_nodes_and_modes_are_whole():
    for n in (0, 4.0, "4"):
        with pytest.raises(UsageError, match="the number of nodes must be a whole number of at least 1, not"):
            GraphLaplacian(n, [])
    for modes in (0, 2.5, "2"):
        with pytest.raises(UsageError, match="modes must be a whole number of at least 1, not"):
            GraphLaplacian(4, [(0, 1)], modes=modes)


def test_too_many_nodes_for_the_memory_are_refused_with_the_numbers(monkeypatch):
    monkeypatch.setattr(graph, "host_bytes", lambda: 1_000_000)
    with pytest.raises(UsageError, match=r"200 lowest eigenvectors of 200 nodes take 1.28 MB .* has 1 MB"):
        GraphLaplacian(200, path(200))
    monkeypatch.setattr(graph, "DENSE_MOST", 10)
    with pytest.raises(UsageError, match=r"512 lowest eigenvectors of 900 nodes take 22.1 MB .* fewer eigenvectors"):
        GraphLaplacian(900, path(900))


def test_without_scipy_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(graph, "DENSE_MOST", 3)
    monkeypatch.setitem(sys.modules, "scipy.sparse.linalg", None)
    with pytest.raises(UsageError, match=r"pip install 'ihdm\[graphs\]'"):
        GraphLaplacian(9, path(9), modes=4)
