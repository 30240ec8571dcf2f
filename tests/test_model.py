from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ihdm import execution as execution_module
from ihdm import model as model_module
from ihdm.config import Config
from ihdm.errors import IhdmError, UsageError
from ihdm.execution import Execution
from ihdm.heat import GaussianFilter
from ihdm.model import Model
from ihdm.model_folder import ModelConfig
from ihdm.noise import SeededNoise
from ihdm.pixels import to_unit
from ihdm.processes import LinearSkip
from ihdm.trainer import Trainer

EARLIER = Path(__file__).parent / "recorded" / "0.1.0"


@pytest.fixture(params=["linear", "identity"])
def model(request, tiny_config, tiny_images) -> Model:
    config = tiny_config.with_settings([f"process.skip={request.param}"])
    torch.manual_seed(0)
    model = Model.from_images(ModelConfig.of(config, tiny_images.shape, "blobs"), tiny_images.train)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return model.eval()


@pytest.fixture
def folder(model, tmp_path):
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_network_that_is_not_for_such_data_is_refused_before_they_are_looked_at(tiny_config, monkeypatch):
    def looked_at(*_):
        raise AssertionError

    monkeypatch.setattr("ihdm.model.unit_batches", looked_at)
    config = tiny_config.with_settings(["network.kind=graph"])
    with pytest.raises(UsageError, match=r"for graphs, not for images; use network\.kind=unet"):
        Model.from_images(ModelConfig.of(config, (1, 8, 8)), torch.zeros(4, 1, 8, 8, dtype=torch.uint8))


def test_samples_are_images_in_the_unit_range(model):
    images = model.sample(5, seed=1)
    assert images.shape == (5, 1, 8, 8) and images.dtype == torch.float32
    assert images.min() >= 0 and images.max() <= 1
    assert model.sample(0).shape == (0, 1, 8, 8)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"n": 2.5}, "n must be a whole number of at least 0, not 2.5"),
        ({"n": -1}, "n must be a whole number of at least 0, not -1"),
        ({"n": 2, "seed": None}, "seed must be a whole number, not None"),
        ({"n": 2, "first": 0.5}, "first must be a whole number of at least 0, not 0.5"),
    ],
)
def test_numbers_that_are_not_whole_are_refused_in_words(given, message, model):
    calls = (model.sample, model.sample_batches, model.trajectory) if "first" not in given else (model.sample,)
    for call in calls:
        with pytest.raises(UsageError, match=message):
            list(call(**given))


def test_numpys_numbers_will_do(model, tmp_path):
    assert model.sample(np.int64(2), seed=np.int64(3)).equal(model.sample(2, seed=3))
    plain = model.sampled(sampler="exact", steps=4, eta=0.5, corrected=True)
    sampled = model.sampled(sampler=np.str_("exact"), steps=np.int64(4), eta=np.float32(0.5), corrected=np.bool_(True))
    for name, one in (("plain", plain), ("numpy", sampled)):
        one.save_pretrained(tmp_path / name)
    assert (tmp_path / "plain" / "config.json").read_text() == (tmp_path / "numpy" / "config.json").read_text()
    assert [type(value) for value in vars(sampled.config.sampling).values()] == [int, str, float, float, int, bool]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_weights_of_any_type_compute_in_the_precision_asked_for(dtype, model):
    exact = model.sample(2)
    torch.testing.assert_close(model.to(dtype).sample(2), exact, atol=1e-6 if dtype == torch.float64 else 0.05, rtol=0)


def test_samples_are_float32_whatever_is_usual_in_the_program(model):
    images = model.sample(2)
    torch.set_default_dtype(torch.float64)
    try:
        torch.testing.assert_close(model.sample(2), images, rtol=0, atol=0)
        assert model.sample(0).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_image_i_does_not_depend_on_the_batch(model):
    whole = model.sample(7, seed=3)
    torch.testing.assert_close(model.sample(7, seed=3, execution=Execution(batch_size=2)), whole, atol=1e-5, rtol=0)
    torch.testing.assert_close(model.sample(3, seed=3), whole[:3], atol=1e-5, rtol=0)
    assert not torch.allclose(model.sample(3, seed=4), whole[:3], atol=1e-2)


