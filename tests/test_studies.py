"""Every study runs, quickly, with one tiny model for all; what they compute is tested where it has a closed form."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import shutil
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
import torch

import ihdm
from ihdm import studies
from ihdm.cli import main
from ihdm.config import load_config
from ihdm.model import Model
from ihdm.model_folder import ModelConfig
from ihdm.noise import BranchingNoise, InterpolatedNoise, SeededNoise
from ihdm.studies import STUDIES
from ihdm.studies.colour_and_shape import _explained
from ihdm.studies.input_gradients import _within
from ihdm.studies.interpolation import _roughness
from ihdm.studies.lab import ANY_DATA, PAPER_WORDS, Lab, own_settings
from ihdm.studies.power_spectrum import _slope
from ihdm.studies.relatives import Relative, _timed
from ihdm.studies.verdict import Verdict

SLOW, FAR = pytest.mark.slow, ("sequence", "interpolation")
TINY = ["trainer.steps=8", "trainer.checkpoint_every=4", "process.K=8", "network.channels=8", "trainer.batch_size=8"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("studies")


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_makes_a_picture_numbers_and_words(name, folder, capsys):
    words = [word for setting in TINY for word in ("--set", setting)]
    main(["study", name, "--quick", "--out", str(folder), "--device", "cpu", *words])
    said = capsys.readouterr().out
    tree = json.loads((folder / f"{name}.json").read_text())
    assert tree["study"] == name and "--quick" in tree["command"] and tree["numbers"]
    assert tree["verdict"] in get_args(Verdict) and len(tree["claim"]) > 40
    judged = import_module(f"ihdm.studies.{name.replace('-', '_')}")
    assert (tree["claim"], tree["verdict"]) == (judged.CLAIM, judged.verdict(tree["numbers"]))  # by what is written
    assert f"Claim: {tree['claim']}\nVerdict: {tree['verdict']}\n" in said and f"{name}.md" in said
    text = (folder / f"{name}.md").read_text()
    assert f"**Claim:** {tree['claim']}\n" in text and f"**Verdict:** {tree['verdict']}\n" in text
    assert all(word in text for word in ("**Look for:**", "**The paper:**", "**Here:**", f"({name}.png)"))
    assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_folder_says_how_what_it_is_compared_with_is_trained(folder, tmp_path, monkeypatch):
    """Its own images and settings are taken, unless others are named."""
    run = Lab(folder, settings=tuple(TINY), quick=True, device_name="cpu").run()
    for model in (run, run / "model"):
        lab = Lab(tmp_path, str(own_settings(str(model))), model_name=str(model), device_name="cpu")
        assert lab.config.trainer.steps == 8 and lab.config.process.K == 8 and lab.images.name == "digits"
        assert lab.command("sequence", "own") == "ihdm study sequence --model own"
    lab = Lab(folder, settings=tuple(TINY), quick=True, device_name="cpu")
    assert own_settings(str(lab.run(*lab.diffusion))) is None  # the baseline says nothing of what it is compared with
    assert own_settings("mnist-ready") is None and own_settings(None) is None
    monkeypatch.chdir(tmp_path)
    Path("config.toml").write_text("[tool]\nname = 'of another program'\n")
    assert own_settings("mnist-ready") is None


def test_a_given_model_is_studied(folder, tmp_path, capsys, monkeypatch):
    model = Lab(folder, settings=tuple(TINY), quick=True, device_name="cpu").run() / "model"
    main(["study", "same-start", "--quick", "--model", str(model), "--data", "digits", "--out", str(tmp_path)])
    assert json.loads((tmp_path / "same-start.json").read_text())["model"] == model.parent.name
    assert not (tmp_path / "models").exists()  # nothing was trained
    monkeypatch.chdir(model.parent)
    main(["study", "same-start", "--quick", "--model", ".", "--data", "digits", "--out", str(tmp_path)])
    command = json.loads((tmp_path / "same-start.json").read_text())["command"]
    assert command == f"ihdm study same-start --model {model.parent.name} --data digits --quick"


@pytest.fixture(scope="module")
def of_volumes(tmp_path_factory):
    """A folder for studies of tiny volumes, and what to say for them."""
    folder, settings = tmp_path_factory.mktemp("volumes"), [*TINY, "data.size=4", "network.pyramid=none"]
    settings += ["network.multipliers=1,2", "network.attention=none"]
    words = [word for setting in settings for word in ("--set", setting)]
    return folder, ["--quick", "--preset", "orbitals", "--out", str(folder), "--device", "cpu", *words]


@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW if name in FAR else ()) for name in ANY_DATA])
def test_studies_of_any_data_are_of_volumes_too(name, of_volumes):
    folder, words = of_volumes
    main(["study", name, *words])
    tree = json.loads((folder / f"{name}.json").read_text())
    assert tree["data"] == "orbitals" and "--preset orbitals" in tree["command"] and tree["numbers"]
    assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_studies_of_images_refuse_other_data_before_any_work(of_volumes, tmp_path, capsys, monkeypatch):
    folder, words = of_volumes
    main(["study", "sequence", *words])
    (model,) = (path for path in folder.glob("models/*/model") if "heat" in (path / "config.json").read_text())
    shutil.copytree(model, tmp_path / "alone")  # without its run, which would name its data
    given = ["--quick", "--model", str(tmp_path / "alone"), "--out", str(tmp_path)]
    monkeypatch.setattr("ihdm.studies.lab.load_images", lambda *_, **__: pytest.fail("work began"))
    for name in set(STUDIES) - set(ANY_DATA):
        for some in (words, given):
            with pytest.raises(SystemExit, match="2"):
                main(["study", name, *some])
            said = capsys.readouterr().err
            assert (
                f"the study {name} is about images" in said
                and "is for volumes; the studies for any data are sequence" in said
            )
    with pytest.raises(SystemExit, match="2"):
        main(["study", "sequence", *given])
    said = capsys.readouterr().err
    assert "makes volumes of 4x4x4 in 2 channels, and the preset digits has images of 8x8" in said


@pytest.fixture(scope="module")
def four_channels(tmp_path_factory):
    """A model of images unlike the digits in everything: two rows more, four channels."""
    place = tmp_path_factory.mktemp("given") / "four"
    config = load_config("digits", ["process.K=8", "network.channels=8"])
    images = torch.randint(0, 256, (40, 4, 10, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    Model.from_images(ModelConfig.of(config, (4, 10, 8), "photos"), images).save_pretrained(place)
    return place


@pytest.mark.parametrize("name", STUDIES)
def test_images_of_another_shape_than_the_models_are_refused_before_any_work(
    name, four_channels, tmp_path, capsys, monkeypatch
):
    for work in ("path", "restore", "runner"):
        monkeypatch.setattr(Model, work, lambda *_, **__: pytest.fail("work began"), raising=False)
    with pytest.raises(SystemExit) as stop:
        main(["study", name, "--quick", "--model", str(four_channels), "--out", str(tmp_path)])
    said = capsys.readouterr().err
    assert stop.value.code == 2 and "images of 4x10x8" in said and "preset digits are 1x8x8" in said
    assert "--data photos" in said and "--data digits" in said and not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["sequence", "branches", "network-bias", "power-spectrum", "neighbours"])
def test_named_images_are_brought_to_the_models_shape(name, four_channels, tmp_path):
    words = ["--model", str(four_channels), "--data", "digits", "--out", str(tmp_path), "--device", "cpu"]
    main(["study", name, "--quick", *words])
    tree = json.loads((tmp_path / f"{name}.json").read_text())
    assert tree["command"] == f"ihdm study {name} --model four --data digits --quick" and tree["data"] == "digits"


@pytest.mark.parametrize("name", ["delta-sweep", "few-shot", "prior-overlap", "neighbours", "network-bias", "family"])
def test_studies_of_held_out_images_need_some(name, folder, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        words = [word for setting in (*TINY, "data.holdout=0") for word in ("--set", setting)]
        main(["study", name, "--quick", "--out", str(tmp_path), "--device", "cpu", *words])
    said = capsys.readouterr().err
    assert stop.value.code == 2 and "looks at held-out images, and digits has none" in said


def test_a_study_that_only_evaluates_trains_its_model_in_an_empty_folder(tmp_path):
    words = [word for setting in TINY for word in ("--set", setting)]
    main(["study", "network-bias", "--quick", "--out", str(tmp_path), "--device", "cpu", *words])
    assert len(list(tmp_path.glob("models/*/model"))) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_every_study_runs_however_the_model_is_sampled(name, folder, capsys):
    command = ["study", name, "--quick", "--out", str(folder), "--device", "cpu", "--set", *TINY]
    main(command)  # trains what other tests have not
    trained = sorted(folder.glob("models/*"))
    capsys.readouterr()
    main([*command, "sampling.sampler=exact", "sampling.steps=4", "sampling.eta=0.25"])
    assert "training digits" not in capsys.readouterr().out and sorted(folder.glob("models/*")) == trained


def test_a_trained_model_samples_as_it_is_asked_to(folder):
    lab = Lab(folder, settings=(*TINY, "sampling.sampler=exact", "sampling.eta=0"), quick=True, device_name="cpu")
    exact, paper = lab.trained(), lab.trained(*PAPER_WORDS, "sampling.delta_ratio=2")
    assert (exact.config.sampling.sampler, exact.process.sampling.eta) == ("exact", 0)
    assert (paper.config.sampling.sampler, paper.process.sampling.delta_ratio) == ("paper", 2)
    assert lab.run() == lab.run(*PAPER_WORDS, "sampling.delta_ratio=2") != lab.run(*lab.diffusion)
    assert all(torch.equal(a, b) for a, b in zip(exact.parameters(), paper.parameters()))
    given = Lab(folder, settings=("sampling.sampler=exact", "sampling.steps=4"), model_name=str(lab.run()), quick=True)
    assert len(given.model().process.levels()) == 5
    baseline = lab.trained(*lab.diffusion, "sampling.clip=false")
    assert baseline.process.K == exact.process.K and not baseline.process.sampling.clip


def test_what_is_about_blur_refuses_other_processes_in_words(folder, tmp_path, capsys):
    lab = Lab(folder, settings=tuple(TINY), quick=True, device_name="cpu")
    given = ["--model", str(lab.run(*lab.diffusion)), "--data", "digits"]
    about_blur = ("sequence", "branches", "network-bias", "power-spectrum", "prior-overlap", "blur-operators")
    about_blur += ("same-start", "colour-and-shape", "interpolation", "input-gradients", "delta-sweep", "exact-steps")
    for name in about_blur:
        with pytest.raises(SystemExit) as stop:
            main(["study", name, "--quick", *given, "--out", str(tmp_path)])
        assert stop.value.code == 2
        assert re.search("about blur, and denoising diffusion has no .*sigma", capsys.readouterr().err)
    with pytest.raises(SystemExit, match="2"):
        main(["study", "restore", "--quick", *given, "--out", str(tmp_path)])
    assert "cannot restore" in capsys.readouterr().err
    main(["study", "neighbours", "--quick", *given, "--out", str(tmp_path)])


def test_exact_steps_are_measured_in_fewer_and_fewer_steps(folder):
    numbers = json.loads((folder / "exact-steps.json").read_text())["numbers"]
    steps = {way["steps"] for way in numbers["ways"].values() if way.get("eta") == 0}
    assert steps == {8, 4, 2, 1} and list(numbers["distance"]) == list(numbers["ways"])
    assert all(math.isfinite(distance) for distance in numbers["distance"].values())


@pytest.mark.parametrize("name", ["family", "how-much-blur"])
def test_relatives_differ_in_the_process_alone_whichever_the_preset_has(name, tmp_path):
    presets = ("cifar10", "cifar10-blurring", "cifar10-growing", "cifar10-soft")
    for relative in import_module(f"ihdm.studies.{name.replace('-', '_')}").parts(False).values():
        labs = [Lab(tmp_path, preset, ("trainer.steps=12500", "process.K=123")) for preset in presets]
        configs = [lab.config.with_settings(relative.words(lab)) for lab in labs]
        assert len({config.process for config in configs}) == 1 and configs[0].process.K == 123
        for lab, config in zip(labs, configs):
            assert config.trainer == lab.config.trainer
            assert (config.network, config.data) == (lab.config.network, lab.config.data)


@pytest.mark.parametrize(("given", "steps"), [((), 300), (("trainer.steps=50",), 50)])
def test_quick_relatives_train_for_half_the_usual_steps_or_for_those_that_are_given(given, steps, tmp_path):
    lab = Lab(tmp_path, settings=given, quick=True)
    assert lab.config.with_settings(Relative("kind=cold").words(lab)).trainer.steps == steps


def test_a_model_is_named_by_its_images_and_by_what_is_not_usual(tmp_path):
    """So that a setting which is new, and a set of images which has moved, leave its name as it is."""
    lab = Lab(tmp_path, "digits", ("trainer.steps=12",))
    name = lab.folder("process.kind=blurring")
    unusual = lab.unusual("process.kind=blurring")
    assert unusual["process.kind"] == "blurring" and unusual["trainer.steps"] == 12 and "trainer.keep" not in unusual
    usual = Lab(tmp_path, "digits", ("trainer.steps=12", "trainer.keep=2", "engine.precision=bf16"))
    assert usual.folder("process.kind=blurring") == name
    moved = replace(lab, data=str(Path(ihdm.__file__).parent / "data" / "digits-idx3-ubyte.gz"))
    assert moved.folder("process.kind=blurring") == name
    others = {lab.folder(), lab.folder("process.kind=blurring", "process.K=99"), lab.folder("process.kind=ddpm")}
    assert len(others | {name}) == 4


def test_a_study_in_parts_finds_what_was_measured_and_says_what_is_missing(tmp_path, capsys):
    words = [word for setting in TINY for word in ("--set", setting)]
    words = ["--quick", "--out", str(tmp_path), "--device", "cpu", *words]
    main(["study", "family", *words, "--only", "cold", "late-blur"])
    numbers = json.loads((tmp_path / "family.json").read_text())["numbers"]
    assert list(numbers["relatives"]) == ["cold", "late-blur"]
    assert numbers["missing"] == ["heat", "growing", "soft", "blurring", "diffusion"]
    assert numbers["relatives"]["cold"]["bits_per_dimension"] is None
    late = numbers["relatives"]["late-blur"]
    assert late["steps"] == [8, 2, 1] and len(late["distance"]) == len(late["sampled"]) == 3
    assert late["bits_per_dimension"] > 0 and min(late["seconds_per_image"]) > 0
    said = capsys.readouterr().out
    assert "Not measured yet: heat, growing, soft, blurring, diffusion (`--only heat" in said
    assert (
        "Verdict: too small to tell" in said
        and "| cold | `kind=cold sigma_B_max=auto` |" in (tmp_path / "family.md").read_text()
    )
    shutil.rmtree(tmp_path / "models")  # as if on another machine, to which the measurements were brought
    main(["study", "how-much-blur", *words, "--only", "late-8"])
    assert "training digits" not in capsys.readouterr().out and not (tmp_path / "models").exists()
    tree = json.loads((tmp_path / "how-much-blur.json").read_text())
    assert tree["numbers"]["relatives"] == {"late-8": late} and "--only" not in tree["command"]
    (kept,) = [path for path in (tmp_path / "measured").iterdir() if "kind=cold" in path.read_text()]
    kept.write_text(kept.read_text()[:-40])
    with pytest.raises(SystemExit, match="1"):
        main(["study", "family", *words, "--only", "cold"])
    assert "is damaged" in capsys.readouterr().err


def test_parts_that_do_not_exist_are_refused(tmp_path, capsys):
    for name, part, message in (
        ("family", "haet", "unknown part of family 'haet'; did you mean 'heat'?"),
        ("sequence", "heat", "the study sequence has no parts"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(["study", name, "--quick", "--only", part, "--out", str(tmp_path)])
        assert message in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_the_time_of_an_image_leaves_out_the_first_of_several_batches(monkeypatch):
    clock = iter([0.0, 10.0, 11.0, 12.0])  # begun, then the end of each batch
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    images, seconds = _timed([torch.zeros(4, 1, 2, 2)] * 3)
    assert len(images) == 12 and seconds == pytest.approx(2 / 8)


def test_studies_are_listed_and_unknown_ones_refused(capsys):
    main(["study", "--list"])
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == list(STUDIES)
    for words, message in ((["study"], "--list"), (["study", "sequense"], "did you mean 'sequence'")):
        with pytest.raises(SystemExit) as stop:
            main(words)
        assert stop.value.code == 2 and message in capsys.readouterr().err


def test_a_study_of_ones_own_is_run_like_any_other(folder, monkeypatch, capsys):
    for table in ("STUDIES", "OWN"):
        monkeypatch.setattr(studies, table, dict(getattr(studies, table)))
    monkeypatch.setattr("ihdm.verbs.study.STUDIES", studies.STUDIES)
    path = Path(__file__).parent.parent / "examples" / "own_study.py"
    spec = importlib.util.spec_from_file_location("own_study", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "own_study", module)
    spec.loader.exec_module(module)
    words = [word for setting in TINY for word in ("--set", setting)]
    main(["study", "brightness", "--quick", "--out", str(folder), "--device", "cpu", *words])
    tree = json.loads((folder / "brightness.json").read_text())
    assert tree["verdict"] == module.verdict(tree["numbers"]) and tree["claim"] == module.CLAIM
    assert (folder / "brightness.png").read_bytes().startswith(b"\x89PNG")
    main(["study", "--list"])
    assert "brightness        whether samples are as bright" in capsys.readouterr().out
    with pytest.raises(ValueError, match="there is a study 'family' already"):
        studies.register("family", "mine", module)
    with pytest.raises(ValueError, match="the study 'half' has no CLAIM, verdict"):
        studies.register("half", "mine", SimpleNamespace(study=module.study))


def test_branches_share_their_noise_until_they_part():
    noise = BranchingNoise(0, torch.tensor([8, 5, 2]), (1, 2, 2))
    groups = {9: 1, 8: 2, 6: 2, 5: 4, 3: 4, 2: 8, 1: 8}  # different draws at each level
    for k, count in groups.items():
        rows = noise(torch.tensor(k)).flatten(1)
        assert len(rows) == 8 and len(rows.unique(dim=0)) == count
    assert noise(torch.tensor(5))[:2].unique(dim=0).shape[0] == 1  # neighbours part last


def test_interpolated_noise_joins_two_draws_and_stays_standard():
    shape, k = (1, 50, 50), torch.tensor(3)
    one, other = (SeededNoise(0, torch.full((5,), number), shape) for number in (1, 2))
    found = InterpolatedNoise(one, other, torch.linspace(0, 1, 5))(k)
    torch.testing.assert_close(found[0], one(k)[0])
    torch.testing.assert_close(found[-1], other(k)[-1], atol=1e-5, rtol=0)
    assert all(abs(float(row.std()) - 1) < 0.06 for row in found)


def test_shares_of_variance(generator):
    start, noise = torch.randn(1, 300, 4, generator=generator), torch.randn(200, 1, 4, generator=generator)
    both = start + 2 * noise
    assert _explained(both, 1) == pytest.approx(0.2, abs=0.05) and _explained(both, 0) == pytest.approx(0.8, abs=0.05)
    assert _explained(start.expand(200, -1, -1), 1) == pytest.approx(1, abs=1e-5)


def test_numbers_of_the_studies_on_what_is_known():
    assert _roughness(torch.arange(10.0).view(-1, 1, 1, 1)) == pytest.approx(1)
    assert _roughness(torch.tensor([0.0, 0, 0, 1]).view(-1, 1, 1, 1)) == pytest.approx(3)
    near = torch.zeros(1, 20, 20)
    near[0, 10, 11] = -1.0
    assert _within(near) == 1
    assert _within(near.roll(8, 1)) == 0
    x = torch.linspace(0.1, 3, 50).double()
    assert _slope(x.log(), (7 * x**-1.7).log()) == pytest.approx(1.7)


def test_langevin_error_falls_as_one_over_K(folder):
    numbers = json.loads((folder / "langevin-limit.json").read_text())["numbers"]
    assert numbers["slope"] == pytest.approx(-1, abs=0.1)
    assert math.isclose(numbers["relative_error"][-1], 0, abs_tol=0.01)
