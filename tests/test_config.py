from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import ihdm
from ihdm.config import (
    Config,
    DataConfig,
    config_from_toml,
    config_to_toml,
    differences,
    load_config,
    presets,
    setting_rows,
)
from ihdm.errors import IhdmError, UsageError
from ihdm.registry import NETWORKS, PROCESSES
from ihdm.settings import setting, updated, words

PAPER = {  # tables 1 and 2 of App. B: K, sigma_B_max, delta, size, multipliers, blocks, lr, attention sizes, ema, batch
    "mnist": (100, 20, 0.0125, 28, (1, 2, 2), 4, 1e-4, (7,), 0.999, 128),
    "cifar10": (200, 24, 0.01325, 32, (1, 2, 2, 2), 4, 2e-4, (8, 4), 0.999, 128),
    "ffhq-256": (200, 128, 0.0125, 256, (1, 2, 3, 4, 5), 2, 2e-5, (64, 32, 16), 0.9999, 32),
    "ffhq-128": (200, 128, 0.0125, 128, (1, 2, 3, 4, 5), 2, 2e-5, (32, 16, 8), 0.999, 32),
    "afhq-256": (200, 128, 0.01275, 256, (1, 2, 3, 4, 5), 2, 2e-5, (64, 32, 16), 0.9999, 32),
    "afhq-64": (200, 32, 0.0125, 64, (1, 2, 3, 4), 2, 1e-4, (16, 8), 0.999, 128),
    "lsun-church-128": (400, 64, 0.0125, 128, (1, 2, 3, 4, 5), 2, 2e-5, (32, 16, 8), 0.999, 32),
}

USUAL = {"process": "heat", "network": "unet"}


