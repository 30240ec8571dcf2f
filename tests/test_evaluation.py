from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import SafetensorError
from torch import nn

from ihdm import evaluation
from ihdm.cli import main
from ihdm.config import load_config
from ihdm.data import ImageSet, load_images
from ihdm.errors import UsageError
from ihdm.evaluation import drawings, quality, tables
from ihdm.evaluation.quality import check_images, check_metrics
from ihdm.execution import Execution
from ihdm.likelihood import ROUNDING, discrete_nll, gaussian_kl, gaussian_nll
from ihdm.metrics import inception as inception_module
from ihdm.model import Model
from ihdm.model_folder import ModelConfig
from ihdm.noise import SeededNoise
from ihdm.pixels import to_unit
from ihdm.run import settings_of
from ihdm.trainer import Trainer
from ihdm.workers import Workers

RATIOS = (1.0, 1.25)
EXACT = ["exact", "exact, L_0 by frequency", "exact, L_0 discretised"]


@pytest.fixture
def model(tiny_config, tiny_images) -> Model:
    torch.manual_seed(0)
    return disturbed(Model.from_images(ModelConfig.of(tiny_config, tiny_images.shape, "blobs"), tiny_images.train))


@pytest.fixture
def diffusion(tiny_config, tiny_images) -> Model:
    torch.manual_seed(0)
    config = tiny_config.with_settings(["process.kind=ddpm"])
    return disturbed(Model.from_images(ModelConfig.of(config, tiny_images.shape, "blobs"), tiny_images.train))