def test_batches_are_the_samples_in_8_bits(model):
    batches = list(model.sample_batches(7, seed=3, execution=Execution(batch_size=3)))
    assert [len(batch) for batch in batches] == [3, 3, 1]
    assert [len(batch) for batch in model.sample_batches(9, execution=Execution(batch_size=8))] == [5, 4]
    assert all(batch.dtype == torch.uint8 for batch in batches)
    off = torch.cat(batches).float() - model.sample(7, seed=3) * 255
    assert off.abs().max() < 0.51


def test_batches_are_of_equal_size_and_no_larger_than_pays_off(model, monkeypatch):
    monkeypatch.setitem(execution_module.MOST_PIXELS, "cpu", 64 * 10)
    assert [model.runner().size(n) for n in (0, 1, 10, 11, 25)] == [1, 1, 10, 6, 9]
    with pytest.raises(UsageError, match="at least 1 image"):
        Execution(batch_size=0)


def test_shared_start_and_shared_noise(model):
    starts = {True: set(), False: set()}
    for same in starts:
        u_K = next(model.trajectory(20, same_start=same))[1]
        starts[same] = {row.numpy().tobytes() for row in u_K}
    assert len(starts[True]) == 1 and len(starts[False]) == 20
    alike = model.sample(4, same_start=True, same_noise=True)
    torch.testing.assert_close(alike, alike[:1].expand_as(alike), atol=1e-5, rtol=0)


def test_a_trajectory_ends_in_the_sample(model):
    states = dict(model.trajectory(3, seed=5))
    assert list(states) == list(range(10, -1, -1))
    torch.testing.assert_close(states[0], model.sample(3, seed=5), atol=1e-6, rtol=0)


def test_no_noise_without_delta(model):
    assert not torch.allclose(model.sample(2, delta_ratio=0.0), model.sample(2), atol=1e-3)
    still = model.sample(2, delta_ratio=0.0, same_start=True)
    torch.testing.assert_close(still[0], still[1], atol=1e-5, rtol=0)


def test_a_path_goes_on_from_any_level(model):
    numbers = torch.arange(2)
    noise = SeededNoise(3, numbers, model.config.shape)
    whole = dict(model.path(model.start(numbers, 3), noise))
    rest = dict(model.path(whole[2], noise, level=2))
    assert list(rest) == [2, 1, 0] and rest[0].equal(whole[0])
    with pytest.raises(ValueError, match="levels 0 to"):
        model.path(whole[2], noise, level=model.process.K + 1)


def test_saving_and_loading_is_the_identity(model, folder, tmp_path):
    loaded = Model.from_pretrained(folder)
    assert loaded.config == model.config
    assert torch.equal(loaded.sample(3, seed=2), model.sample(3, seed=2))
    loaded.save_pretrained(tmp_path / "again")
    for file in folder.iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes(), file.name


def test_random_numbers_of_the_program_go_on_as_if_nothing_had_been_loaded_or_sampled(folder):
    before = torch.get_rng_state()
    model = Model.from_pretrained(folder)
    list(model.trajectory(2)), model.sample(2), model.restore(torch.rand(1, 8, 8, generator=torch.Generator()), n=1)
    assert torch.get_rng_state().equal(before)


def test_a_folder_holds_only_json_text_and_safetensors(folder):
    assert {file.name for file in folder.iterdir()} == {
        "config.json",
        "model.safetensors",
        "prior.safetensors",
        "README.md",
    }


def test_sampling_leaves_gradients_and_modes_as_they_were(model):
    model.train()
    states = model.trajectory(1)
    next(states)
    next(states)
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    model.sample(1)
    assert model.network.training and torch.is_grad_enabled()


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "prior.safetensors"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(IhdmError, match=name):
        Model.from_pretrained(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "prior.safetensors"])