@pytest.mark.parametrize("name", PAPER)
def test_presets_say_what_the_papers_tables_say(name):
    config = load_config(name)
    process, network, trainer = config.process, config.network, config.trainer
    size = config.data.size[0]
    found = (
        process.K,
        process.sigma_B_max,
        pytest.approx(config.sampling.delta_ratio * process.sigma),
        size,
        network.multipliers,
        network.blocks,
        trainer.lr,
        tuple(size // 2**level for level in network.attention),
        trainer.ema,
        trainer.batch_size,
    )
    assert PAPER[name] == found
    assert (process.sigma, process.skip, network.channels, network.dropout) == (0.01, "identity", 128, 0.1)
    assert (trainer.warmup, trainer.clip, network.resample) == (5000, 1.0, "pool")
    assert config.data.flip == name.startswith("afhq")
    assert (config.sampling.sampler, config.sampling.steps) == ("paper", None)


def test_a_preset_lists_only_what_differs():
    for file in (Path(ihdm.__file__).parent / "presets").glob("*.toml"):
        preset = load_config(file.stem)
        kinds = {name: {"kind": preset.tree()[name]["kind"]} for name in ("process", "network")}
        default, other = Config().with_tree(kinds), sum(kinds[name] != {"kind": usual} for name, usual in USUAL.items())
        written = re.findall(r"^(\w+) = ", file.read_text(), re.MULTILINE)
        assert len(written) == 1 + other + len(differences(default, preset)), file.name


@pytest.mark.parametrize("name", presets())
def test_a_configuration_survives_the_trip_through_toml(name):
    config = load_config(name)
    assert config_from_toml(config_to_toml(config), "test") == config


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("trainer.steps=1e3", 1000),
        ("trainer.steps=10_000", 10_000),
        ("process.sigma=0", 0.0),
        ("process.sigma_B_max=auto", None),
        ("data.size=32", (32, 32)),
        ("data.size=27x41", (27, 41)),
        ("data.size=auto", None),
        ("data.flip=True", True),
        ("network.multipliers=1,2,2", (1, 2, 2)),
        ("network.multipliers=[1, 3]", (1, 3)),
        ("network.attention=[]", ()),
        ("network.attention=none", ()),
        ("process.skip=linear", "linear"),
        ("data.source=a=b", "a=b"),
        ("sampling.steps=auto", None),
        ("sampling.sampler=exact", "exact"),
        ("sampling.eta=0", 0.0),
    ],
)
def test_settings_are_read_by_type(word, expected):
    section, key = word.split("=")[0].split(".")
    config = Config().with_settings(["network.attention=0", word])
    assert getattr(getattr(config, section), key) == expected


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("process.k=3", "did you mean 'process.K'"),
        ("trainer.step=3", "did you mean 'trainer.steps'"),
        ("proces.K=3", "did you mean 'process.K'"),
        ("process.K", "name=value"),
        ("process.K=", "name=value"),
        ("process.K=0", "at least 1"),
        ("process.K=many", "a whole number"),
        ("process.K=2.5", "a whole number"),
        ("process.sigma=-0.1", "at least 0"),
        ("process.sigma=nan", "finite"),
        ("sampling.delta_ratio=-1", "at least 0"),
        ("process.sigma_B_max=0.4", "larger than"),
        ("process.skip=none", "'identity', 'linear'"),
        ("data.flip=maybe", "true or false"),
        ("data.size=1x2x3", "height x width"),
        ("data.size=0", "at least 1"),
        ("data.size=8x", "a whole number"),
        ("network.multipliers=1,two", "a whole number"),
        ("network.multipliers=[]", "at least one"),
        ("network.attention=9", "only resolutions 0..3"),
        ("trainer.lr=0", "larger than 0"),
        ("network.dropout=1", "at most"),
        ("process.kind=heet", "did you mean 'heat'"),
        ("network.kind=unets", "did you mean 'unet'"),
        ("process.betas=cosine", "the process heat has: K, sigma"),
        ("process.delta_ratio=1", "unknown setting 'process.delta_ratio'"),
        ("sampling.clip=false", "sampling by the process heat has: steps"),
        ("sampling.sampler=magic", "'paper', 'exact'"),
        ("sampling.steps=7", "200 in all: leave out --steps (or --set sampling.steps=auto), or take 7 exact steps"),
        ("sampling.eta=2", "at most 1"),
        ("sampling.order=3", "at most 2"),
    ],
)
def test_wrong_settings_are_refused_with_what_to_do(word, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        Config().with_settings([word])


@pytest.mark.parametrize("preset", presets())
def test_settings_are_shown_as_they_can_be_typed(preset):
    for section in vars(load_config(preset)).values():
        typed = dict(word.split(" ", 1) for word in words(section))
        assert updated(type(section)(), typed) == section


def test_data_settings_made_in_python_are_checked_like_others():
    data = DataConfig(Path("some") / "images", size=32, channels="auto", holdout=0)
    assert (data.source, data.size, data.channels) == (str(Path("some") / "images"), (32, 32), None)
    assert DataConfig("digits", size="8x9") == DataConfig("digits", size=[8, 9]) == DataConfig("digits", size=(8, 9))
    for wrong, message in (
        ({"size": 2.5}, "data.size must be a whole number"),
        ({"kind": "x"}, "unknown kind of data 'x'"),
    ):
        with pytest.raises(UsageError, match=message):
            DataConfig("digits", **wrong)


def test_numbers_of_numpy_become_pythons_and_no_others_are_taken():
    sweep = {"steps": np.int64(7), "lr": np.float32(0.5), "warmup": np.float64(3), "seed": np.uint64(2**63 - 1)}
    plain = {"steps": 7, "lr": 0.5, "warmup": 3, "seed": 2**63 - 1}
    config = Config().with_tree({"trainer": sweep, "network": {"attention": [np.int8(1), np.int16(2)]}})
    found = {name: getattr(config.trainer, name) for name in sweep}
    assert found == plain and [type(number) for number in found.values()] == [int, float, int, int]
    assert config_from_toml(config_to_toml(config), "test") == config
    for wrong in (np.float32(2.5), np.bool_(True), True, np.float64("nan"), np.float32("inf"), 2j, np.array([1, 2])):
        with pytest.raises(UsageError, match=r"trainer\.steps must be a whole number, not"):
            Config().with_tree({"trainer": {"steps": wrong}})


def test_a_choice_between_numbers_becomes_one_of_pythons():
    @dataclass(frozen=True)
    class Choices:
        order: Literal[1, 2] = setting(1, "one of two")

    assert type(updated(Choices(), {"order": np.int64(2)}).order) is int


def test_a_linear_skip_without_noise_is_refused():
    with pytest.raises(UsageError, match="identity"):
        Config().with_settings(["process.skip=linear", "process.sigma=0"])


@pytest.mark.parametrize("word", ["process.sigma=0", "process.blur=gaussian"])
def test_exact_steps_need_noise_and_the_heat_equation(word):
    with pytest.raises(UsageError, match="exact steps need"):
        Config().with_settings(["sampling.sampler=exact", word])


@pytest.mark.parametrize(
    ("preset", "words", "expected"),
    [
        ("digits", ["sampling.delta_ratio=1.5"], {"sampler": "paper", "steps": None, "delta_ratio": 1.5}),
        ("digits", ["sampling.sampler=paper"], {"sampler": "paper", "steps": None}),
        ("digits", ["sampling.eta=0"], {"sampler": "exact", "steps": 25, "eta": 0}),
        ("mnist", ["sampling.order=1", "sampling.steps=9"], {"sampler": "exact", "steps": 9, "order": 1}),
        ("mnist", ["process.kind=soft", "sampling.eta=0.3"], {"sampler": "exact", "eta": 0.3}),
        ("digits", ["process.kind=soft", "sampling.steps=9"], {"sampler": "momentum", "steps": 9}),
        ("digits-growing", ["sampling.eta=0.3"], {"steps": 25, "eta": 0.3}),
    ],
)
def test_a_setting_that_only_one_sampler_has_chooses_it(preset, words, expected):
    """As `Model.sample(delta_ratio=1.5)` does."""
    assert vars(load_config(preset, words).sampling).items() >= expected.items()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["sampling.sampler=exact", "sampling.delta_ratio=1"],
            "delta_ratio is for the sampler 'paper', not for 'exact'",
        ),
        (["sampling.eta=0", "sampling.delta_ratio=1"], "eta is for the sampler 'exact', not for 'paper'"),
        (["process.kind=soft", "sampling.sampler=momentum", "sampling.eta=0"], "not for 'momentum'"),
    ],
)
def test_a_setting_of_another_sampler_than_the_one_asked_for_is_refused(words, message):
    with pytest.raises(UsageError, match=message):
        load_config("digits", words)