def disturbed(model: Model) -> Model:
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    return model.eval()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("IHDM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("IHDM_DATA", raising=False)


# The bound


def test_the_bound_asks_the_process_with_each_images_own_noise(model, tiny_images):
    images = tiny_images.held_out
    found = evaluation.likelihood(model, images, delta_ratio=RATIOS, seed=5, execution=Execution(batch_size=3))
    errors = all_errors(model, images, seed=5)
    assert found.images == 8 and found.levels == 10
    assert [bound.row.delta_ratio for bound in found.bounds] == [*RATIOS, None, None, None]
    for bound, by_level, ratio in zip(found.bounds, found.by_level.T, RATIOS):
        sigma, delta = model.process.sigma, ratio * model.process.sigma
        squared = errors.square().flatten(2).sum(2)
        terms = [gaussian_nll(squared[0], 64, delta), *(gaussian_kl(e, 64, sigma, delta) for e in squared[1:])]
        torch.testing.assert_close(by_level, torch.stack(terms).double().mean(1), rtol=1e-4, atol=1e-2)
        total = by_level.sum() + bound.L_K.mean()
        assert float(bound.total.mean()) == pytest.approx(float(total), rel=1e-5)
        alone = evaluation.likelihood(model, images, delta_ratio=[ratio], seed=5).bounds[0].total
        torch.testing.assert_close(bound.total, alone, rtol=1e-5, atol=0)
    other = evaluation.likelihood(model, images, delta_ratio=[ratio], seed=6).bounds[0].total
    assert not torch.allclose(bound.total, other)
    usual = evaluation.likelihood(model, images, seed=5)
    assert [bound.row.delta_ratio for bound in usual.bounds] == [1.25, None, None, None]  # the model's own


def test_the_exact_bounds_are_made_of_the_same_errors(model, tiny_images):
    """Each term from its formula, with the variances fitted to the training images that were given."""
    images, process = tiny_images.held_out, model.process
    found = evaluation.likelihood(model, images, tiny_images.train, delta_ratio=[1.0], seed=5)
    paper, *exact = found.bounds
    assert [bound.row.name for bound in exact] == EXACT
    basis, t, sigma = process.laplacian, process.schedule.t, process.sigma
    errors = torch.stack([basis.to_spectrum(e.double()) for e in all_errors(model, images, seed=5)])
    learned = basis.to_spectrum(all_errors(model, tiny_images.train, seed=5)[0].double())
    variance = learned.square().mean(0).clamp_min(ROUNDING**2)  # of grey images there is one colour axis

    levels = torch.arange(1, 11)
    a = torch.exp((t[levels] - t[levels - 1])[:, None, None] * basis.eigenvalues)[:, None, None]
    chain = ((1 - a.square()) * errors.square() / (2 * sigma**2)).flatten(2).sum(2)[1:]
    for bound, by_level in zip(exact, found.by_level.T[1:]):
        torch.testing.assert_close(bound.chain, chain.sum(0), rtol=1e-4, atol=0)
        torch.testing.assert_close(by_level[1:], chain.mean(1), rtol=1e-4, atol=0)
        torch.testing.assert_close(bound.L_K, paper.L_K)  # delta = sigma
        assert float(by_level.sum() + bound.L_K.mean()) == pytest.approx(float(bound.total.mean()), rel=1e-5)
    density, by_frequency, discrete = (bound.L_0 for bound in exact)
    squared = errors[0].square().flatten(1).sum(1)
    torch.testing.assert_close(density, gaussian_nll(squared, 64, float(variance.mean().sqrt())), rtol=1e-4, atol=0)
    expected = (errors[0].square() / variance + (2 * torch.pi * variance).log()).flatten(1).sum(1) / 2
    torch.testing.assert_close(by_frequency, expected, rtol=1e-4, atol=1e-3)
    u_0 = to_unit(images).double()
    mean = u_0 + basis.from_spectrum(errors[0])
    spreads = float(variance.mean().sqrt()) * torch.logspace(-3, 3, 200, base=2, dtype=torch.float64)
    best = min(float(discrete_nll(u_0, mean, spread).flatten(1).sum(1).mean()) for spread in spreads)
    assert best - 1e-2 <= float(discrete.mean()) < best + 0.05 * abs(best)  # a spread that suits training images


def test_the_last_step_is_fitted_to_the_images_that_are_given_for_it(model, tiny_images):
    """Of all spreads that of the images themselves explains them best; the paper's bound has none to fit."""
    images = tiny_images.held_out
    own, others = (evaluation.likelihood(model, images, some) for some in (None, tiny_images.train))
    assert torch.equal(own.bounds[0].total, others.bounds[0].total)
    for one, other in list(zip(own.bounds, others.bounds))[1:]:
        assert float(one.L_0.mean()) < float(other.L_0.mean()) and torch.equal(one.chain, other.chain)


def all_errors(model, images, seed):
    """mu(u_k, k) - F(t_{k-1}) u_0 at every level k = 1..10, (levels, images, C, H, W)."""
    u_0, noise = to_unit(images), SeededNoise(seed, torch.arange(len(images)), model.config.shape)
    with torch.no_grad():
        levels = (torch.full((len(images),), k) for k in range(1, 11))
        return torch.stack([model.process.errors(model.network, u_0, k, noise(int(k[0]))) for k in levels])


def test_drawn_levels_are_some_of_all(model, tiny_images):
    full = evaluation.likelihood(model, tiny_images.train, delta_ratio=RATIOS)
    some = evaluation.likelihood(model, tiny_images.train, delta_ratio=RATIOS, levels=4)
    assert some.levels == 4
    for few, all_of_them in zip(some.bounds, full.bounds):
        torch.testing.assert_close(few.L_0, all_of_them.L_0)
        torch.testing.assert_close(few.L_K, all_of_them.L_K)
    one = evaluation.likelihood(model, tiny_images.train[:1], delta_ratio=RATIOS, levels=2)
    drawn = (~one.by_level[:, 0].isnan()).nonzero().flatten()
    assert len(drawn) == 2 and drawn[0] == 0
    whole = evaluation.likelihood(model, tiny_images.train[:1], delta_ratio=RATIOS)
    torch.testing.assert_close(one.by_level[drawn], whole.by_level[drawn], rtol=1e-4, atol=0)
    branches = json.loads(json.dumps(one.tree(), allow_nan=False))["bounds"]
    assert [branch["mean_by_level"].count(None) for branch in branches] == [8] * 5


@pytest.mark.parametrize("ratios", [[], [0.0], [1.0, -1.0], [float("inf")], [float("nan")]])
def test_noise_without_a_density_is_refused(model, tiny_images, ratios):
    with pytest.raises(UsageError, match="delta ratios must be"):
        evaluation.likelihood(model, tiny_images.held_out, delta_ratio=ratios)


def test_a_model_without_noise_has_no_likelihood(tiny_config, tiny_images):
    config = tiny_config.with_settings(["process.sigma=0", "process.skip=identity"])
    model = Model.from_images(ModelConfig.of(config, tiny_images.shape), tiny_images.train)
    with pytest.raises(UsageError, match="no likelihood"):
        evaluation.likelihood(model, tiny_images.held_out, delta_ratio=[1.0])


def test_a_filter_that_is_not_diagonal_has_the_papers_bound_alone(tiny_config, tiny_images):
    config = tiny_config.with_settings(["process.blur=gaussian", "process.skip=identity"])
    model = Model.from_images(ModelConfig.of(config, tiny_images.shape), tiny_images.train).eval()
    found = evaluation.likelihood(model, tiny_images.held_out, delta_ratio=RATIOS)
    assert [bound.row.delta_ratio for bound in found.bounds] == list(RATIOS)


def test_diffusion_has_one_bound_and_no_delta(diffusion, tiny_images):
    found = evaluation.likelihood(diffusion, tiny_images.held_out)
    assert [bound.row.delta_ratio for bound in found.bounds] == [None] and bool(found.bounds[0].total.isfinite().all())
    with pytest.raises(UsageError, match="denoising diffusion uses the posterior's noise: leave out delta_ratio"):
        evaluation.likelihood(diffusion, tiny_images.held_out, delta_ratio=RATIOS)


# The quality of samples


class Projection(nn.Module):
    """Stands for Inception: a fixed random map of the pixels to some features."""

    convention, num_features = "clean", 40

    def __init__(self, size: int):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(size, self.num_features, generator=generator) / size**0.5)
        self.asked = 0

    def forward(self, images):
        self.asked += len(images)
        return (to_unit(images).flatten(1) @ self.weight).relu()


