"""The example of a process and a network of one's own, and its page, docs/your-own-process.md."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field, make_dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
import torch

import ihdm
from ihdm import cli, evaluation, memory
from ihdm.config import setting_rows
from ihdm.data import ImageSet
from ihdm.errors import UsageError
from ihdm.execution import Execution
from ihdm.export.programs import programs
from ihdm.model import Model
from ihdm.model_folder import ModelConfig
from ihdm.networks import build_network
from ihdm.processes import Process
from ihdm.registry import NETWORKS, PROCESSES
from ihdm.settings import setting
from ihdm.trainer import Trainer

ROOT = Path(__file__).parent.parent
EXAMPLE, PAGE = ROOT / "examples" / "own_process.py", ROOT / "docs" / "your-own-process.md"
SETTINGS = ["process.kind=fading", "network.kind=mixer", "network.width=8", "network.depth=2", "network.kinds=3"]


@pytest.fixture
def example(monkeypatch):
    """The example as a module; what it registers is known until the test ends."""
    for registry in (PROCESSES, NETWORKS):
        monkeypatch.setattr(registry, "_classes", dict(registry._classes))
    spec = importlib.util.spec_from_file_location("own_process", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "own_process", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def config(example, tiny_config):
    return tiny_config.with_settings(SETTINGS)


@pytest.fixture
def model(config, tiny_images) -> Model:
    torch.manual_seed(0)
    return Model.from_images(ModelConfig.of(config, tiny_images.shape, "blobs"), tiny_images.train).eval()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_process_has_at_most_40_lines_with_its_settings():
    tree = ast.parse(EXAMPLE.read_text())
    (process,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Fading")
    assert "Settings" in {node.name for node in process.body if isinstance(node, ast.ClassDef)}
    assert process.end_lineno - process.lineno + 1 <= 40


def test_nothing_of_ihdm_knows_of_it():
    for path in Path(ihdm.__file__).parent.rglob("*.py"):
        assert not re.search(r"\b([Ff]ading|[Mm]ixer|own_process)\b", path.read_text()), path


def test_what_is_registered_for_a_test_is_gone_after_it():
    assert "fading" not in PROCESSES and "mixer" not in NETWORKS


def test_it_trains_and_goes_on_to_the_bit(config, tiny_images, tmp_path):
    runs = tmp_path / "whole", tmp_path / "parts"
    assert Trainer(config, tiny_images, runs[0]).train()
    for steps in (2, 5, 6):
        assert Trainer(config.with_settings([f"trainer.steps={steps}"]), tiny_images, runs[1]).train()
    one, other = (Model.from_pretrained(run) for run in runs)
    weights = [model.network.state_dict() for model in (one, other)]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])
    assert one.process.state()["mean"].equal(other.process.state()["mean"])
    assert one.sample(3, steps=5).equal(other.sample(3, steps=5))


def test_saved_and_loaded_it_makes_the_same_images(model, tiny_images, tmp_path):
    mean = tiny_images.train.double().mean(0) / 255
    torch.testing.assert_close(model.process.state()["mean"], mean, atol=1e-6, rtol=0)
    few = model.sampled(steps=5)
    few.save_pretrained(tmp_path)
    again = Model.from_pretrained(tmp_path)
    assert again.sample(4, seed=2).equal(few.sample(4, seed=2)) and len(again.process.levels()) == 6
    assert "# A model of fading" in (tmp_path / "README.md").read_text()


def test_it_is_measured_like_any_other(model, tiny_images):
    found = evaluation.evaluate(model, tiny_images, None, 8, ("spectrum",))
    assert "log spectral distance" in found.table()


def test_it_can_be_exported(model):
    step = programs(model.sampled(steps=2))["step"]
    assert step.difference(step.traced().module()) < 1e-5


def test_what_it_cannot_do_is_refused_in_words(model, tiny_images):
    with pytest.raises(UsageError, match="fading has no likelihood"):
        evaluation.likelihood(model, tiny_images.held_out)
    with pytest.raises(UsageError, match="fading cannot restore what is blurred"):
        model.restore(torch.rand(1, 8, 8))


def test_it_computes_in_bfloat16_and_its_memory_is_counted(model, config):
    exact, low = (model.sample(4, steps=5, execution=Execution(p)) for p in (torch.float32, torch.bfloat16))
    torch.testing.assert_close(exact, low, atol=0.05, rtol=0)
    build = partial(build_network, ModelConfig.of(config, (3, 7, 9)))
    for precision in (torch.float32, torch.bfloat16):
        assert 0 < memory.to_sample(build, (3, 7, 9), 4, precision) < memory.to_train(build, (3, 7, 9), 4, precision)


def test_the_network_is_told_what_the_model_is_told(model):
    kinds, execution = torch.tensor([0, 1, 2, 2, 1]), Execution(batch_size=2)
    images = model.sample(5, condition=kinds, execution=execution)
    assert not torch.allclose(images, model.sample(5))
    for kind in range(3):
        alone = model.sample(5, condition=torch.full((5,), kind))
        torch.testing.assert_close(images[kinds == kind], alone[kinds == kind], atol=1e-5, rtol=0)


@pytest.mark.parametrize("inner", [torch.nn.Identity(), torch.nn.Conv2d(1, 1, 1).requires_grad_(False)])
def test_a_network_without_anything_to_learn_is_refused_in_words(inner, example, tiny_config, tiny_images, tmp_path):
    class Still(torch.nn.Sequential):
        Settings = type("Settings", (example.Mixer.Settings,), {})

        @classmethod
        def from_settings(cls, settings, domain):
            return cls(inner)

        def forward(self, u, k, condition=None):
            return super().forward(u)

    NETWORKS.register("still")(Still)
    with pytest.raises(UsageError, match="the network still has nothing to learn"):
        Trainer(tiny_config.with_settings(["network.kind=still"]), tiny_images, tmp_path / "run")


def test_a_network_that_insists_on_a_condition_is_refused_in_words(example, tiny_config):
    class Insistent(example.Mixer):
        class Settings(example.Mixer.Settings):
            pass

        def forward(self, u, k, condition):
            return super().forward(u, k, condition)

    NETWORKS.register("insistent")(Insistent)
    config = ModelConfig.of(tiny_config.with_settings(["network.kind=insistent"]), (1, 8, 8))
    with pytest.raises(UsageError, match=r"network insistent requires u, k, condition.*condition=None"):
        build_network(config)


def test_answers_of_another_shape_are_refused_in_words(example, tiny_config, tiny_images, tmp_path, model):
    """They would be broadcast over channels, in training as in sampling."""

    @NETWORKS.register("grey")
    class Grey(example.Mixer):
        @dataclass(frozen=True)
        class Settings(example.Mixer.Settings):
            pass

        def forward(self, u, k, condition=None):
            return super().forward(u, k, condition).mean(1, keepdim=True)

    colours = ImageSet(tiny_images.train.expand(-1, 3, -1, -1), tiny_images.held_out.expand(-1, 3, -1, -1), "blobs")
    for process in ("fading", "heat", "ddpm"):
        config = tiny_config.with_settings([f"process.kind={process}", "network.kind=grey"])
        with pytest.raises(UsageError, match=r"answers with \(1, 8, 8\) to each state of \(3, 8, 8\)"):
            Trainer(config, colours, tmp_path / process).train()
    model.network.forward = lambda u, k, condition=None: u[..., :1]
    with pytest.raises(UsageError, match=r"answers with \(1, 8, 1\) to each state of \(1, 8, 8\)"):
        model.sample(2)


@pytest.mark.parametrize("wrong", [torch.mean, lambda losses: losses[:, None].expand(-1, 8)], ids=["mean", "pixels"])
def test_a_loss_that_is_not_one_number_for_each_image_is_refused_in_words(
    wrong, example, config, tiny_images, tmp_path, monkeypatch
):
    loss = example.Fading.loss
    monkeypatch.setattr(example.Fading, "loss", lambda *words: wrong(loss(*words)))
    with pytest.raises(UsageError, match="the loss of Fading is one number for each image"):
        Trainer(config, tiny_images, tmp_path).train()


@pytest.mark.parametrize(
    "method, given, said",
    [
        ("from_state", Process.from_state, "cannot be made again from its own state: mean is not expected"),
        ("state", lambda self: {"mean": self.mean.value, "noise": 0.5}, "it has noise, a float"),
        ("state", lambda self: {"network.mean": self.mean.value}, "it has network.mean, a Tensor"),
    ],
)
def test_a_process_that_could_not_be_loaded_is_refused_before_training(
    method, given, said, example, config, tiny_images, tmp_path, monkeypatch
):
    function = given.__func__ if method == "from_state" else given
    monkeypatch.setattr(example.Fading, method, classmethod(function) if method == "from_state" else function)
    with pytest.raises(UsageError, match=said):
        Trainer(config, tiny_images, tmp_path)


def test_tied_weights_and_what_is_no_float_are_saved_as_they_are(example, tiny_config, tiny_images, tmp_path):
    @NETWORKS.register("tied")
    class Tied(example.Mixer):
        @dataclass(frozen=True)
        class Settings(example.Mixer.Settings):
            pass

        def __init__(self, *words):
            super().__init__(*words)
            self.blocks[1].known.weight = self.blocks[0].known.weight
            self.register_buffer("order", torch.arange(2**24 + 1, 2**24 + 9))
            self.register_buffer("waves", torch.polar(torch.ones(8), torch.arange(8.0)))

    config = tiny_config.with_settings([word.replace("mixer", "tied") for word in SETTINGS])
    assert Trainer(config, tiny_images, tmp_path).train()
    model = Model.from_pretrained(tmp_path)
    for dtype in (torch.float32, torch.bfloat16):
        model.save_pretrained(tmp_path / "copy", dtype)
        copy = Model.from_pretrained(tmp_path / "copy").network
        assert copy.order.equal(model.network.order) and copy.waves.equal(model.network.waves)
        assert copy.blocks[1].known.weight is copy.blocks[0].known.weight


def test_another_kind_keeps_what_it_can_of_the_settings(example, tiny_config):
    """The preset's K, but nothing that is out of range, or of another type, for its own setting of that name."""

    class Short(example.Fading):
        @dataclass(frozen=True)
        class Settings(example.Fading.Settings):
            K: int = setting(5, "number of levels", least=1, most=9)
            skip: int = setting(1, "something else")

    PROCESSES.register("short")(Short)
    assert tiny_config.with_settings(["process.kind=fading"]).process.K == 10
    assert tiny_config.with_settings(["process.kind=short"]).process == Short.Settings(5, 0.5, 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"K": (int, 10)}, r"Odd\.\w+\.K is not made by setting\(\.\.\.\); write K: TYPE = setting\("),
        ({"K": (int, field())}, r"\.K is not made by setting"),
        ({"K": (int, setting(1, "x")), "m": (list, field(default_factory=list))}, r"\.m is not made by setting"),
        (
            {"widths": (list[int], setting((), "widths"))},
            r"\.widths is of type list\[int\]; a setting is of type int, ",
        ),
        ({"width": (int | float, setting(1, "width"))}, r"\.width is of type int \| float; "),
        ({"width": (tuple[list[int], ...], setting((), "width"))}, r"\.width is of type tuple\[list"),
        ({"width": (tuple, setting((), "width"))}, r"\.width is of type .*tuple"),
        (None, r"Odd\.\w+ is not a dataclass; write @dataclass\(frozen=True\) above it"),
    ],
)
@pytest.mark.parametrize("part", ["Settings", "Sampling"])
def test_settings_that_could_not_be_read_are_refused_when_they_are_registered(example, part, fields, message):
    made = (
        type(part, (), {}) if fields is None else make_dataclass(part, [(name, *rest) for name, rest in fields.items()])
    )
    own = {"Settings": make_dataclass("Settings", [])} | {part: made}
    with pytest.raises(UsageError, match=message):
        PROCESSES.register("odd")(type("Odd", (example.Fading,), own))
    assert "odd" not in PROCESSES