def test_another_process_has_settings_of_its_own():
    """What was changed of those that both have is kept; sampling starts afresh."""
    changed = Config().with_settings(["process.K=50", "process.sigma=0.02", "sampling.delta_ratio=2"])
    baseline = changed.with_settings(["process.kind=ddpm", "process.betas=cosine", "sampling.eta=0.5"])
    assert changed.with_settings(["process.kind=ddpm"]).sampling.eta == 1  # not the ratio of delta to sigma
    assert baseline.tree()["process"] == {"kind": "ddpm", "K": 50, "betas": "cosine"}
    assert baseline.tree()["sampling"] == {
        "steps": "auto",
        "eta": 0.5,
        "order": 1,
        "corrected": False,
        "clip": True,
    }
    assert load_config("mnist-ddpm").process.K == 1000
    with pytest.raises(UsageError, match="the process ddpm has: K, betas"):
        Config().with_settings(["process.kind=ddpm", "process.sigma=0.1"])
    assert Config().with_tree(baseline.tree()) == baseline


def test_every_setting_has_a_row_that_says_whose_it_is():
    rows = setting_rows()
    assert dict(rows)["process.kind"].startswith("which process [heat | ddpm")
    owners = {name: [about.split(":")[0] for key, about in rows if key == name] for name, _ in rows}
    assert owners["process.K"][:2] == owners["sampling.eta"][:2] == ["heat", "ddpm"]
    assert owners["process.sigma"][0] == "heat" and owners["sampling.clip"][0] == "ddpm"
    assert len(owners["data.flip"]) == 1


WRITTEN_BY_0_1 = """
[process]
kind = "{kind}"
K = 10
sigma = 0.02
delta_ratio = {ratio}
sigma_B_min = 0.5
sigma_B_max = "auto"
skip = "identity"
blur = "heat"
betas = "cosine"
[network]
channels = 8
attention = []
[trainer]
steps = 6
"""


def test_settings_of_0_1_are_read():
    heat = config_from_toml(WRITTEN_BY_0_1.format(kind="heat", ratio=1.5), "test")
    assert (heat.process.K, heat.process.sigma, heat.sampling.delta_ratio) == (10, 0.02, 1.5)
    assert (heat.sampling.sampler, heat.network.channels, heat.trainer.steps) == ("paper", 8, 6)
    for ratio, eta in ((0.8, 0.8), (1.0, 1.0), (1.25, 1.0)):
        ddpm = config_from_toml(WRITTEN_BY_0_1.format(kind="ddpm", ratio=ratio), "test")
        assert (ddpm.process.K, ddpm.process.betas, ddpm.sampling.eta) == (10, "cosine", eta)
    few = config_from_toml("[process]\ndelta_ratio = 2\n", "test")  # such as a preset of one's own
    assert few == Config().with_settings(["sampling.delta_ratio=2"])
    own = config_from_toml('[process]\nkind = "ddpm"\nsigma = 0.01\ndelta_ratio = 0.5\n', "test")  # it took any of them
    assert own == Config().with_settings(["process.kind=ddpm", "sampling.eta=0.5"])
    with pytest.raises(UsageError, match=r"unknown setting 'process\.sigma'"):
        config_from_toml('[process]\nkind = "ddpm"\nsigma = 0.01\n', "test")
    for broken in ("sampling = 3\n[process]\ndelta_ratio = 1.0\n", '[process]\nkind = ["heat"]\ndelta_ratio = 1.0\n'):
        with pytest.raises(UsageError):
            config_from_toml(broken, "test")
    with pytest.raises(UsageError, match=r"did you mean 'sampling\.delta_ratio'"):
        Config().with_settings(["process.delta_ratio=1"])