def test_samples_are_measured_in_every_way(model, tiny_images, tmp_path):
    inception = Projection(64)
    found = evaluation.evaluate(model, tiny_images, inception, 12, figures=tmp_path, execution=Execution(batch_size=5))
    assert found.fid > 0 and len(found.kid) == 2 and found.spectral_distance > 0
    assert set(found.memorisation) == {"pixels", "inception"}
    for one in found.memorisation.values():  # eight held-out images tell nothing
        assert (one.score, one.closer, one.samples) == (None, None, {}) and "(8; at least 10" in one.missing["score"]
    assert found.kid[1] is None and [word for caution in found.cautions for word in caution.split()[1:2]] == [
        "FID",
        "KID",
        "spectra",
    ]
    assert (found.samples, found.seed, found.convention) == (12, 0, "clean")
    assert "32 images" in found.reference
    table = found.table()
    assert all(word in table for word in ("FID", "KID", "dB", "held-out", "12 samples", "seed 0", "clean"))
    json.dumps(found.tree(), allow_nan=False)
    drawn = {path.name for path in tmp_path.glob("*.png")}
    assert drawn == {"neighbours-pixels.png", "neighbours-inception.png", "memorisation.png", "spectrum.png"}
    assert inception.asked == 12 + 32 + 8
    again = evaluation.evaluate(model, tiny_images, inception, 12)
    assert inception.asked == 2 * 12 + 32 + 8  # the references were kept
    assert again.fid == pytest.approx(found.fid, rel=1e-3)


