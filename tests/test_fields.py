"""Fields on graphs and meshes: their domain, their data, their network, and all that is done with them."""

from __future__ import annotations

import dataclasses
import json
import math
import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.spatial import ConvexHull

from ihdm import graph
from ihdm.cli import main
from ihdm.config import Config, DataConfig
from ihdm.data import data_domain, load_images
from ihdm.data.graphs import read_one
from ihdm.domains import GraphDomain, ImageDomain
from ihdm.domains.drawing import COLOURS, SIZE, colours
from ihdm.errors import IhdmError, UsageError
from ihdm.evaluation import images_for
from ihdm.export.programs import programs
from ihdm.labels import Labels
from ihdm.model import Model
from ihdm.model_folder import ModelConfig, read_config
from ihdm.networks import build_network
from ihdm.networks import graph as network_file
from ihdm.networks.graph import GraphNet, Surroundings
from ihdm.registry import PROCESSES

TRIANGLE = torch.tensor([[0, 1], [1, 2], [2, 0]])
QUICK = ["network.channels=8", "network.blocks=1", "network.modes=12", "network.places=3", "trainer.steps=4"]
QUICK += ["trainer.batch_size=4", "trainer.checkpoint_every=2", "process.K=10", "sampling.steps=5", "engine.device=cpu"]


def ball(n: int = 60) -> tuple[np.ndarray, np.ndarray]:
    place = np.arange(n) + 0.5
    z, angle = 1 - 2 * place / n, math.pi * (3 - math.sqrt(5)) * place
    nodes = np.stack([np.sqrt(1 - z**2) * np.cos(angle), np.sqrt(1 - z**2) * np.sin(angle), z], 1)
    return nodes, ConvexHull(nodes).simplices.astype(np.int64)


def mesh_domain(channels: int = 1, n: int = 60) -> GraphDomain:
    positions, faces = (torch.from_numpy(part) for part in ball(n))
    return GraphDomain((channels, n), positions=positions, faces=faces)


def hills(count: int, nodes: np.ndarray, seed: int = 0) -> np.ndarray:
    """A warm place somewhere on each ball, in degrees."""
    centres = np.random.default_rng(seed).standard_normal((count, 3))
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    return 40 * np.exp(3 * (centres @ nodes.T - 1)) - 10


@pytest.fixture
def saved(tmp_path) -> Path:
    nodes, faces = ball()
    fields = hills(30, nodes)
    arrays = {"train": fields[:24], "test": fields[24:], "positions": nodes, "faces": faces}
    np.savez(tmp_path / "hills.npz", train_labels=np.arange(24) % 2, test_labels=np.arange(6) % 2, **arrays)
    return tmp_path / "hills.npz"


# The domain


def test_a_domain_is_what_its_tensors_and_range_are():
    one = GraphDomain((1, 3), (0.0,), (2.0,), TRIANGLE)
    assert one == GraphDomain((1, 3), (0.0,), (2.0,), TRIANGLE.clone()) and hash(one) == hash(one)
    others = [
        GraphDomain((1, 3), (0.0,), (3.0,), TRIANGLE),
        GraphDomain((1, 3), (0.0,), (2.0,), TRIANGLE[:2]),
        GraphDomain((1, 3), (0.0,), (2.0,), TRIANGLE, torch.ones(3)),
        ImageDomain((1, 3, 3)),
    ]
    assert all(one != other for other in others)
    assert one.words == "3 nodes of a graph" and mesh_domain(2).words == "60 nodes of a mesh in 2 channels"
    assert one.data_settings() == {"kind": "graphs", "size": (3,), "channels": 1, "range": (0.0, 2.0)}
    apart = GraphDomain((1, 4), edges=TRIANGLE)
    assert apart.words == "4 nodes of a graph, in 2 parts that are not connected"
    assert bool((apart.laplacian.eigenvalues[:2] == 0).all())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"shape": (1, 3, 3)}, "channels and nodes"),
        ({"low": (0.0, 0.0)}, "as many values in low and high, not 2 and 1"),
        ({"high": (-1.0,)}, "not a range"),
        ({"high": (math.nan,)}, "not a range"),
        ({"edges": None}, "either edges, or positions and faces"),
        ({"faces": TRIANGLE}, "either edges, or positions and faces"),
        ({"edges": None, "faces": torch.tensor([[0, 1, 2]])}, "need the positions"),
        (
            {"edges": None, "faces": torch.tensor([[0, 1, 2]]), "positions": torch.eye(3), "weights": torch.ones(3)},
            "mesh",
        ),
        ({"positions": torch.zeros(4, 3)}, "4 positions for 3 nodes"),
        ({"edges": TRIANGLE + 1}, "only the nodes 0 to 2"),
        ({"weights": -torch.ones(3)}, "above 0"),
    ],
)
def test_what_is_no_domain_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        GraphDomain(**({"shape": (1, 3), "low": (0.0,), "high": (1.0,), "edges": TRIANGLE} | change))