def test_settings_that_inherit_must_be_a_dataclass_too(example):
    class Settings(example.Fading.Settings):
        more: int = setting(1, "something else")

    with pytest.raises(UsageError, match=r"Odd\.Settings is not a dataclass"):
        PROCESSES.register("odd")(type("Odd", (example.Fading,), {"Settings": Settings}))


def test_settings_of_every_type_that_can_be_read_are_registered(example):
    kinds = int, float, bool, str, Literal["a", "b"], tuple[int, ...], tuple[float, ...] | None, Literal["a"] | None
    columns = [(f"s{number}", kind, setting(None, "something")) for number, kind in enumerate(kinds)]
    settings = make_dataclass("Settings", columns, frozen=True)
    PROCESSES.register("rich")(type("Rich", (example.Fading,), {"Settings": settings}))
    assert dict(setting_rows())["process.s0"].startswith("rich: something")


def test_the_shared_suites_pass_with_it(tmp_path):
    """As the page says, in a process of its own."""
    (command,) = (line for block in blocks("bash") for line in block.splitlines() if "pytest" in line)
    environment = dict(word.split("=", 1) for word in shlex.split(command) if re.match("[A-Z]+=", word))
    words = [word for word in shlex.split(command)[len(environment) :] if word != "pytest"]
    assert {"own_law", "tests/test_every_process.py", "tests/test_every_network.py"} <= set(words)
    options = ["-p", "no:cacheprovider", f"--basetemp={tmp_path}"]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *words, *options],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0 and re.search(r"\b[2-9]\d passed", ran.stdout), ran.stdout[-3000:]