def test_a_damaged_file_is_named(folder, name):
    (folder / name).write_bytes((folder / name).read_bytes()[:20])
    with pytest.raises(IhdmError, match=name):
        Model.from_pretrained(folder)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("shape",), [1, 8]),
        (("shape",), [1, 0, 8]),
        (("process", "K"), 0),
        (("process", "unheard"), 1),
        (("network", "resample"), "magic"),
        (("shape",), "188"),
        (("shape",), [1.0, 8, 8]),
        (("shape",), [3, 8, 8]),
        (("process",), []),
        (("network",), None),
        (("sampling",), 3),
        (("sampling", "unheard"), 1),
        (("sampling", "delta_ratio"), -1),
        (("sampling", "steps"), 3),
        (("process", "kind"), "magic"),
        (("process", "kind"), ["heat"]),
        (("process", "kind"), "ddpm"),
        (("process", "betas"), "linear"),
        (("network", "kind"), "magic"),
        (("unheard",), {}),
        (("process", "sigma"), 0),
        (("process", "sigma_B_max"), 0.1),
        (("process", "K"), int("9" * 400)),
        (("network", "multipliers"), []),
        (("steps",), None),
        (("steps",), -5),
        (("steps",), float("inf")),
    ],
)
def test_an_impossible_config_is_refused(folder, place, value, model):
    if place == ("process", "sigma") and model.config.process.skip == "identity":
        pytest.skip("without the linear skip, sigma may be 0")
    tree = json.loads((folder / "config.json").read_text())
    branch = tree
    for key in place[:-1]:
        branch = branch[key]
    branch[place[-1]] = value
    (folder / "config.json").write_text(json.dumps(tree))
    with pytest.raises(IhdmError):
        Model.from_pretrained(folder)


@pytest.mark.parametrize("name", ["process", "network", "shape", "data", "steps"])
def test_a_config_without_what_it_must_say_is_refused(folder, name):
    tree = json.loads((folder / "config.json").read_text())
    del tree[name]
    (folder / "config.json").write_text(json.dumps(tree))
    with pytest.raises(IhdmError, match=rf"config\.json is not the config of a model .*{name}"):
        Model.from_pretrained(folder)


def test_settings_that_a_config_does_not_mention_have_their_defaults(folder, model):
    """As those that came after the folder was written."""
    tree, default = json.loads((folder / "config.json").read_text()), Config()
    del tree["sampling"]
    for section, names in {"process": ("sigma", "blur", "kind"), "network": ("dropout", "groups", "kind")}.items():
        for name in names:
            del tree[section][name]
    (folder / "config.json").write_text(json.dumps(tree))
    found = Model.from_pretrained(folder)
    assert found.config == model.config and found.process.sampling == default.sampling
    assert (found.config.process.sigma, found.config.network.dropout) == (0.01, 0.1)
    assert torch.equal(found.sample(3, seed=2), model.sample(3, seed=2))
    assert found.process.sampling == type(found.process).Sampling()
    tree["process"] = {"K": 10, "skip": model.config.process.skip}
    (folder / "config.json").write_text(json.dumps(tree))
    assert Model.from_pretrained(folder).config == model.config


def test_sampling_settings_are_kept_in_the_folder(model, tmp_path):
    other = model.sampled(sampler="exact", steps=4, eta=0.25)
    other.save_pretrained(tmp_path / "other")
    loaded = Model.from_pretrained(tmp_path / "other")
    assert loaded.config == other.config != model.config
    visited = list(dict(loaded.trajectory(1)))
    assert visited == other.process.levels() and (len(visited), visited[0], visited[-1]) == (5, 10, 0)
    torch.testing.assert_close(loaded.sample(2), model.sample(2, sampler="exact", steps=4, eta=0.25), atol=1e-5, rtol=0)
    with pytest.raises(UsageError, match="at most 10 steps"):
        loaded.sample(1, steps=11)
    with pytest.raises(UsageError, match="sampling by inverse heat dissipation has"):
        loaded.sample(1, clip=True)