def test_unknown_presets_and_broken_files_are_refused(tmp_path):
    with pytest.raises(UsageError, match="did you mean 'mnist'"):
        load_config("minst")
    with pytest.raises(IhdmError, match="cannot read"):
        load_config(str(tmp_path / "none.toml"))
    (tmp_path / "bad.toml").write_text("[process\n")
    with pytest.raises(UsageError, match="not valid TOML"):
        load_config(str(tmp_path / "bad.toml"))
    (tmp_path / "flat.toml").write_text("process = 3\n")
    with pytest.raises(UsageError, match="group of settings"):
        load_config(str(tmp_path / "flat.toml"))
    (tmp_path / "mine.toml").write_text("[process]\nK = 7\n")
    assert load_config(str(tmp_path / "mine.toml")).process.K == 7


def attribute_reads(tree: ast.AST) -> set[str]:
    """Every attribute that a file reads, in full, leaving out what is only put into messages.

    What settings read of themselves is `settings.key`, other than where they only check each other.
    """
    reads, nodes = set(), [(tree, "")]
    while nodes:
        node, own = nodes.pop()
        if isinstance(node, ast.ClassDef):
            values = [ast.unparse(part.value) for part in node.body if isinstance(part, ast.AnnAssign) and part.value]
            own = "settings." if any(value.startswith("setting(") for value in values) else ""
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            reads.add(own + name.removeprefix("self.") if name.startswith("self.") else name)
        if not isinstance(node, ast.JoinedStr) and not (own and getattr(node, "name", "") == "__post_init__"):
            nodes += [(child, own) for child in ast.iter_child_nodes(node)]
    return reads


def test_reads_are_told_from_checks_and_messages():
    source = """
class Settings:
    a: int = setting(1, "read")
    b: int = setting(1, "checked, and told of")
    def __post_init__(self): assert self.b
    def words(self): return f"{self.b}" + self.a
class Work:
    def do(self): return self.sampling.c + config.data.d
"""
    found = attribute_reads(ast.parse(source))
    assert {"settings.a", "sampling.c", "config.data.d"} <= found and "settings.b" not in found


def test_every_setting_is_read_somewhere():
    """As `config.section.key`, as `config.key` or `settings.key` by a function that is given a section, or, for the
    network, all at once."""
    files = [path for path in Path(ihdm.__file__).parent.rglob("*.py") if path.name not in ("config.py", "settings.py")]
    reads = {read for path in files for read in attribute_reads(ast.parse(path.read_text()))}
    for section in ("data", "trainer", "engine"):
        for key in Config().tree()[section]:
            name = f"{section}.{key}"
            assert {f"config.{name}", f"config.{key}", f"settings.{key}"} & reads, f"{name} is never read"
    for kind in NETWORKS:
        assert "**vars(settings)" in inspect.getsource(NETWORKS[kind].from_settings)


@pytest.mark.parametrize("kind", list(PROCESSES))
def test_every_setting_of_a_process_is_read_by_it(kind):
    """In the files of its class and of those that it is made from, as `settings.key` and `sampling.key`.

    Or by what its settings are made from, as `self.key`.
    """
    process = PROCESSES[kind]
    files = {inspect.getfile(cls) for cls in process.__mro__ if cls.__module__.startswith("ihdm.")}
    reads = {read for file in files for read in attribute_reads(ast.parse(Path(file).read_text()))}
    parents = [cls for cls in process.Settings.__mro__[1:] if cls.__module__.startswith("ihdm.")]
    reads |= {f"settings.{read}" for cls in parents for read in attribute_reads(ast.parse(inspect.getsource(cls)))}
    for section, settings in (("settings", process.Settings()), ("sampling", process.Sampling())):
        for key in vars(settings):
            assert f"{section}.{key}" in reads, f"{section}.{key} of {kind} is never read"