def test_the_page_quotes_the_example_and_shows_all_of_the_process():
    source, quoted = EXAMPLE.read_text(), blocks("python")
    assert len(quoted) > 4
    for block in quoted:
        assert block in source, block
    shown = "".join(quoted)
    for line in source[source.index("@PROCESSES") : source.index("@NETWORKS")].splitlines():
        assert line in shown, line


def test_the_pages_commands_run_as_they_stand_there(example, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    said = {}
    for words in (shlex.split(line, comments=True) for line in lines if line.startswith("python ")):
        assert words[:2] == ["python", "examples/own_process.py"]
        verb, *rest = words[2:]
        if verb == "app":
            continue  # it runs until it is stopped
        if verb == "train":
            rest += ["trainer.steps=2", "trainer.samples=4", "network.width=8"]
        if verb == "evaluate":
            rest += ["--n", "8"]
        cli.main([verb, *rest])
        said[verb] = capsys.readouterr().out
    assert {"train", "sample", "info", "evaluate"} <= set(said)
    assert "fading" in said["info"] and "log spectral distance" in said["evaluate"]
    cli.main(["train", *rest_of_training(lines)])
    assert "is already at step 2; nothing to do" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        cli.main(["likelihood", "runs/faded", "--data", "digits"])
    assert "fading has no likelihood" in capsys.readouterr().err
    cli.main(["settings"])
    assert "fading: standard deviation of the noise" in capsys.readouterr().out


def rest_of_training(lines: list[str]) -> list[str]:
    """The page's command to train, with as little to do as before."""
    (line,) = (line for line in lines if line.startswith("python examples/own_process.py train"))
    return [*shlex.split(line, comments=True)[3:], "trainer.steps=2", "trainer.samples=4", "network.width=8"]


def test_it_is_a_program_of_its_own(tmp_path):
    run = partial(subprocess.run, cwd=tmp_path, capture_output=True, text=True)
    words = ["info", "digits", "--set", "process.kind=fading", "network.kind=mixer"]
    assert "fading, K 100, noise 0.5" in run([sys.executable, str(EXAMPLE), *words]).stdout
    refused = run([sys.executable, "-m", "ihdm", *words])
    assert refused.returncode == 2 and "unknown process 'fading'; one of: " in refused.stderr


def test_it_has_a_page(model: Model, tiny_images: ImageSet):
    gr = pytest.importorskip("gradio", reason="the page needs gradio: pip install 'ihdm[app]'")
    from ihdm.app.page import build
    from ihdm.app.studio import Studio

    tabs = [block.label for block in build({"tiny": Studio(model)}).blocks.values() if isinstance(block, gr.Tab)]
    assert tabs == ["Generate", "Interpolate", "Branch"]