def test_tensors_that_do_not_fit_are_named(folder):
    tensors = load_file(folder / "model.safetensors")
    wrong = {**tensors, "network.stem.weight": torch.zeros(3, 3)}
    save_file(wrong, folder / "model.safetensors")
    with pytest.raises(IhdmError, match=r"stem\.weight is torch\.float32 of shape \(3, 3\)"):
        Model.from_pretrained(folder)
    del wrong["network.stem.weight"]
    save_file({**wrong, "network.extra": torch.zeros(1)}, folder / "model.safetensors")
    with pytest.raises(IhdmError, match=r"stem\.weight is missing; network\.extra is not expected"):
        Model.from_pretrained(folder)
    save_file(tensors, folder / "model.safetensors")
    kept = load_file(folder / "prior.safetensors")["coefficients"]
    for wrong_prior in (kept[..., :3], kept.double(), kept.repeat(1, 3, 1), kept[:0]):
        save_file({"coefficients": wrong_prior.contiguous()}, folder / "prior.safetensors")
        with pytest.raises(IhdmError, match=r"prior\.safetensors does not belong"):
            Model.from_pretrained(folder)


def test_nested_nonsense_is_refused(folder):
    (folder / "config.json").write_text("[" * 100_000)
    with pytest.raises(IhdmError, match=r"config\.json"):
        Model.from_pretrained(folder)


def test_a_linear_model_without_its_spectrum_is_refused(folder, model):
    if not isinstance(model.process.skip, LinearSkip):
        pytest.skip("the identity skip has no spectrum")
    tensors = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in tensors.items() if k != "spectrum.power"}, folder / "model.safetensors")
    with pytest.raises(IhdmError, match="spectrum"):
        Model.from_pretrained(folder)


def test_a_model_is_read_while_training_replaces_it(folder, monkeypatch):
    """Between two renames there is no folder; then there is another one."""
    read, calls = model_module.read_weights, []

    def replacing(*words):
        calls.append(words)
        if len(calls) > 1:
            return read(*words)
        folder.rename(folder.with_name("old"))
        try:
            return read(*words)
        finally:
            shutil.copytree(folder.with_name("old"), folder)

    monkeypatch.setattr(model_module, "read_weights", replacing)
    assert Model.from_pretrained(folder).config.steps == 0 and len(calls) == 2
    (folder / "model.safetensors").unlink()
    with pytest.raises(IhdmError, match=r"model\.safetensors is missing"):
        Model.from_pretrained(folder)
    assert len(calls) == 3  # nothing has changed, so it is not tried again


def test_a_folder_that_is_not_there_is_said_so(tmp_path):
    with pytest.raises(IhdmError, match="no model folder"):
        Model.from_pretrained(tmp_path / "nowhere")


def test_a_model_that_blurs_with_a_filter(tiny_config, tiny_images, tmp_path):
    with pytest.raises(UsageError, match="identity"):
        tiny_config.with_settings(["process.blur=gaussian"])
    config = tiny_config.with_settings(["process.blur=gaussian", "process.skip=identity"])
    model = Model.from_images(ModelConfig.of(config, tiny_images.shape), tiny_images.train)
    u_0 = to_unit(tiny_images.train)
    expected = GaussianFilter((8, 8)).dissipate(u_0, float(model.process.schedule.t[-1]))
    torch.testing.assert_close(model.process.prior.means(torch.arange(32)), expected, atol=1e-5, rtol=0)
    torch.testing.assert_close(model.process.blur(u_0, torch.full((32,), model.process.K)), expected, atol=1e-5, rtol=0)
    model.save_pretrained(tmp_path / "model")
    again = Model.from_pretrained(tmp_path / "model")
    torch.testing.assert_close(again.sample(3, seed=1), model.eval().sample(3, seed=1))