def test_images_against_themselves_and_worse_ones(model, tiny_images, monkeypatch):
    """FID, KID and spectrum of the training images are nothing; of noisy ones more, of noisier ones more again."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(tiny_images.train.shape, generator=generator)

    def measured(amount):
        made = (tiny_images.train + 255 * amount * noise).clamp(0, 255).to(torch.uint8)
        monkeypatch.setattr(model, "sample_batches", lambda n, seed, **options: made.split(9))
        return evaluation.evaluate(model, tiny_images, Projection(64), len(made))

    exact, noisy, noisier = (measured(amount) for amount in (0, 0.1, 0.3))
    assert exact.fid < 1e-4 and exact.spectral_distance < 1e-6
    assert exact.fid < noisy.fid < noisier.fid
    assert exact.kid[0] < noisy.kid[0] < noisier.kid[0]
    assert exact.spectral_distance < noisy.spectral_distance < noisier.spectral_distance


def test_references_are_those_of_the_very_pixels_and_of_the_convention(tiny_images):
    inception = Projection(64)
    first = quality._reference("blobs", "train", tiny_images.train, inception, Workers())
    assert inception.asked == 32
    assert quality._reference("others", "test", tiny_images.train, inception, Workers()).features.equal(first.features)
    assert inception.asked == 32  # the same pixels, whatever they are called
    changed = tiny_images.train.clone()
    changed[7, 0, 3, 3] ^= 1
    assert not quality._reference("blobs", "train", changed, inception, Workers()).features.equal(first.features)
    assert inception.asked == 64
    inception.convention = "legacy"
    quality._reference("blobs", "train", tiny_images.train, inception, Workers())
    assert inception.asked == 96


def test_references_of_images_outside_of_the_memory_are_made_of_few_at_a_time(tiny_images, monkeypatch):
    class Outside:
        """As `LazyImages`: what is asked for is decoded, and held, at once."""

        shape, most = tiny_images.train.shape, 0

        def __len__(self):
            return len(tiny_images.train)

        def __getitem__(self, which):
            found = tiny_images.train[which]
            self.most = max(self.most, len(found))
            return found

        def split(self, size):
            return (self[first : first + size] for first in range(0, len(self), size))

    monkeypatch.setattr(quality, "BATCH", 5)
    images, inception = Outside(), Projection(64)
    parts = [quality._reference("blobs", "train", images, inception, Workers()) for _ in range(2)]
    assert images.most == 5 and inception.asked == 32
    monkeypatch.setenv("IHDM_CACHE", "/proc/nothing")
    whole = quality._reference("blobs", "train", tiny_images.train, Projection(64), Workers())
    assert all(part.features.equal(whole.features) for part in parts)


def test_features_that_cannot_be_kept_are_used_all_the_same(tiny_images, monkeypatch, capsys):
    monkeypatch.setenv("IHDM_CACHE", "/proc/nothing")
    found = quality._reference("blobs", "train", tiny_images.train, Projection(64), Workers())
    assert len(found) == 32 and "could not be kept" in capsys.readouterr().err


def test_features_for_which_the_disk_has_no_room_are_used_all_the_same(tiny_images, tmp_path, monkeypatch, capsys):
    def full(*_):  # what safetensors raises, which is no OSError
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setenv("IHDM_CACHE", str(tmp_path))
    monkeypatch.setattr("ihdm.metrics.distances.save_file", full)
    found = quality._reference("blobs", "train", tiny_images.train, Projection(64), Workers())
    assert len(found) == 32 and "could not be kept" in capsys.readouterr().err


def test_neighbours_need_no_more_than_some_samples(model, tiny_images, monkeypatch):
    monkeypatch.setattr(quality, "COMPARED", 5)
    inception = Projection(64)
    found = evaluation.evaluate(model, tiny_images, inception, 12, ["neighbours"], split="test")
    assert found.samples == 5 and inception.asked == 5 + 32 + 5  # samples, all of training, some held out


def test_every_option_of_sampling_and_comparing_matters(model, tiny_images):
    inception = Projection(64)
    common = {"n": 12, "metrics": ["fid", "kid"]}
    usual = evaluation.evaluate(model, tiny_images, inception, **common)
    exact = {"sampler": "exact", "eta": 0.0}
    for other in ({"seed": 1}, {"split": "test"}, {"delta_ratio": 3.0}, exact, exact | {"steps": 3}):
        found = evaluation.evaluate(model, tiny_images, inception, **common, **other)
        assert found.fid != pytest.approx(usual.fid, rel=1e-3)
    with pytest.raises(UsageError, match=r"'sampling\.steeps'; did you mean 'sampling\.steps'"):
        evaluation.evaluate(model, tiny_images, inception, **common, steeps=3)


def test_table_and_json_say_which_term_is_which(model, tiny_images):
    found = evaluation.likelihood(model, tiny_images.held_out, delta_ratio=[1.25, 1.0])
    assert [bound.row.delta_ratio for bound in found.bounds] == [1.0, 1.25, None, None, None]  # in order
    names = ["paper, delta/sigma 1", "paper, delta/sigma 1.25", *EXACT]
    tree, lines = found.tree(), tables.likelihood(found).splitlines()
    assert [branch["bound"] for branch in tree["bounds"]] == names
    assert [branch["delta_ratio"] for branch in tree["bounds"]] == [1.0, 1.25, None, None, None]
    assert not lines[8]  # no more rows than bounds
    for name, bound, branch, line in zip(names, found.bounds, tree["bounds"], lines[3:8], strict=True):
        terms = {"L_K": bound.L_K, "L_1..L_(K-1)": bound.chain, "L_0": bound.L_0, "total": bound.total}
        bits = bound.total / (64 * np.log(2)) + 8
        width = len("exact, L_0 by frequency")
        assert line[:width].strip() == name
        cells = [float(cell.replace(",", "")) for cell in line[width:].replace("+-", "").split()]
        for i, (term, values) in enumerate((terms | {"bits_per_dimension": bits}).items()):
            assert branch[term]["mean"] == pytest.approx(float(values.mean()))
            assert cells[2 * i] == pytest.approx(float(values.mean()), abs=0.06)
            assert cells[1 + 2 * i] == pytest.approx(float(values.std() / 8**0.5), abs=0.06)
    one = evaluation.likelihood(model, tiny_images.held_out[:1], delta_ratio=[1.0])
    assert "+-" not in tables.likelihood(one) and "1 image of 64" in tables.likelihood(one)
    assert one.tree()["standard_error"].startswith("null") and tree["standard_error"] == "over images"
    assert one.tree()["bounds"][0]["total"]["standard_error"] is None


def test_a_method_has_one_colour_in_both_panels(model, tiny_images, tmp_path, monkeypatch):
    found, panels, figure = evaluation.likelihood(model, tiny_images.held_out, delta_ratio=RATIOS), [], drawings.figure

    @contextlib.contextmanager
    def watched(*args, **options):
        with figure(*args, **options) as axes:
            yield axes
            for axis in axes:
                drawn = zip(*axis.get_legend_handles_labels())
                panels.append(
                    {label: (line[0] if isinstance(line, tuple) else line).get_color() for line, label in drawn}
                )

    monkeypatch.setattr(drawings, "figure", watched)
    drawings.likelihood(tmp_path, found)
    left, right = panels
    of_paper = {colour for label, colour in right.items() if label.startswith("paper")}
    assert of_paper == {left["paper's steps"]} and len(right) == len(RATIOS) + 1
    assert right["exact"] == left["exact"] not in of_paper and len({*left.values()}) == len(left)


def test_what_enough_images_say_is_told_without_caution():
    assert not quality.cautions(quality.METRICS, 50_000, 50_000)
    (note,) = quality.cautions(quality.METRICS, 10_000, 50_000)
    assert note.startswith("note: FID from 10,000 samples is biased upwards")
    (note,) = quality.cautions(["kid"], 50_000, 1999)
    assert "KID from 1,999 images" in note and "at least 2,000" in note
    assert not quality.cautions(["spectrum"], 100, 100) and quality.cautions(["spectrum"], 99, 100)


def test_only_what_is_asked_for_is_measured(model, tiny_images):
    found = evaluation.evaluate(model, tiny_images, None, 5, ["spectrum"], split="test", seed=2)
    assert found.fid is None and found.kid is None and not found.memorisation
    assert "FID" not in found.table() and "8 images" in found.table()
    assert len(found.spectra["frequency"]) == len(found.spectra["samples"]) == len(found.spectra["data"])


@pytest.mark.parametrize(
    "options, message",
    [
        ({"metrics": ["fidd"]}, "did you mean 'fid'"),
        ({"metrics": []}, "nothing can be measured"),
        ({"n": 1}, "nothing can be measured"),
        ({}, "--allow-few"),
        ({"metrics": ["kid"], "images": ImageSet("one", torch.zeros(1, 1, 8, 8), torch.zeros(1, 1, 8, 8))}, "too few"),
        (
            {"metrics": ["neighbours"], "images": ImageSet("all", torch.zeros(9, 1, 8, 8), torch.zeros(0, 1, 8, 8))},
            "none",
        ),
        (
            {"metrics": ["kid"], "images": ImageSet("four", torch.zeros(9, 4, 8, 8), torch.zeros(9, 4, 8, 8))},
            "not of 4",
        ),
        (
            {"metrics": ["spectrum"], "images": ImageSet("dots", torch.zeros(9, 1, 1, 1), torch.zeros(9, 1, 1, 1))},
            "images of a single value have no spectrum",
        ),
    ],
)
def test_what_cannot_be_measured_is_refused(tiny_images, options, message):
    request = {"metrics": ["fid"], "n": 100, "images": tiny_images, "split": "train", "allow_few": False} | options
    with pytest.raises(UsageError, match=message):
        check_metrics(request["metrics"], request["n"])
        check_images(**request)


def test_few_images_are_measured_if_that_is_wanted(tiny_images):
    check_images(["fid"], 100, tiny_images, "train", allow_few=True)


# The commands


class TinyInception(nn.Module):
    """What TorchScript makes a small file of: the colours of 16x16 patches, many times over."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * torch.nn.functional.adaptive_avg_pool2d(x, 16).flatten(1).repeat(1, 3)[:, :2048]


