"""A weaker network beside a model's own: what guidance away from it does, and how it is kept."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from ihdm import evaluation
from ihdm.app.studio import Studio
from ihdm.cli import main
from ihdm.config import DataConfig, load_config
from ihdm.data import load_images
from ihdm.errors import IhdmError, UsageError
from ihdm.execution import Execution
from ihdm.export.programs import programs
from ihdm.model import Model
from ihdm.model_folder import GUIDE, ModelConfig
from ihdm.networks.guidance import beyond
from ihdm.noise import SeededNoise
from ihdm.registry import PROCESSES
from ihdm.run import locked
from ihdm.sampler import last
from ihdm.studies.lab import Lab
from ihdm.trainer import Trainer

SMALLER = ("network.channels=4", "network.multipliers=1,1")


def random_model(config, images, seed: int, *settings: str) -> Model:
    """A network whose answers matter, of which an untrained one has none."""
    changed = config.with_settings(settings)
    labels = images.labels
    torch.manual_seed(seed)
    model = Model.from_images(
        ModelConfig.of(changed, images.shape, images.name, labels), images.train, images.train_labels
    )
    for weight in model.network.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    return model.eval()


def started(model: Model) -> tuple[torch.Tensor, SeededNoise]:
    noise = model.noise(torch.arange(3), 5)
    return model.process.start(noise), noise


@pytest.fixture
def model(tiny_config, tiny_images) -> Model:
    return random_model(tiny_config, tiny_images, 0)


@pytest.fixture
def weaker(tiny_config, tiny_images) -> Model:
    return random_model(tiny_config, tiny_images, 1, *SMALLER)


@pytest.fixture
def guided(model, weaker) -> Model:
    return model.guided_by(weaker, 2.0)


def test_what_two_networks_get_wrong_alike_is_left_behind(tiny_config, tiny_images, generator):
    """One is wrong by d, the weaker one by 3 d: guidance of 1.5 makes exactly the samples of one without error."""
    model = random_model(tiny_config, tiny_images, 0)
    process, network = model.process.with_sampling(sampler="exact", steps=5), model.network.double()
    d = torch.randn(1, 1, 8, 8, generator=generator, dtype=torch.float64)
    noise = SeededNoise(0, torch.arange(3), (1, 8, 8))
    start = process.start(noise).double()

    def chain(answer):
        state = process.begin(start)
        levels = process.levels()
        for i, k, j in zip([levels[0], *levels], levels, levels[1:]):
            state = process.advance(answer, state, *map(torch.tensor, (k, j, i)), noise(k).double() * (j > 0))
        return process.shown(state)

    with torch.no_grad():
        right = chain(network)
        wrong = chain(lambda u, k: network(u, k) + d)
        mended = chain(beyond(lambda u, k: network(u, k) + d, lambda u, k: network(u, k) + 3 * d, 1.5))
    torch.testing.assert_close(mended, right, rtol=0, atol=1e-12)
    assert not wrong.allclose(right, atol=1e-3)


def test_only_networks_that_count_are_called():
    def strong(u, k):
        return 2 * u

    def weak(u, k):
        return u

    u, k = torch.ones(2), torch.ones(2)
    assert beyond(strong, weak, 1) is strong and beyond(strong, weak, 0) is weak
    assert beyond(strong, weak, 3)(u, k).equal(4 * u)


@pytest.mark.parametrize("kind", list(PROCESSES))
def test_every_process_is_guided(tiny_config, tiny_images, kind):
    config = tiny_config.with_settings([f"process.kind={kind}"])
    model, weaker = (random_model(config, tiny_images, seed, *SMALLER[: 2 * seed]) for seed in (0, 1))
    guided = model.guided_by(weaker, 1.5)
    images = guided.sample(5, seed=3)
    assert images.equal(guided.sample(5, seed=3, guidance=1.5)) and not images.allclose(model.sample(5, seed=3))
    assert guided.sample(5, seed=3, guidance=1).equal(model.sample(5, seed=3))
    own = model.process.start(model.noise(torch.arange(5), 3))
    untold = last(model.sampled().path(own, model.noise(torch.arange(5), 3)))
    torch.testing.assert_close(guided.sample(5, seed=3, guidance=1), untold.clamp(0, 1), atol=1e-5, rtol=0)
    for other in (
        guided.sample(5, seed=3, execution=Execution(batch_size=2)),
        last(guided.trajectory(5, seed=3)),
        guided.sampled().sample(5, seed=3),
    ):
        torch.testing.assert_close(other, images, atol=1e-5, rtol=0)


@pytest.mark.parametrize("pyramids", [("none", "5"), ("5", "none"), ("5", "7")])
def test_each_network_has_grids_of_its_own(tiny_config, tiny_images, pyramids):
    strong, weak = (f"network.pyramid={levels}" for levels in pyramids)
    model = random_model(tiny_config, tiny_images, 0, strong)
    guided = model.guided_by(random_model(tiny_config, tiny_images, 1, weak), 2.0)
    plain = Execution(compiled=False)
    torch.testing.assert_close(guided.sample(3), guided.sample(3, execution=plain), atol=1e-5, rtol=0)
    assert not guided.sample(3).allclose(model.sample(3), atol=1e-4)


def test_a_label_is_told_to_both(tiny_config, labelled):
    model, weaker = (random_model(tiny_config, labelled, seed) for seed in (0, 1))
    guided, start, noise = model.guided_by(weaker, 2.0), *started(model)
    for label in ("left", "right"):
        alone = last(weaker.path(start, noise, labels=label))
        torch.testing.assert_close(last(guided.path(start, noise, labels=label, guidance=0)), alone)
        assert not last(guided.path(start, noise, labels=label)).allclose(alone, atol=1e-3)
    assert not alone.allclose(last(weaker.path(start, noise, labels="left")), atol=1e-3)
    with pytest.raises(UsageError, match="same labels, but it knows none"):
        model.guided_by(random_model(tiny_config, replace(labelled, labels=None, train_labels=None), 1), 2.0)


def test_a_folder_keeps_the_weaker_network_and_the_guidance(guided, model, tmp_path):
    guided.save_pretrained(tmp_path)
    found = Model.from_pretrained(tmp_path)
    assert found.config.guidance == found.guidance() == 2.0
    assert found.sample(4, seed=1).equal(guided.sample(4, seed=1))
    assert found.facts()["guidance"] == "2, away from a weaker network of 4,581 parameters"
    assert GUIDE in found.file_names() and GUIDE not in model.file_names()
    found.save_pretrained(tmp_path / "small", torch.bfloat16)
    assert {tensor.dtype for tensor in load_file(tmp_path / "small" / GUIDE).values()} == {torch.bfloat16}
    model.save_pretrained(tmp_path)  # over it
    assert not (tmp_path / GUIDE).exists() and Model.from_pretrained(tmp_path).guide is None


def test_the_guidance_may_be_a_number_of_numpy(guided, model, weaker, tmp_path):
    expected = guided.sample(2, guidance=1.5)
    for strength in (np.float32(1.5), np.float64(1.5)):
        assert guided.sample(2, guidance=strength).equal(expected)
    for name, strength in (("float", 2.0), ("numpy", np.float32(2)), ("whole", np.int64(2))):
        model.guided_by(weaker, strength).save_pretrained(tmp_path / name)
    configs = [(tmp_path / name / "config.json").read_text() for name in ("float", "numpy", "whole")]
    assert configs == configs[:1] * 3


def test_a_bound_and_restoring_do_without(guided, model, tiny_images):
    plain, other = (m.restore(tiny_images.held_out[0] / 255, 2, blur_width=2.0).images for m in (model, guided))
    assert plain.equal(other)
    bounds = [evaluation.likelihood(m, tiny_images.held_out, tiny_images.train, levels=3) for m in (model, guided)]
    assert bounds[0].bounds[-1].total.equal(bounds[1].bounds[-1].total)


def test_damage_is_named(guided, tmp_path):
    guided.save_pretrained(tmp_path)
    tensors, config = load_file(tmp_path / GUIDE), json.loads((tmp_path / "config.json").read_text())
    save_file({name: tensor for name, tensor in tensors.items() if "head" not in name}, tmp_path / GUIDE)
    with pytest.raises(IhdmError, match=r"guide\.safetensors does not fit config\.json: .* is missing"):
        Model.from_pretrained(tmp_path)
    (tmp_path / GUIDE).write_bytes(b"nothing")
    with pytest.raises(IhdmError, match=r"guide\.safetensors is damaged"):
        Model.from_pretrained(tmp_path)
    (tmp_path / GUIDE).unlink()
    with pytest.raises(IhdmError, match=r"not a complete model folder: guide\.safetensors is missing"):
        Model.from_pretrained(tmp_path)
    wrongs = [{"guidance": wrong} for wrong in (-1, "much", None, True, 10**400)]
    for wrong in (*wrongs, {"network": {"kind": "unte"}}, {"more": 1}):
        guide = config["guide"] | wrong
        (tmp_path / "config.json").write_text(json.dumps(config | {"guide": guide}))
        with pytest.raises(IhdmError, match="is not the config of a model"):
            Model.from_pretrained(tmp_path)


def test_only_a_model_of_the_same_process_and_data_is_a_weaker_one(model, weaker, tiny_config, tiny_images):
    for settings, words in (
        (["process.K=9"], "process.K=9 instead of 10"),
        (["process.kind=ddpm"], "kind=ddpm instead"),
    ):
        with pytest.raises(UsageError, match=words):
            model.guided_by(random_model(tiny_config, tiny_images, 1, *settings), 2.0)
    others = replace(tiny_images, train=tiny_images.train // 2)
    with pytest.raises(UsageError, match="trained on the same data"):
        model.guided_by(random_model(tiny_config, others, 1), 2.0)
    larger = replace(tiny_images, train=torch.zeros(4, 1, 12, 12).byte(), held_out=torch.zeros(0, 1, 12, 12).byte())
    with pytest.raises(UsageError, match="same kind of data: 8x8 in grey, not 12x12"):
        model.guided_by(random_model(tiny_config, larger, 1), 2.0)
    for guidance in (-1, 101, float("nan"), float("inf"), "2", None, True):
        with pytest.raises(UsageError, match="guidance is a number from 0"):
            model.guided_by(weaker, guidance)
    with pytest.raises(UsageError, match=r"or a weaker network to guide away from .* has neither"):
        model.sample(1, guidance=2.0)


def test_programs_are_guided_as_the_model_is(guided, model):
    levels = guided.process.levels()
    noise = guided.noise(torch.arange(3), 5)(1)
    for one in (guided, model):
        both = programs(one)
        state = both["start"].function(torch.tensor([0, 1, 2]), torch.zeros(3, 1, 8, 8))[0]
        found = both["step"].function(state, *map(torch.tensor, (levels[0], levels[1], levels[0])), noise)[1]
        expected = dict(one.path(state, lambda _: noise, level=levels[0]))[levels[1]].clamp(0, 1)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_the_page_guides_as_the_model_does(guided, model):
    studio = Studio(guided)
    assert studio.guided and not Studio(model).guided
    torch.testing.assert_close(last(studio.grow(3, 1)).clamp(0, 1), guided.sample(3, 1), atol=1e-5, rtol=0)
    assert studio.most_guidance == 5 and Studio(guided.guided_by(guided, 6.0)).most_guidance == 6
    film = last(studio.grow(3, 1, guidance=1)).clamp(0, 1)
    torch.testing.assert_close(film, model.sample(3, 1), atol=1e-5, rtol=0)


def test_the_page_has_a_slider_for_it(guided):
    gr = pytest.importorskip("gradio", reason="the page needs gradio: pip install 'ihdm[app]'")
    from ihdm.app.page import build

    blocks = build({"tiny": Studio(guided)}).blocks.values()
    (slider,) = [block for block in blocks if isinstance(block, gr.Slider) and block.label == "Guidance"]
    assert slider.value == 2.0 and "a weaker network alone" in slider.info


def said(words: list[str], capsys) -> str:
    main(words)
    return capsys.readouterr().out


def refusal(words: list[str], capsys) -> str:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    return capsys.readouterr().err


def test_guide_adds_a_network_to_a_folder(model, weaker, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model.save_pretrained("run/model")
    weaker.save_pretrained("weak")
    (tmp_path / "run/model/mine.txt").write_text("mine")
    before = (tmp_path / "run/model/model.safetensors").read_bytes()
    words = said(["guide", "run", "weak", "--guidance", "2"], capsys)
    assert words == "run/model: guidance 2, away from a weaker network of 4,581 parameters\n"
    found = Model.from_pretrained("run")
    assert found.sample(3).equal(model.guided_by(weaker, 2.0).sample(3))
    assert "guidance | 2, away from" in (tmp_path / "run/model/README.md").read_text()
    assert (tmp_path / "run/model/model.safetensors").read_bytes() == before
    (tmp_path / "run/model/README.md").write_text("my words")
    said(["guide", "run/model", "weak", "--guidance", "1.25"], capsys)
    assert Model.from_pretrained("run").guidance() == 1.25
    assert (tmp_path / "run/model/README.md").read_text() == "my words"
    names = {path.name for path in (tmp_path / "run/model").iterdir()}
    assert names == {"README.md", "config.json", "model.safetensors", "prior.safetensors", GUIDE, "mine.txt"}
    assert "guidance" in said(["info", "run"], capsys)
    assert "a model or run folder of your own" in refusal(["guide", "mnist-ready", "weak"], capsys)
    assert "process.K=50 instead of 10" in refusal(["guide", "run", "mnist-ready"], capsys)
    assert "guidance is a number from 0" in refusal(["guide", "run", "weak", "--guidance", "-2"], capsys)
    assert Model.from_pretrained("run").guidance() == 1.25


def test_an_interrupted_guide_leaves_a_model_and_is_done_again(model, weaker, tmp_path, capsys, monkeypatch):
    """With a network of another shape than the one that was there."""
    monkeypatch.chdir(tmp_path)
    model.guided_by(model, 3.0).save_pretrained("strong")
    weaker.save_pretrained("weak")

    def full(path, content):
        path.write_bytes(b"a part")
        raise OSError("no space left")

    with monkeypatch.context() as broken, pytest.raises(SystemExit):
        broken.setattr("ihdm.model_folder.replaced_file", full)
        main(["guide", "strong", "weak"])
    assert "no space left" in capsys.readouterr().err
    assert Model.from_pretrained("strong").sample(2).equal(model.sample(2))
    said(["guide", "strong", "weak", "--guidance", "2"], capsys)
    assert Model.from_pretrained("strong").sample(2).equal(model.guided_by(weaker, 2.0).sample(2))
    said(["guide", "strong", "weak", "--guidance", "3"], capsys)
    assert Model.from_pretrained("strong").guidance() == 3


def test_a_weaker_network_can_be_taken_away_even_one_that_nobody_knows(model, weaker, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model.save_pretrained("run")
    weaker.save_pretrained("weak")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    for unknown in (False, True):
        main(["guide", "run", "weak"])
        if unknown:
            path = tmp_path / "run" / "config.json"
            tree = json.loads(path.read_text())
            tree["guide"]["network"]["kind"] = "of_my_own"
            path.write_text(json.dumps(tree))
            with pytest.raises(IhdmError, match="of_my_own"):
                Model.from_pretrained("run")
            assert Model.from_pretrained("run", guided=False).guide is None
        capsys.readouterr()
        assert said(["guide", "run", "none"], capsys) == "run: no guidance\n"
        after = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
        after["README.md"] = before["README.md"] if unknown else after["README.md"]  # it might be somebody's own
        assert after == before


def test_the_same_network_is_no_weaker_one(model, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model.save_pretrained("strong")
    assert "has the same weights" in refusal(["guide", "strong", "strong"], capsys)
    assert Model.from_pretrained("strong").guide is None


def test_what_is_unlikely_to_be_meant_is_said(model, weaker, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model.save_pretrained("strong")
    weaker.config = replace(weaker.config, data="others")
    weaker.save_pretrained("weak")
    main(["guide", "weak", "strong"])
    warnings = capsys.readouterr().err
    expected = "strong is not the weaker one: it has 42,065 parameters and 0 steps, the model to be guided 4,581 and 0"
    assert expected in warnings
    assert "strong was trained on blobs, not on others" in warnings


def test_a_guide_waits_for_a_run_to_end(tiny_config, tiny_images, tmp_path, capsys):
    Trainer(tiny_config, tiny_images, tmp_path / "run").train()
    with locked(tmp_path / "run"):
        assert "another process is working" in refusal(["guide", str(tmp_path / "run"), "nowhere"], capsys)


def test_studies_look_at_a_model_alone(guided, tmp_path):
    guided.save_pretrained(tmp_path / "model")
    lab = Lab(tmp_path, model_name=str(tmp_path / "model"), data="digits", quick=True)
    assert lab.model().guide is None and lab.model().guidance() == 1


def test_training_that_goes_on_keeps_the_weaker_network(tiny_config, tiny_images, tmp_path, capsys):
    Trainer(tiny_config, tiny_images, tmp_path).train()
    weaker = random_model(tiny_config, tiny_images, 1, *SMALLER)
    Model.from_pretrained(tmp_path).guided_by(weaker, 1.75).save_pretrained(tmp_path / "model")
    Trainer(tiny_config.with_settings(["trainer.steps=8"]), tiny_images, tmp_path).train()
    found = Model.from_pretrained(tmp_path)
    assert (found.config.steps, found.guidance()) == (8, 1.75)
    expected = weaker.network.state_dict()
    assert all(tensor.equal(expected[name]) for name, tensor in found.guide.state_dict().items())
    (tmp_path / "model" / GUIDE).write_bytes(b"nothing")
    Trainer(tiny_config.with_settings(["trainer.steps=10"]), tiny_images, tmp_path).train()
    assert "written without its weaker network" in capsys.readouterr().err
    assert Model.from_pretrained(tmp_path).guide is None


def test_commands_take_the_models_guidance_unless_told(guided, model, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    guided.save_pretrained("guided")
    model.save_pretrained("plain")
    for folder, words in (("guided", []), ("guided", ["--guidance", "1"]), ("plain", [])):
        said(["sample", folder, "--n", "2", "--out", f"{folder}{len(words)}", *words], capsys)
    own, without, plain = ((tmp_path / name / "000001.png").read_bytes() for name in ("guided0", "guided2", "plain0"))
    assert without == plain != own
    evaluate = ["evaluate", "--data", "digits", "--metrics", "spectrum", "--n", "4", "--json", "e.json"]
    for words, strength in (([], 2.0), (["--guidance", "1.5"], 1.5)):
        assert f"guidance {strength:g}: 4 samples" in said([evaluate[0], "guided", *evaluate[1:], *words], capsys)
        assert json.loads((tmp_path / "e.json").read_text())["guidance"] == strength
    said([evaluate[0], "plain", *evaluate[1:]], capsys)
    assert "guidance" not in json.loads((tmp_path / "e.json").read_text())


@pytest.mark.slow
def test_guidance_brings_digits_nearer(tmp_path):
    """A short training and a shorter one of fewer channels; by the Fréchet distance of modes to the training set."""
    images = load_images(DataConfig("digits"))
    for name, settings in (("strong", ["trainer.steps=400"]), ("weak", ["trainer.steps=150", "network.channels=8"])):
        config = load_config("digits-blurring", [*settings, "trainer.sample_every=1000"])
        Trainer(config, images, tmp_path / name).train()
    strong, weak = (Model.from_pretrained(tmp_path / name) for name in ("strong", "weak"))
    found = {
        guidance: evaluation.evaluate(strong.guided_by(weak, guidance), images, None, 1000, ["modes"]).modes_distance
        for guidance in (1.0, 1.5)
    }
    assert found[1.5] < found[1.0]