def test_a_mesh_is_blurred_in_units_of_the_distance_of_its_nodes():
    """As pixels are for images: so the settings of processes mean the same."""
    small = mesh_domain()
    large = dataclasses.replace(small, positions=100 * small.positions)
    torch.testing.assert_close(small.laplacian.eigenvalues, large.laplacian.eigenvalues)
    assert small.laplacian.side == pytest.approx(math.pi / math.sqrt(2 * 4 * math.pi / 60), rel=0.05)


def test_a_laplacian_has_its_numbers_where_nothing_has_memory():
    domain = mesh_domain()
    with torch.device("meta"):
        found = domain.laplacian
    assert found.eigenvalues.device.type == "cpu"
    torch.testing.assert_close(found.eigenvalues, mesh_domain().laplacian.eigenvalues)


def test_files_are_in_the_units_of_the_data(tmp_path):
    domain, u = GraphDomain((2, 3), (-5.0, 0.0), (5.0, 100.0), TRIANGLE), torch.linspace(0.1, 0.9, 6).view(2, 3)
    domain.write(u, tmp_path / "0.npy")
    written = np.load(tmp_path / "0.npy")
    np.testing.assert_allclose(written, np.stack([10 * u[0] - 5, 100 * u[1]]), atol=1e-4)
    torch.testing.assert_close(domain.scaled(torch.from_numpy(written)).float(), u)


def test_colours_go_through_all_anchors():
    steps = torch.linspace(0, 1, len(COLOURS)).view(1, 1, 1, -1)
    torch.testing.assert_close(colours(steps)[0, :, 0].T, COLOURS)
    torch.testing.assert_close(colours(torch.tensor([-1.0, 2.0]).view(1, 1, 1, 2))[0, :, 0].T, COLOURS[[0, -1]])
    rgb = torch.rand(1, 3, 2, 2)
    assert colours(rgb).equal(rgb)


def test_a_globe_shows_its_near_side_on_the_left_and_the_far_one_on_the_right():
    domain = mesh_domain(3, 400)
    x, y, z = (domain.positions.T.float() + 1) / 2
    page = domain.pictures(torch.stack([x, y, z])[None])[0]
    assert page.shape == (3, SIZE, 2 * SIZE)
    middle, quarter, half = SIZE // 2, SIZE // 4, 0.5
    left, right = page[:, middle, middle], page[:, middle, SIZE + middle]
    torch.testing.assert_close(left, torch.tensor([1, half, half]), atol=0.06, rtol=0)
    torch.testing.assert_close(right, torch.tensor([0, half, half]), atol=0.06, rtol=0)
    assert page[1, middle, quarter] < half < page[1, middle, SIZE - quarter]  # from the near side y grows to the right
    assert page[1, middle, SIZE + quarter] > half > page[1, middle, 2 * SIZE - quarter]  # and from behind to the left
    assert page[2, quarter, middle] > half * 0.8 > page[2, SIZE - quarter, middle]  # north is up
    assert bool((page[:, 0, 0] == 1).all())  # nothing is white