@pytest.fixture
def files(model, diffusion, tiny_images, tmp_path, monkeypatch):
    """A folder with a model, another of diffusion, their images and a stand-in for Inception."""
    monkeypatch.chdir(tmp_path)
    model.save_pretrained("model")
    diffusion.save_pretrained("diffusion")
    np.savez("images.npz", train=tiny_images.train.numpy()[:, 0], test=tiny_images.held_out.numpy()[:, 0])
    torch.jit.save(torch.jit.script(TinyInception()), "inception.pt")
    monkeypatch.setattr(inception_module, "_checked", lambda path: path)
    monkeypatch.setenv("IHDM_DATA", str(tmp_path))
    (tmp_path / "fid_inception.pt").write_bytes((tmp_path / "inception.pt").read_bytes())
    return tmp_path


def test_likelihood_of_digits(files, capsys):
    words = ["likelihood", "model", "--data", "digits", "--delta-ratio", "1.0", "1.05", "1.25", "--levels", "3"]
    main([*words, "--n", "20", "--json", "out/l.json", "--figures", "out"])
    text = capsys.readouterr().out
    assert "20 images of 64 dimensions" in text and "1.05" in text and "bits/dim" in text
    rows = [line for line in text.splitlines() if line.startswith(("paper, ", "exact"))]
    names = [f"paper, delta/sigma {ratio}" for ratio in ("1", "1.05", "1.25")] + EXACT
    assert len(rows) == 6 and all(row.startswith(f"{name} ") for row, name in zip(rows, names))
    tree = json.loads((files / "out" / "l.json").read_text())
    assert [bound["delta_ratio"] for bound in tree["bounds"]] == [1.0, 1.05, 1.25, None, None, None]
    assert [bound["bound"] for bound in tree["bounds"]] == names
    assert len(tree["bounds"][0]["total_per_image"]) == 20 and tree["split"] == "test"
    assert (files / "out" / "likelihood.png").stat().st_size > 1000


