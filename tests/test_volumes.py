"""Volumes, from files to samples, and orbitals, which are made here."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

from ihdm import evaluation, hub
from ihdm.card import card
from ihdm.cli import main
from ihdm.config import Config, DataConfig, load_config
from ihdm.data import ImageSet, data_domain, load_images
from ihdm.data.orbitals import KINDS, orbitals
from ihdm.data.volumes import read_one
from ihdm.domains import VolumeDomain
from ihdm.errors import IhdmError, UsageError
from ihdm.evaluation.quality import check_images, check_kind, usual_metrics
from ihdm.heat import GridLaplacian, resized
from ihdm.model import Model
from ihdm.model_folder import ModelConfig
from ihdm.trainer import Trainer

TINY = [
    *(
        "data.labels=false",
        "process.K=8",
        "sampling.sampler=exact",
        "sampling.steps=4",
        "network.channels=4",
        "network.multipliers=1,2",
        "network.attention=1",
    ),
    *("network.pyramid=none", "trainer.steps=4", "trainer.batch_size=4", "trainer.checkpoint_every=2"),
    *("trainer.sample_every=4", "trainer.samples=2", "trainer.warmup=1", "engine.device=cpu"),
]
TINY_WORDS = [word for setting in TINY for word in ("--set", setting)]


@pytest.fixture(scope="module")
def cubes(tmp_path_factory):
    """A file of cubes of other places and brightness, from -3 (empty) to 5, 6 x 5 x 7."""
    path = tmp_path_factory.mktemp("data") / "cubes.npy"
    generator = torch.Generator().manual_seed(0)
    values = np.full((60, 6, 5, 7), -3.0, dtype=np.float32)
    for volume, (z, y, x) in zip(values, torch.randint(0, 3, (60, 3), generator=generator).tolist()):
        volume[z : z + 3, y : y + 3, x : x + 3] = 1.0 + z + 2 * (y == 1)
    np.save(path, values)
    return path


def config(source, **others) -> DataConfig:
    return DataConfig(source=str(source), kind="volumes", **others)


# The domain


def test_a_volume_is_kept_in_its_range_and_written_in_it(tmp_path):
    domain = VolumeDomain((2, 3, 4, 5), -3, 5)
    assert domain.words == "3x4x5 in 2 channels, values from -3 to 5" and domain.laplacian.grid == (3, 4, 5)
    assert VolumeDomain((1, 3, 4, 5)).words == "3x4x5 in one channel"
    u = torch.rand(2, 3, 4, 5)
    domain.write(domain.kept(u), tmp_path / "one.npy")
    written = np.load(tmp_path / "one.npy")
    assert written.dtype == np.float32 and written.shape == (2, 3, 4, 5)
    np.testing.assert_allclose(written, -3 + 8 * u.numpy(), rtol=1e-6)
    torch.testing.assert_close(domain.scaled(torch.from_numpy(written)), u)
    assert VolumeDomain.restored(domain.shape, domain.tree(), {}) == domain
    assert domain.kept(torch.tensor([-1.0, 2.0])).tolist() == [0, 1]


@pytest.mark.parametrize("tree", [{"low": 0.0}, {"low": 1.0, "high": 1.0}, {"low": 0, "high": math.nan}, {"lo": 0}])
def test_a_range_that_is_none_is_refused(tree):
    with pytest.raises((ValueError, KeyError)):
        VolumeDomain.restored((1, 2, 2, 2), tree, {})


def test_a_volume_has_four_axes():
    with pytest.raises(ValueError, match="channels, depth, height and width"):
        VolumeDomain((1, 4, 4))


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_a_picture_shows_what_is_in_front_and_all_slices(channels):
    domain = VolumeDomain((channels, 8, 6, 4))
    empty, ball = torch.zeros(2, channels, 8, 6, 4)
    ball[0, 2:6, 2:4, 1:3] = 1
    shown = domain.pictures(torch.stack([empty, ball]))
    assert shown.shape == (2, 3, 64, 128) and float(shown.min()) >= 0 and float(shown.max()) <= 1
    assert float(shown[0].abs().max()) == 0 and float(shown[1, :, :, :64].max()) > 0.5
    front = shown[1, :, 24:40, 24:40].mean()
    assert front > 2 * shown[1, :, :8, :8].mean()  # it is in the middle of the view
    quarters = [part for half in shown[1, :, :, 64:].split(32, 1) for part in half.split(32, 2)]
    depths = [bool(ball[0, int(share * 8)].any()) for share in (0.2, 0.4, 0.6, 0.8)]
    assert [bool(part.max() > 0) for part in quarters] == depths == [False, True, True, False]
    assert domain.pictures(torch.zeros(0, channels, 8, 6, 4)).shape == (0, 3, 64, 128)


def test_what_is_in_front_hides_what_is_behind():
    volume = torch.zeros(1, 2, 16, 16, 16)
    volume[0, 0, 3:6, 2:14, 2:14] = 1  # a wall in the first colour before one in the second
    volume[0, 1, 10:13, 2:14, 2:14] = 1
    (one,), (other,) = (VolumeDomain((2, 16, 16, 16)).pictures(v)[:, :, 28:36, 28:36] for v in (volume, volume.flip(2)))
    assert one[0].mean() > 2 * one[2].mean() and other[2].mean() > 2 * other[0].mean()  # orange, then blue


# Reading


def test_the_least_and_the_largest_training_value_become_0_and_1(cubes):
    images = load_images(config(cubes), held_out_most=None)
    assert images.domain == VolumeDomain((1, 6, 5, 7), -3, 5) == data_domain(config(cubes))
    assert (len(images.train), len(images.held_out), images.name) == (57, 3, "cubes.npy")
    assert images.train.dtype == torch.float32 and float(images.train.min()) == 0 and float(images.train.max()) == 1
    values = images.domain.values(images.train)
    assert sorted(values.unique().round(decimals=4).tolist()) == [-3, 1, 2, 3, 4, 5]


def test_values_outside_of_a_given_range_are_cut_off_and_said(cubes, capsys):
    images = load_images(config(cubes, range=(-1.0, 3.0)), held_out_most=None)
    assert images.domain == VolumeDomain((1, 6, 5, 7), -1, 3) and float(images.train.max()) == 1
    settings = images.domain.data_settings()
    assert data_domain(DataConfig(source=str(cubes), **settings)) == images.domain
    assert "values lie outside of -1 to 3" in capsys.readouterr().err


def test_folders_of_files_have_splits_channels_and_labels(tmp_path):
    for split, count in (("train", 3), ("test", 1)):
        for kind in ("cup", "jug"):
            (tmp_path / split / kind).mkdir(parents=True)
            for i in range(count):
                np.save(tmp_path / split / kind / f"{i}.npy", np.full((2, 3, 4, 5), i + 3 * (kind == "jug"), np.uint8))
    images = load_images(config(tmp_path, labels=True), held_out_most=None)
    assert images.domain == VolumeDomain((2, 3, 4, 5), 0, 5) and images.shape == (2, 3, 4, 5)
    assert images.labels.names == ("cup", "jug") and images.train_labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert images.held_out_labels.tolist() == [0, 1] and images.train[-1].unique().tolist() == [1]
    assert images.train[:, 0, 0, 0, 0].tolist() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])


def test_an_npz_file_has_splits_and_labels(tmp_path):
    path, one = tmp_path / "both.npz", np.arange(24, dtype=np.int16).reshape(1, 2, 3, 4)
    np.savez(path, x_train=np.repeat(one, 4, 0), y_train=np.array([7, 8, 7, 8]), x_test=one, y_test=np.array([8]))
    images = load_images(config(path, labels=True), held_out_most=None)
    assert images.labels.names == ("7", "8") and images.held_out_labels.tolist() == [1]
    assert len(images.train) == 4 and len(images.held_out) == 1 and images.domain.high == 23


def test_volumes_of_several_sizes_are_brought_to_one_by_the_cosine_basis(tmp_path):
    laplacian = GridLaplacian((8, 8, 8))
    u_hat = torch.zeros(1, 1, 8, 8, 8, dtype=torch.float64)
    u_hat[..., :3, :3, :3] = torch.randn(3, 3, 3, dtype=torch.float64)
    smooth = laplacian.from_spectrum(u_hat)
    small = resized(smooth, (4, 5, 6))
    assert small.shape == (1, 1, 4, 5, 6)
    torch.testing.assert_close(small.mean(), smooth.mean())  # grey stays the same grey
    torch.testing.assert_close(resized(small, (8, 8, 8)), smooth)  # what both grids hold is not lost
    for number, volume in enumerate((smooth, small)):
        np.save(tmp_path / f"{number}.npy", volume[0, 0].numpy())
    with pytest.raises(UsageError, match=r"differ in shape: .*0.npy is 1x8x8x8 and .*1.npy is 1x4x5x6"):
        load_images(config(tmp_path))
    images = load_images(config(tmp_path, size=(4, 5, 6), holdout=0.0), held_out_most=None)
    assert images.train.shape == (2, 1, 4, 5, 6)
    torch.testing.assert_close(images.train[0], images.train[1], atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.zeros((5, 4, 4)), r"has shape \(5, 4, 4\); expected \(N, D, H, W\), or \(N, C, D, H, W\)"),
        (np.zeros((2, 3, 0, 4, 4)), "has shape"),
        (np.full((2, 4, 4, 4), np.nan), "not finite"),
        (np.zeros((2, 4, 4, 4)), "all values .* are 0: there is nothing to learn"),
        (np.zeros((2, 4, 4, 4), dtype=complex), "holds complex128"),
        (np.full((2, 4, 4, 4), "a"), "holds <U1"),
        (np.array([{}] * 2), "cannot be read as a NumPy array"),
    ],
)
def test_what_is_no_volume_is_refused(tmp_path, content, message):
    np.save(tmp_path / "some.npy", content, allow_pickle=True)
    with pytest.raises(IhdmError, match=message):
        load_images(config(tmp_path / "some.npy"))


def test_what_volumes_cannot_be_read_from_is_refused(tmp_path, cubes, monkeypatch):
    monkeypatch.delenv("IHDM_DATA", raising=False)  # where mnist may be
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("none")
    (tmp_path / "text" / "b.npy").write_text("none")
    (tmp_path / "no.npy").write_text("none")
    for source, message in (
        ("nowhere.npy", "there is no nowhere.npy"),
        ("hf:some/set", "hf:some/set is not a set of volumes"),
        ("digits", "digits is not a set of volumes"),
        ("mnist", "mnist is not a set of volumes"),
        ("", "no data given"),
        (tmp_path / "text" / "a.txt", "volumes are read from an npy or npz file"),
        (tmp_path / "text", "b.npy cannot be read as a NumPy array"),
        (tmp_path / "no.npy", "cannot be read as a NumPy array"),
    ):
        with pytest.raises(IhdmError, match=message):
            load_images(config(source))
    (tmp_path / "empty").mkdir()
    with pytest.raises(IhdmError, match="holds no training volumes; found: no npy files"):
        load_images(config(tmp_path / "empty"))
    for settings, message in (
        ({"memory": "no"}, "data.memory=no is for images"),
        ({"on_error": "skip"}, "data.on_error=skip is for images"),
        ({"channels": 3}, "has 1 channels, but data.channels=3"),
        ({"labels": True}, "has no labels"),
    ):
        with pytest.raises(UsageError, match=message):
            load_images(config(cubes, **settings))


@pytest.mark.parametrize(
    ("value", "kind"), [("1", "volumes"), ("2,1", "volumes"), ("0,1,2", "volumes"), ("0,1", "images")]
)
def test_a_range_is_two_numbers_of_volumes(value, kind):
    with pytest.raises(UsageError, match=r"data\.range is two numbers"):
        Config().with_settings([f"data.kind={kind}", f"data.range={value}"])
    assert Config().with_settings(["data.kind=volumes", "data.range=-1,1e3"]).data.range == (-1, 1000)


def test_one_volume_that_a_person_gives_has_the_models_shape_or_is_brought_to_its_size(tmp_path):
    domain, path = VolumeDomain((1, 4, 4, 4), -2, 2), tmp_path / "one.npy"
    values = np.linspace(-2, 2, 64, dtype=np.float32).reshape(4, 4, 4)
    np.save(path, values)
    found = read_one(path, domain, resize=False)
    torch.testing.assert_close(found, domain.scaled(torch.from_numpy(values))[None])
    smaller = VolumeDomain((1, 2, 2, 2), -2, 2)
    with pytest.raises(UsageError, match=r"is 1x4x4x4 .*, but the model's volumes are 1x2x2x2; --resize changes"):
        read_one(path, smaller, resize=False)
    assert float(read_one(path, smaller, resize=True).mean()) == pytest.approx(0.5)
    with pytest.raises(UsageError, match="but not the channels"):
        read_one(path, VolumeDomain((2, 4, 4, 4)), resize=True)


# Orbitals


def test_orbitals_are_eigenfunctions_of_the_atom():
    """Laplace psi = (Z^2 / n^2 - 2 Z / r) psi, in atomic units: by differences, away from the nucleus and the walls."""
    n = 48
    found = orbitals(12, 5, (n, n, n))
    psi = (found.volumes[:, 0] - found.volumes[:, 1]).double()
    laplace = sum(psi.roll(1, i) + psi.roll(-1, i) - 2 * psi for i in (1, 2, 3))
    axis = torch.arange(n) + 0.5 - n / 2
    r = torch.stack(torch.meshgrid(axis, axis, axis, indexing="ij")).norm(dim=0)
    inside = (r > 8) & (r < 20)
    for one, other in zip(psi, laplace):
        strong = inside & (one.abs() > 0.05)
        kinetic = (other / one)[strong]
        design = torch.stack([torch.ones_like(r), -2 / r], -1)[strong].double()  # Z^2 / n^2, and Z
        fit = torch.linalg.lstsq(design, kinetic[:, None]).solution[:, 0]
        number = math.sqrt(float(fit[1] ** 2 / fit[0]))
        assert abs(number - round(number)) < 0.15 and 1 <= round(number) <= 4
        assert float((design @ fit - kinetic).square().mean() / kinetic.var()) < 0.02


def test_orbitals_have_their_parity_and_follow_the_seed():
    found, again, others = orbitals(40, 1), orbitals(40, 1), orbitals(40, 2)
    assert torch.equal(found.volumes, again.volumes) and not torch.equal(found.volumes, others.volumes)
    psi = found.volumes[:, 0] - found.volumes[:, 1]
    assert torch.equal(psi.flatten(1).abs().amax(1), torch.ones(40)) and float(found.volumes.min()) == 0
    for one, kind in zip(psi, found.kinds.tolist()):
        parity = -1 if KINDS[kind][1] in "pf" else 1
        torch.testing.assert_close(one.flip(0, 1, 2), parity * one, atol=1e-4, rtol=0)


def test_orbitals_are_a_source_of_any_size_with_labels():
    small = load_images(DataConfig(source="orbitals", kind="volumes", size=(6, 6, 6), labels=True), held_out_most=None)
    assert small.domain == VolumeDomain((2, 6, 6, 6)) and len(small.train) == 2500 and len(small.held_out) == 500
    assert small.labels.names == ("1s", "2p", "3d", "4f") and sum(small.labels.counts) == 2500
    with pytest.raises(UsageError, match="orbitals are volumes"):
        load_images(DataConfig(source="orbitals"))
    one = orbitals(20, 0, (1, 1, 1)).volumes
    assert bool(one.isfinite().all())  # at the nucleus most are 0


# From training to samples


@pytest.fixture(scope="module")
def trained(cubes, tmp_path_factory):
    """A run of a few steps on the cubes."""
    run = tmp_path_factory.mktemp("trained") / "run"
    main(["train", "orbitals", "--data", str(cubes), "--run", str(run), *TINY_WORDS])
    return run


def test_a_preset_of_volumes_trains_goes_on_samples_and_is_described(trained, cubes, tmp_path, capsys):
    more = ["--set", "trainer.steps=6"]
    main(["train", "orbitals", "--data", str(cubes), "--run", str(trained), *TINY_WORDS, *more])
    said = capsys.readouterr().out
    assert "57 volumes, 6x5x7 in one channel, values from -3 to 5" in said and "continuing from step 4 of 6" in said
    tree = json.loads((trained / "model" / "config.json").read_text())
    assert tree["domain"] == {"kind": "volumes", "low": -3.0, "high": 5.0} and tree["shape"] == [1, 6, 5, 7]
    places = {name: str(tmp_path / name) for name in ("out", "x.png", "x.gif")}
    outputs = ["--out", places["out"], "--grid", places["x.png"], "--gif", places["x.gif"]]
    main(["sample", str(trained), "--n", "3", *outputs, "--device", "cpu"])
    written = [np.load(path) for path in sorted((tmp_path / "out").iterdir())]
    assert [path.name for path in sorted((tmp_path / "out").iterdir())] == ["000000.npy", "000001.npy", "000002.npy"]
    assert all(volume.shape == (1, 6, 5, 7) and -3 <= volume.min() < volume.max() <= 5 for volume in written)
    expected = Model.from_pretrained(trained).sample(3)
    np.testing.assert_allclose(np.stack(written), -3 + 8 * expected.numpy(), atol=1e-4)
    assert Image.open(places["x.png"]).size[0] > 128 and Image.open(places["x.gif"]).n_frames == 5
    main(["info", str(trained)])
    assert "6x5x7 in one channel, values from -3 to 5" in capsys.readouterr().out
    samples = load_images(config(tmp_path / "out", range=(-3.0, 5.0), holdout=0.0), held_out_most=None)
    torch.testing.assert_close(samples.train, expected, atol=1e-5, rtol=0)  # what was written can be read
    given, sharp = str(tmp_path / "out" / "000000.npy"), tmp_path / "sharp"
    main(["restore", str(trained), given, "--blur-width", "1", "--n", "2", "--out", str(sharp), "--device", "cpu"])
    assert sorted(path.name for path in sharp.iterdir()) == ["00.npy", "01.npy", "input.npy", "restored.png"]


def test_a_models_card_and_its_picture_on_the_hub_are_of_volumes(trained, monkeypatch):
    model = Model.from_pretrained(trained)
    text = card(model.config, model.facts())
    assert "pipeline_tag" not in text and "tags: [inverse-heat-dissipation, volumes]" in text
    assert "Volumes of 6x5x7" in text and "volumes = Model.from_pretrained" in text
    sent = {}

    class Api:
        def create_repo(self, name, **_):
            return name

        def create_commit(self, name, additions, **_):
            sent.update({file.path_in_repo: file for file in additions})

    monkeypatch.setattr("huggingface_hub.HfApi", Api)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "any")
    hub.push(trained / "model", model, "owner/cubes", model.sample(2))
    assert {"config.json", "model.safetensors", "prior.safetensors", "samples.png", "README.md"} == set(sent)


@pytest.mark.exports
def test_torch_takes_volumes_and_what_shows_images_does_not(tmp_path, capsys):
    settings = ["network.multipliers=1", "network.attention=none"]
    tiny = load_config("orbitals", [*TINY, *settings, "process.skip=identity"])
    domain = VolumeDomain((1, 3, 4, 5), -1, 2)
    torch.manual_seed(0)
    model = Model.from_images(ModelConfig.of(tiny, domain, "noise"), torch.rand(20, 1, 3, 4, 5))
    model.save_pretrained(tmp_path / "model")
    for format in ("diffusers", "web"):
        with pytest.raises(SystemExit, match="2"):
            main(["export", str(tmp_path / "model"), str(tmp_path / "out"), "--format", format])
        assert f"{format} shows images, but" in capsys.readouterr().err and not (tmp_path / "out").exists()
    main(["export", str(tmp_path / "model"), str(tmp_path / "out"), "--format", "torch"])
    said = capsys.readouterr().out
    assert "step.pt2" in said and "training volumes" in said
    tree = json.loads((tmp_path / "out" / "chain.json").read_text())
    assert tree["shape"] == [1, 3, 4, 5] and tree["domain"] == {"kind": "volumes", "low": -1, "high": 2}


# Measuring


def test_volumes_are_evaluated_without_a_network_of_images(trained, cubes, tmp_path, capsys):
    words = [str(trained), "--data", str(cubes), "--device", "cpu"]
    main(["evaluate", *words, "--n", "40", "--figures", str(tmp_path / "f"), "--json", str(tmp_path / "q.json")])
    said = capsys.readouterr().out
    assert "40 samples, seed 0, against cubes.npy train (57 volumes)\n" in said and "FID" not in said
    for row in ("Fréchet distance of modes", "nearest training volume, values", "log spectral distance"):
        assert row in said
    assert "too few held-out volumes to tell (3; at least 10 are needed)" in said
    tree = json.loads((tmp_path / "q.json").read_text())
    assert tree["modes_distance"] > 0 and tree["fid"] is None and list(tree["memorisation"]) == ["values"]
    pictures = {path.name for path in (tmp_path / "f").iterdir()}
    assert pictures == {"neighbours-values.png", "memorisation.png", "spectrum.png"}
    main(["likelihood", *words, "--n", "2", "--levels", "3"])
    said = capsys.readouterr().out
    assert "2 volumes of 210 dimensions" in said and "standard error over volumes" in said
    assert "as for 8-bit pixels, with values in [0, 1]" in said


def test_the_distance_tells_samples_from_data(trained, cubes):
    model, images = Model.from_pretrained(trained), load_images(config(cubes), held_out_most=None)
    found = evaluation.evaluate(model, images, None, 30)
    again = ImageSet("again", images.train, images.held_out, own_domain=images.domain)
    model.sample_batches = lambda *_, **__: iter([again.train])  # type: ignore[method-assign]
    same = evaluation.evaluate(model, images, None, 57, ["modes", "spectrum"])
    assert found and same and found.modes_distance is not None and same.modes_distance is not None
    assert same.modes_distance == pytest.approx(0, abs=1e-6) and same.spectral_distance == pytest.approx(0, abs=1e-6)
    assert found.modes_distance > 1


def test_what_is_for_images_is_refused_in_words(trained, cubes, capsys):
    domain = VolumeDomain((1, 6, 5, 7), -3, 5)
    assert usual_metrics(domain) == ("modes", "neighbours", "spectrum")
    assert usual_metrics(ImageSet("x", torch.zeros(1, 1, 4, 4), torch.zeros(0)).domain) == (
        *("fid", "kid", "neighbours", "spectrum"),
    )
    with pytest.raises(
        UsageError, match=r"only images have FID and KID, .*; for the model's volumes there are modes, neighbours"
    ):
        check_kind(["fid", "kid", "spectrum"], domain)
    with pytest.raises(SystemExit, match="2"):
        main(["evaluate", str(trained), "--data", str(cubes), "--metrics", "kid", "--n", "10"])
    assert "only images have KID, computed by" in capsys.readouterr().err
    images = load_images(config(cubes), held_out_most=None)
    with pytest.raises(
        UsageError, match="covariances of 20 features, and 10 volumes do not determine one; give --n 21"
    ):
        check_images(["modes"], 10, images, "train", allow_few=False)
    check_images(["modes"], 21, images, "train", allow_few=False)
    check_images(["modes"], 10, images, "train", allow_few=True)


def test_training_on_volumes_is_measured_by_modes(cubes, tmp_path):
    settings = load_config("orbitals", [*TINY, "trainer.measure_every=2", "trainer.measured=25"])
    Trainer(settings, load_images(config(cubes)), tmp_path / "run").train()
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "modes" in line] == [2, 4]
