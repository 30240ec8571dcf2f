from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import ihdm
from ihdm.config import (
    Config,
    as_tree,
    config_from_toml,
    config_to_toml,
    differences,
    load_config,
    presets,
    setting_names,
    updated,
)
from ihdm.errors import IhdmError, UsageError

PAPER = {  # tables 1 and 2 of App. B: K, sigma_B_max, delta, size, multipliers, blocks, lr, attention sizes, ema, batch
    "mnist": (100, 20, 0.0125, 28, (1, 2, 2), 4, 1e-4, (7,), 0.999, 128),
    "cifar10": (200, 24, 0.01325, 32, (1, 2, 2, 2), 4, 2e-4, (8, 4), 0.999, 128),
    "ffhq-256": (200, 128, 0.0125, 256, (1, 2, 3, 4, 5), 2, 2e-5, (64, 32, 16), 0.9999, 32),
    "ffhq-128": (200, 128, 0.0125, 128, (1, 2, 3, 4, 5), 2, 2e-5, (32, 16, 8), 0.999, 32),
    "afhq-256": (200, 128, 0.01275, 256, (1, 2, 3, 4, 5), 2, 2e-5, (64, 32, 16), 0.9999, 32),
    "afhq-64": (200, 32, 0.0125, 64, (1, 2, 3, 4), 2, 1e-4, (16, 8), 0.999, 128),
    "lsun-church-128": (400, 64, 0.0125, 128, (1, 2, 3, 4, 5), 2, 2e-5, (32, 16, 8), 0.999, 32),
}


@pytest.mark.parametrize("name", PAPER)
def test_presets_say_what_the_papers_tables_say(name):
    config = load_config(name)
    process, network, trainer = config.process, config.network, config.trainer
    size = config.data.size[0]
    found = (
        process.K,
        process.sigma_B_max,
        pytest.approx(process.delta_ratio * process.sigma),
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


def test_a_preset_lists_only_what_differs():
    for file in (Path(ihdm.__file__).parent / "presets").glob("*.toml"):
        default, preset = as_tree(Config()), load_config(file.stem)
        written = re.findall(r"^(\w+) = ", file.read_text(), re.MULTILINE)
        assert len(written) == 1 + len(differences(updated(Config(), default), preset)), file.name


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
        ("process.delta_ratio=-1", "at least 0"),
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
    ],
)
def test_wrong_settings_are_refused_with_what_to_do(word, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        Config().with_settings([word])


def test_a_linear_skip_without_noise_is_refused():
    with pytest.raises(UsageError, match="identity"):
        Config().with_settings(["process.skip=linear", "process.sigma=0"])


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
    """Every attribute that a file reads, in full, leaving out what is only put into messages."""
    reads, nodes = set(), [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Attribute):
            reads.add(ast.unparse(node).removeprefix("self."))
        if not isinstance(node, ast.JoinedStr):
            nodes += ast.iter_child_nodes(node)
    return reads


def test_every_setting_is_read_somewhere():
    """As `config.section.key`, as `config.key` or `settings.key` by a function that is given a section, or, for the
    network, all at once."""
    files = [path for path in Path(ihdm.__file__).parent.rglob("*.py") if path.name != "config.py"]
    reads = {read for path in files for read in attribute_reads(ast.parse(path.read_text()))}
    assert any("**vars(config.network)" in path.read_text() for path in files)
    for name in setting_names():
        section, key = name.split(".")
        if section != "network":
            assert {f"config.{name}", f"config.{key}", f"settings.{key}"} & reads, f"{name} is never read"