def test_settings_of_something_else_beside_a_model_are_not_a_runs(tiny_config, tiny_images, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "config.toml").write_text("[site]\ntitle = 1\n")
    assert settings_of(tmp_path / "model") is None
    Trainer(tiny_config, tiny_images, tmp_path / "run").train()
    assert settings_of(tmp_path / "run").data == settings_of(tmp_path / "run" / "model").data == tiny_config.data


def test_evaluate(files, capsys):
    digits = load_images(load_config("digits").data)
    np.savez("few.npz", train=digits.train[:28, 0].numpy(), test=digits.held_out[:12, 0].numpy())
    words = ["evaluate", "model", "--data", "few.npz", "--n", "16", "--allow-few", "--json", "e.json"]
    main([*words, "--figures", "out"])
    captured = capsys.readouterr()
    assert "FID" in captured.out and "few.npz train (28 images)" in captured.out
    assert "biased upwards" in captured.err and "spectra of 16 images scatter" in captured.err
    assert "too few images to tell its error" in captured.out and "KID from 16 images" in captured.err
    assert "as the closest 1 % of those: too few held-out images to tell (12; at least 500 are needed)" in captured.out
    tree = json.loads((files / "e.json").read_text())
    assert tree["kid"][1] is None and tree["cautions"] == captured.err.splitlines()[-3:]
    assert tree["memorisation"]["pixels"]["closer"] is None and tree["memorisation"]["pixels"]["score"] > 0
    assert "(12; at least 500" in tree["memorisation"]["pixels"]["missing"]["closer"]
    assert tree["samples"] == 16 and tree["fid"] > 0 and tree["convention"] == "clean"
    assert tree["sampling"] in captured.out and tree["sampling"] == "the paper's 10 steps, delta 0.0125"