@pytest.mark.parametrize("kind", ["heat", "ddpm"])
def test_folders_of_0_1_are_read_and_give_their_images(kind, tmp_path):
    model = Model.from_pretrained(EARLIER / kind)
    expected = load_file(EARLIER / kind / "samples.safetensors")["images"]
    torch.testing.assert_close(model.sample(3, seed=2), expected, atol=1e-5, rtol=0)
    model.save_pretrained(tmp_path / "now")
    again = Model.from_pretrained(tmp_path / "now")
    assert again.config == model.config
    assert again.sample(3, seed=2).equal(model.sample(3, seed=2))
    written = json.loads((tmp_path / "now" / "config.json").read_text())
    assert written["process"]["kind"] == kind and "delta_ratio" not in written["process"]


RUN_OF_0_1 = """
[process]
kind = "heat"
K = 10
sigma = 0.01
delta_ratio = 1.25
sigma_B_min = 0.5
sigma_B_max = "auto"
skip = "linear"
blur = "heat"
betas = "linear"

[network]
channels = 8
multipliers = [1, 2]
blocks = 1
attention = [1]
dropout = 0.1
resample = "pool"
groups = "auto"

[data]
source = ""
size = "auto"
channels = "auto"
flip = false
holdout = 0.05

[trainer]
steps = 3
batch_size = 8
lr = 0.002
warmup = 2
checkpoint_every = 3
"""


def test_a_folder_may_be_saved_over_by_a_model_without_a_prior(tiny_config, tiny_images, tmp_path):
    for kind in ("heat", "ddpm", "heat"):
        config = tiny_config.with_settings([f"process.kind={kind}"])
        model = Model.from_images(ModelConfig.of(config, tiny_images.shape), tiny_images.train)
        model.save_pretrained(tmp_path)
        assert Model.from_pretrained(tmp_path).config == model.config


def test_a_run_of_0_1_is_resumed(tiny_config, tiny_images, tmp_path, capsys):
    """Its config.toml says process.delta_ratio, and the settings of both processes."""
    run = tmp_path / "run"
    Trainer(tiny_config.with_settings(["trainer.steps=3"]), tiny_images, run).train()
    (run / "config.toml").write_text(RUN_OF_0_1)
    assert Trainer(tiny_config, tiny_images, run).train()
    assert "continuing from step 3 of 6" in capsys.readouterr().out
    Trainer(tiny_config, tiny_images, tmp_path / "whole").train()
    parts = [load_file(path / "model" / "model.safetensors") for path in (run, tmp_path / "whole")]
    assert all(tensor.equal(parts[1][name]) for name, tensor in parts[0].items())
    assert "[sampling]" in (run / "config.toml").read_text()
    (run / "config.toml").write_text(RUN_OF_0_1.replace("K = 10", "K = 11"))
    with pytest.raises(UsageError, match=r"process\.K was 11, is 10"):
        Trainer(tiny_config, tiny_images, run)


def test_the_card_says_what_the_process_is(folder, tiny_config, tiny_images, tmp_path):
    card = (folder / "README.md").read_text()
    assert "# A model of inverse heat dissipation" in card and "grown from blur" in card and "Rissanen" in card
    assert "of the training set, blurred" in card and "share the folder only where" in card
    baseline = tiny_config.with_settings(["process.kind=ddpm"])
    Model.from_images(ModelConfig.of(baseline, tiny_images.shape, "blobs"), tiny_images.train).save_pretrained(tmp_path)
    assert {file.name for file in tmp_path.iterdir() if file.is_file()} == {
        "config.json",
        "model.safetensors",
        "README.md",
    }
    card = (tmp_path / "README.md").read_text()
    assert "# A model of denoising diffusion" in card and "grown from noise" in card and "Ho, Jain" in card
    assert "heat" not in card.lower() and "blur" not in card.lower() and "share the folder" not in card