def test_of_what_lies_behind_one_another_the_nearest_is_seen():
    positions = torch.tensor([[x, y, z] for x in (0.0, 1.0) for y, z in ((-1, -1), (1, -1), (0, 1))])
    for faces in ([[0, 1, 2], [3, 4, 5]], [[3, 4, 5], [0, 1, 2]]):
        domain = GraphDomain((1, 6), positions=positions, faces=torch.tensor(faces))
        page = domain.pictures(torch.tensor([[[0.0, 0, 0, 1, 1, 1]]]))[0]
        near, far = page[:, SIZE // 2, SIZE // 2], page[:, SIZE // 2, SIZE + SIZE // 2]
        torch.testing.assert_close(torch.stack([near, far]), COLOURS[[-1, 0]])
        assert domain.parts == 2


def test_a_graph_is_drawn_by_its_points_or_in_the_order_of_its_slowest_wave():
    edges = torch.stack([torch.arange(9), torch.arange(1, 10)], 1)
    line = torch.stack([torch.zeros(10), torch.arange(10.0), torch.zeros(10)], 1)
    u = torch.linspace(0, 1, 10).view(1, 1, 10)
    points = GraphDomain((1, 10), edges=edges, positions=line).pictures(u)[0]
    assert points.shape == (3, SIZE, 2 * SIZE)
    torch.testing.assert_close(points[:, SIZE // 2, 1], COLOURS[0])
    torch.testing.assert_close(points[:, SIZE // 2, SIZE + 1], COLOURS[-1])  # from behind
    shuffled = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    rows = GraphDomain((1, 10), edges=shuffled[edges]).pictures(torch.empty(1, 1, 10).index_copy(2, shuffled, u))[0]
    assert rows.shape == (3, 4, 4) and bool((rows.flatten(1)[:, 10:] == 1).all())
    found, forward = rows.flatten(1)[:, :10], colours(u[:, :, None])[0, :, 0]
    assert torch.allclose(found, forward) or torch.allclose(found, forward.flip(1))


# Data


def test_an_npz_file_has_fields_and_what_they_are_on(saved):
    images = load_images(DataConfig(kind="graphs", source=str(saved), labels=True))
    fields = np.load(saved)
    assert images.train.shape == (24, 1, 60) and images.held_out.shape == (6, 1, 60)
    assert float(images.train.min()) == 0 and float(images.train.max()) == 1 and images.train.dtype == torch.float32
    values = images.domain.values(images.train)[:, 0]
    np.testing.assert_allclose(values, fields["train"], atol=1e-4)
    assert images.labels.names == ("0", "1") and images.train_labels.tolist() == [0, 1] * 12
    assert images.domain == data_domain(DataConfig(kind="graphs", source=str(saved)))
    assert images.name == "hills.npz"


def test_without_a_test_split_some_are_set_aside_and_edges_will_do(tmp_path):
    fields = np.random.default_rng(0).normal(size=(20, 2, 3))
    np.savez(tmp_path / "a.npz", train=fields, edges=TRIANGLE.numpy().astype(np.int32), weights=[1, 2, 3])
    images = load_images(DataConfig(kind="graphs", source=str(tmp_path / "a.npz"), holdout=0.25, size=(3,), channels=2))
    assert len(images.train) == 15 and len(images.held_out) == 5
    assert images.domain.high == tuple(fields.max((0, 2)))
    assert images.domain.weights.tolist() == [1, 2, 3]
    other = dataclasses.replace(images, own_domain=dataclasses.replace(images.domain, weights=None))
    assert images.fingerprint() != other.fingerprint()  # a run is not continued on another graph


def test_other_fields_on_the_same_graph_are_brought_to_the_range_of_a_model(tmp_path, capsys):
    fields = np.random.default_rng(0).normal(size=(20, 2, 3))
    for name, arrays in {
        "own": {"train": fields, "edges": TRIANGLE.numpy()},
        "others": {"train": fields / 2 + 0.1, "edges": TRIANGLE.numpy()},
        "far": {"train": fields + 100, "edges": TRIANGLE.numpy()},
        "elsewhere": {"train": fields, "edges": TRIANGLE.numpy()[:2]},
    }.items():
        np.savez(tmp_path / f"{name}.npz", **arrays)
    domain = load_images(DataConfig(kind="graphs", source=str(tmp_path / "own.npz"))).domain
    model = SimpleNamespace(config=SimpleNamespace(domain=domain))
    own, others = (images_for(model, str(tmp_path / f"{name}.npz")) for name in ("own", "others"))
    assert own.domain == others.domain == domain and not capsys.readouterr().err
    torch.testing.assert_close(domain.values(others.train), domain.values(own.train) / 2 + 0.1, atol=1e-6, rtol=0)
    assert images_for(model, str(tmp_path / "far.npz")).train.min() == 1
    assert "114 of 114 values lie outside" in capsys.readouterr().err
    with pytest.raises(UsageError, match="3 nodes of a graph in 2 channels, but not of the same one"):
        images_for(model, str(tmp_path / "elsewhere.npz"))


GOOD = {"train": np.arange(12.0).reshape(4, 3), "edges": TRIANGLE.numpy()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train": None}, "has no array named train, only: edges"),
        ({"edges": None}, "either edges, or positions and faces"),
        ({"edges": np.array([[0, 3]])}, "edge 0 is 0, 3, but there are only the nodes 0 to 2"),
        ({"weights": np.array([1.0, -2.0, 1.0])}, "the weight of edge 1 is -2"),
        ({"weights": np.array(["a", "b", "c"])}, "a number for each of 3 edges"),
        ({"weigths": np.ones(3)}, "unknown array 'weigths'; did you mean 'weights'"),
        ({"train": np.array([[0, 1, np.nan], [0, 1, 2]])}, "train has nan at node 2 of field 0"),
        ({"test": np.ones((2, 4))}, "test has fields of"),
        ({"train": np.ones((4, 3))}, "all values of channel 0 are 1"),
        ({"train": np.array([["a", "b", "c"]])}, "expected numbers"),
        ({"train": np.ones(3)}, "expected (N, n)"),
        ({"positions": np.zeros((2, 3))}, "2 positions for 3 nodes"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(change, message, tmp_path):
    arrays = {name: array for name, array in (GOOD | change).items() if array is not None}
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(IhdmError) as refused:
        load_images(DataConfig(kind="graphs", source=str(tmp_path / "a.npz")))
    assert message in str(refused.value) and "a.npz" in str(refused.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": (4,)}, "on 3 nodes, but data.size=4 is asked for"),
        ({"channels": 3}, "of 1 channels on 3 nodes, but data.channels=3 is asked for"),
        ({"source": "."}, "read from an npz file"),
        ({"source": ""}, "no data given"),
        ({"memory": "no"}, "data.memory=no is for images"),
        ({"on_error": "skip"}, "data.on_error=skip is for images"),
        ({"labels": True}, "has no labels"),
        ({"range": (0.0, 1.0, 0.0, 1.0)}, "of 1 channels, but data.range has 2 pairs of numbers; give one for each"),
        ({"range": (0.0, 1.0, 2.0)}, "data.range is two numbers"),
        ({"range": (0.0, 1.0, 2.0, 2.0)}, "data.range is two numbers"),
    ],
)
def test_what_is_wrong_with_settings_is_said(change, message, tmp_path):
    np.savez(tmp_path / "a.npz", **GOOD)
    with pytest.raises(UsageError, match=message):
        load_images(DataConfig(**({"kind": "graphs", "source": str(tmp_path / "a.npz")} | change)))


def test_a_file_that_is_one_array_or_none_is_refused(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"no archive")
    with pytest.raises(IhdmError, match="cannot be read"):
        load_images(DataConfig(kind="graphs", source=str(tmp_path / "a.npz")))
    with open(tmp_path / "b.npz", "wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(IhdmError, match="is one array"):
        load_images(DataConfig(kind="graphs", source=str(tmp_path / "b.npz")))


def test_the_globes_data_are_those_of_the_map_at_the_places_of_nodes():
    example = runpy.run_path(str(Path(__file__).parent.parent / "examples" / "globe_data.py"))
    nodes, faces = example["sphere"](300)
    assert len(faces) == 2 * 300 - 4 and GraphDomain((1, 300), positions=nodes, faces=faces).parts == 1
    longitudes, latitudes = 20 + 2.5 * np.arange(144), -90 + 2.5 * np.arange(73)
    east, north = np.radians(longitudes), np.radians(latitudes)[:, None]
    x, y, z = np.cos(east) * np.cos(north), np.sin(east) * np.cos(north), np.sin(north) + 0 * east
    found = example["at_nodes"](np.stack([x, y, z]), longitudes, latitudes, nodes)
    np.testing.assert_allclose(found, nodes.T, atol=0.002)


def test_frequencies_are_degrees_on_a_sphere_and_radians_elsewhere():
    nodes, faces = runpy.run_path(str(Path(__file__).parent.parent / "examples" / "globe_data.py"))["sphere"](300)
    globe = GraphDomain((1, 300), positions=7 * nodes + [1, 2, 3], faces=faces)
    frequency = (-globe.laplacian.eigenvalues[:16]).sqrt()
    degrees = [degree for degree in range(4) for _ in range(2 * degree + 1)]
    torch.testing.assert_close(globe.frequencies(frequency), torch.tensor(degrees).double(), atol=0.05, rtol=0.02)
    assert globe.frequency_words == "degree l"
    others = (
        GraphDomain((1, 300), positions=nodes * [1, 1, 1.1], faces=faces),
        GraphDomain((1, 300), positions=nodes, faces=faces[1:]),
        GraphDomain((1, 3), edges=[(0, 1), (1, 2)], positions=np.eye(3)),
    )
    for domain in others:
        assert domain.frequencies(frequency).equal(frequency) and domain.frequency_words.endswith("radians / node")


# The network


def test_neighbours_are_added_up_alike_by_a_matrix_and_by_edges(monkeypatch):
    laplacian, x = mesh_domain().laplacian, torch.randn(2, 5, 60)
    matrix = Surroundings(laplacian, 10)
    monkeypatch.setattr(network_file, "MATRIX_MOST", 10)
    edges = Surroundings(laplacian, 10)
    assert edges._matrix is None
    torch.testing.assert_close(edges.neighbours(x), matrix.neighbours(x))
    blank = torch.ones(1, 1, 4)
    square = Surroundings(graph.GraphLaplacian(4, [(0, 1), (1, 2), (2, 3), (3, 0)]), 4)
    torch.testing.assert_close(square.neighbours(blank), blank)


def test_heat_in_a_block_is_the_heat_equation():
    laplacian, x = mesh_domain().laplacian, torch.randn(2, 3, 60)
    t = torch.tensor([0.5, 2.0, 9.0])
    found = Surroundings(laplacian, 60).heat(x, t.log())
    for channel in range(3):
        expected = laplacian.dissipate(x[:, channel : channel + 1], float(t[channel]))
        torch.testing.assert_close(found[:, channel : channel + 1], expected, atol=1e-5, rtol=1e-4)


def test_an_untrained_network_answers_nothing_and_knows_labels_and_places():
    torch.manual_seed(0)
    network = GraphNet(mesh_domain().laplacian, 1, 8, 2, 20, 4, labels=3).eval()
    u, k = torch.randn(4, 1, 60), torch.tensor([1, 2, 3, 4])
    assert not bool(network(u, k).any())
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    told = network(u, k, torch.tensor([0, 1, 2, 3]))
    assert not torch.allclose(told[:3], network(u, k)[:3]) and torch.allclose(told[3], network(u, k)[3])
    with pytest.raises(UsageError, match="takes no condition"):
        GraphNet(mesh_domain().laplacian, 1, 8, 1)(u, k, k)
    cycle = graph.GraphLaplacian(12, [(i, (i + 1) % 12) for i in range(12)])
    for places, alike in ((0, True), (2, False)):
        network = GraphNet(cycle, 1, 8, 2, 12, places).eval()
        for weight in network.parameters():
            torch.nn.init.normal_(weight, std=0.3)
        wave = torch.randn(1, 1, 12)
        turned = network(wave.roll(3, -1), torch.tensor([2])).roll(-3, -1)
        assert torch.allclose(turned, network(wave, torch.tensor([2])), atol=1e-5) == alike


def test_parts_that_are_not_connected_have_no_one_colour_to_start_from():
    domain = GraphDomain((1, 4), edges=torch.tensor([[0, 1], [2, 3]]))
    config = Config().with_settings(["process.kind=cold", "network.kind=graph"])
    with pytest.raises(UsageError, match="in 2 parts"):
        Model.from_images(ModelConfig.of(config, domain), torch.rand(6, 1, 4))
    config = Config().with_settings(["network.kind=graph", "network.channels=8", "process.K=4"])
    sampled = Model.from_images(ModelConfig.of(config, domain), torch.rand(6, 1, 4)).sample(2)
    assert sampled.shape == (2, 1, 4)


def test_differences_between_blurs_are_those_of_float32_in_bfloat16_too():
    cycle = graph.GraphLaplacian(600, [(i, (i + 1) % 600) for i in range(600)])
    network, u = GraphNet(cycle, 1, 8, 1).eval(), cycle.dissipate(torch.randn(2, 1, 600), 50.0).bfloat16()
    found, expected = network._details(u).float(), network._details(u.float())
    assert float((found - expected).norm() / expected.norm()) < 0.005  # rounding of the result alone


def test_a_network_is_described_in_words():
    said = [GraphNet.words(GraphNet.Settings(blocks=blocks), mesh_domain()) for blocks in (1, 2)]
    assert ", 1 block, heat along 60 eigenvectors" in said[0] and ", 2 blocks, heat" in said[1]


def test_networks_are_refused_where_they_do_not_belong():
    config = Config().with_settings(["network.kind=graph"])
    with pytest.raises(UsageError, match="for graphs, not for images"):
        build_network(ModelConfig.of(config, (1, 8, 8)))
    with pytest.raises(UsageError, match="for grids, not for graphs"):
        build_network(ModelConfig.of(Config(), mesh_domain()))


# All together


@pytest.mark.parametrize("kind", list(PROCESSES))
@pytest.mark.parametrize("modes", [None, 12])
def test_every_process_trains_and_samples_on_a_mesh(kind, modes, monkeypatch):
    if modes:
        monkeypatch.setattr(graph, "DENSE_MOST", 20)
        monkeypatch.setattr(graph, "USUAL_MODES", modes)
    domain = mesh_domain()
    u_0 = domain.scaled(torch.from_numpy(hills(16, domain.positions.numpy()))[:, None] / 40 + 0.25).clamp(0, 1).float()
    config = Config().with_settings([f"process.kind={kind}", "process.K=8", "network.kind=graph", *QUICK[:4]])
    model = Model.from_images(ModelConfig.of(config, domain), u_0)
    process = model.process
    k, eps = process.draw(u_0.shape, torch.Generator().manual_seed(0))
    loss = process.loss(model.network, u_0, k, eps)
    assert loss.shape == (16,) and bool(loss.isfinite().all())
    samples = model.sample(3, seed=1)
    assert samples.shape == (3, 1, 60) and bool(samples.isfinite().all())
    assert domain.laplacian.modes == (modes or 60)


@pytest.mark.parametrize("known", [Labels(), Labels(("cold", "hot"), (4, 4))], ids=["without labels", "with labels"])
@pytest.mark.parametrize("matrix", [True, False])
def test_a_model_is_exported_for_any_number_of_fields(matrix, known, monkeypatch):
    """Its programs, traced with two, do what it does with one, two and three, whatever the guidance."""
    monkeypatch.setattr(network_file, "MATRIX_MOST", 100 if matrix else 10)
    config = Config().with_settings(["process.K=4", "network.kind=graph", *QUICK[:4]])
    described = ModelConfig.of(config, mesh_domain(), labels=known)
    model = Model.from_images(described, torch.rand(8, 1, 60), torch.arange(8) % 2 if known else None).eval()
    for weight in model.network.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    for program in programs(model).values():
        assert program.difference(program.traced().module()) < 1e-5, program.name


def test_train_resume_sample_and_info(saved, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = ["--set", *QUICK, "sampling.steps=5"]

    def typed(*words: str) -> str:
        assert main([str(word) for word in words]) in (None, 0)
        return capsys.readouterr().out

    assert "60 nodes of a mesh" in typed("info", "globe", "--data", saved, *settings)
    said = typed("train", "globe", "--data", saved, "--run", "run", *settings)
    assert "24 fields with 2 labels, 60 nodes of a mesh" in said
    assert "continuing from step 4 of 6" in typed(
        "train", "globe", "--data", saved, "--run", "run", *settings, "trainer.steps=6"
    )
    folder = tmp_path / "run" / "model"
    tree = json.loads((folder / "config.json").read_text())
    assert tree["domain"]["kind"] == "graphs" and len(tree["domain"]["low"]) == 1
    assert read_config(folder).domain == data_domain(DataConfig(kind="graphs", source=str(saved)))
    typed("sample", "run", "--n", "3", "--grid", "g.png", "--gif", "g.gif", "--out", "fields", "--label", "1")
    assert Image.open("g.png").width > 2 * SIZE and Image.open("g.gif").n_frames == 6
    written = np.stack([np.load(file) for file in sorted(Path("fields").iterdir())])
    assert written.shape == (3, 1, 60) and written.min() >= -10 and written.max() <= 30
    said = typed("info", "run")
    assert "60 nodes of a mesh" in said and "2: 0, 1" in said and "network.pyramid" not in said
    torch.testing.assert_close(
        torch.from_numpy(written),
        read_config(folder).domain.values(Model.from_pretrained("run").sample(3, labels="1")).float(),
    )
    typed("restore", "run", "fields/000000.npy", "--blur-width", "2", "--n", "2", "--out", "r")
    names = sorted(path.name for path in Path("r").iterdir())
    assert names == ["00.npy", "01.npy", "input.npy", "restored.png"]
    np.testing.assert_allclose(np.load("r/input.npy"), written[0], atol=1e-4)
    with pytest.raises(SystemExit):
        main(["calibrate", "run", "--data", str(saved)])
    assert "networks on graphs have none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((2, 60)), "2 channels on 60 nodes, but the model's fields have 1 on 60"),
        (np.zeros(59), "1 channels on 59 nodes"),
        (np.zeros((1, 1, 60)), "holds no single field"),
        (np.full(60, np.nan), "expected numbers"),
    ],
)
def test_one_field_that_does_not_fit_is_refused(array, message, tmp_path):
    np.save(tmp_path / "field.npy", array)
    with pytest.raises(IhdmError, match=message):
        read_one(tmp_path / "field.npy", mesh_domain(), resize=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tree: tree["domain"].pop("low"), "low"),
        (lambda tree: tree["domain"].update(low=["a"]), "could not convert"),
        (lambda tree: tree["domain"].update(peak=1), "fields have no peak"),
        (lambda tree: tree.update(shape=[1, 61]), "60 positions for 61 nodes"),
    ],
)
def test_a_changed_model_folder_is_refused(change, message, tmp_path):
    config = Config().with_settings(["network.kind=graph", "process.kind=ddpm", *QUICK[:4]])
    model = Model.from_images(ModelConfig.of(config, mesh_domain()), torch.rand(4, 1, 60))
    model.save_pretrained(tmp_path)
    assert Model.from_pretrained(tmp_path).config.domain == mesh_domain()
    tree = json.loads((tmp_path / "config.json").read_text())
    change(tree)
    (tmp_path / "config.json").write_text(json.dumps(tree))
    with pytest.raises(IhdmError, match=message):
        read_config(tmp_path)


def test_a_damaged_graph_is_read_or_refused_in_words(tmp_path):
    config = Config().with_settings(["network.kind=graph", "process.kind=ddpm", *QUICK[:4]])
    Model.from_images(ModelConfig.of(config, mesh_domain()), torch.rand(4, 1, 60)).save_pretrained(tmp_path)
    file, random = tmp_path / "domain.safetensors", np.random.default_rng(0)
    whole = np.frombuffer(file.read_bytes(), np.uint8)
    refused = 0
    for _ in range(40):
        changed = whole.copy()
        changed[random.integers(len(whole), size=3)] = random.integers(256, size=3)
        file.write_bytes(changed.tobytes())
        try:
            Model.from_pretrained(tmp_path)
        except IhdmError:
            refused += 1
    assert 0 < refused < 40