def test_likelihood_and_samples_of_a_diffusion_model(files, capsys):
    main(["likelihood", "diffusion", "--data", "images.npz", "--json", "l.json"])
    assert "the posterior's variance" in capsys.readouterr().out
    (bound,) = json.loads((files / "l.json").read_text())["bounds"]
    assert (bound["bound"], bound["delta_ratio"]) == ("the posterior's variance", None)
    words = ["evaluate", "diffusion", "--data", "images.npz", "--metrics", "spectrum", "--n", "4"]
    main([*words, "--eta", "0", "--steps", "5"])
    assert "5 steps, eta 0: 4 samples" in capsys.readouterr().out


def test_samples_are_measured_as_they_are_asked_for(files, capsys):
    words = ["evaluate", "model", "--data", "images.npz", "--metrics", "spectrum", "--n", "4", "--json", "e.json"]
    found = []
    for more in ([], ["--delta-ratio", "2"], ["--sampler", "exact", "--steps", "3", "--eta", "0", "--order", "1"]):
        main([*words, *more])
        found.append(json.loads((files / "e.json").read_text()))
        assert f"model, {found[-1]['sampling']}: 4 samples" in capsys.readouterr().out
    assert [tree["sampling"] for tree in found] == [
        "the paper's 10 steps, delta 0.0125",
        "the paper's 10 steps, delta 0.02",
        "3 exact steps, eta 0",
    ]
    assert len({tree["spectral_distance"] for tree in found}) == 3


@pytest.mark.parametrize(
    "words, code, message",
    [
        (["likelihood", "model", "--data", "photos.npz"], 2, "--resize"),
        (["likelihood", "model", "--data", "images.npz", "--levels", "1"], 2, "--levels must be at least 2"),
        (["likelihood", "model", "--data", "images.npz", "--delta-ratio", "0"], 2, "delta ratios must be"),
        (["evaluate", "model", "--data", "photos.npz"], 2, "--resize"),
        (["evaluate", "model", "--data", "mixed.npz"], 2, "--resize"),
        (["evaluate", "model", "--data", "images.npz"], 2, "leave it out"),
        (["evaluate", "model", "--data", "images.npz", "--metrics", "spectrum", "--json", "."], 2, "is a folder"),
        (["evaluate", "model", "--data", "digits", "--n", "9"], 2, "--allow-few"),
        (["evaluate", "model", "--data", "images.npz", "--metrics", "fud"], 2, "unknown metric"),
        (
            ["evaluate", "model", "--data", "images.npz", "--allow-few", "--inception", "no.pt"],
            1,
            "no Inception network",
        ),
        (["evaluate", "model", "--data", "images.npz", "--delta-ratio", "-1"], 2, "delta_ratio must be at least 0"),
        (["evaluate", "model", "--data", "images.npz", "--delta-ratio", "nan"], 2, "must be a finite number"),
        (["evaluate", "model", "--data", "images.npz", "--steps", "3"], 2, "take 3 exact steps (--sampler exact"),
        (
            ["evaluate", "model", "--data", "images.npz", "--sampler", "paper", "--eta", "0"],
            2,
            "eta is for the sampler 'exact'",
        ),
        (
            ["evaluate", "diffusion", "--data", "images.npz", "--delta-ratio", "1"],
            2,
            "sampling by denoising diffusion has: steps, eta, order, corrected, clip",
        ),
        (["likelihood", "diffusion", "--data", "images.npz", "--delta-ratio", "1"], 2, "leave out delta_ratio"),
    ],
)
def test_wrong_words_are_refused(files, words, code, message, capsys):
    np.savez("photos.npz", np.zeros((4, 10, 12, 3), np.uint8))
    np.savez("mixed.npz", train=np.zeros((4, 8, 8), np.uint8), test=np.zeros((4, 9, 8), np.uint8))
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == code
    assert message in capsys.readouterr().err


def test_other_images_are_resized_if_that_is_wanted(files, capsys):
    np.savez("photos.npz", np.random.default_rng(0).integers(0, 256, (40, 10, 12, 3), dtype=np.uint8))
    main(["likelihood", "model", "--data", "photos.npz", "--resize", "--levels", "2"])
    assert "bits/dim" in capsys.readouterr().out


def test_missing_extras_are_named(files, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit):
        main(["likelihood", "model", "--data", "images.npz", "--figures", "out"])
    assert "needs matplotlib: pip install 'ihdm[plots]'" in capsys.readouterr().err


TWO = """
import sys
from ihdm.metrics import inception
inception._checked = lambda path: path
from ihdm.cli import main
main(sys.argv[1:])
"""


def by_two(words, monkeypatch, spoken=None):
    """A command by two processes, as torchrun starts them, one of which speaks."""
    Path("two.py").write_text(TWO)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--", "two.py"]
    done = subprocess.run([*command, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert spoken is None or done.stdout.count(spoken) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["likelihood", "model", "--data", "images.npz", "--levels", "4"],
        pytest.param(["likelihood", "model", "--data", "images.npz", "--n", "1"], marks=pytest.mark.slow),
        pytest.param(["evaluate", "model", "--data", "images.npz", "--n", "13", "--allow-few"], marks=pytest.mark.slow),
    ],
)
def test_two_processes_give_the_result_of_one(files, words, monkeypatch):
    monkeypatch.setenv("IHDM_CACHE", str(files / "one"))
    main([*words, "--json", "one.json"])
    monkeypatch.setenv("IHDM_CACHE", str(files / "two"))
    by_two([*words, "--json", "two.json"], monkeypatch, spoken="seed 0")
    _assert_close(*(json.loads((files / f"{count}.json").read_text()) for count in ("one", "two")))


@pytest.mark.slow
def test_two_processes_make_the_images_of_one(files, monkeypatch):
    main(["sample", "model", "--n", "7", "--out", "one", "--grid", "one.png"])
    by_two(["sample", "model", "--n", "7", "--out", "two", "--grid", "two.png"], monkeypatch)
    for name in [f"one/{i:06d}.png" for i in range(7)] + ["one.png"]:
        one, two = (np.asarray(Image.open(files / path), int) for path in (name, name.replace("one", "two")))
        assert np.abs(one - two).max() <= 1
    assert len(list((files / "two").iterdir())) == 7


def _assert_close(one, two):
    """The same numbers up to rounding, in the same places."""
    assert type(one) is type(two)
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        for key in one:
            _assert_close(one[key], two[key])
    elif isinstance(one, list):
        assert len(one) == len(two)
        for pair in zip(one, two):
            _assert_close(*pair)
    elif isinstance(one, float):
        assert one == pytest.approx(two, rel=1e-3, abs=1e-4)
    else:
        assert one == two
