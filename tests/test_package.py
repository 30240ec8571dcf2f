"""The wheel: whole, and enough to sample with. `make dist` tries it in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    pytest.importorskip("hatchling", reason="wheels are built with hatchling: make test installs it")
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "--directory", folder], cwd=ROOT, check=True)
    return folder


def tracked(folder: str) -> set[str]:
    """The files of a folder that belong to the package, made files aside."""
    return {
        file.relative_to(ROOT).as_posix()
        for file in (ROOT / folder).rglob("*")
        if file.is_file() and not any(part.startswith((".", "__pycache__")) for part in file.relative_to(ROOT).parts)
    }


def test_the_wheel_holds_all_of_the_package_and_no_more(dist):
    names = set(zipfile.ZipFile(next(dist.glob("*.whl"))).namelist())
    own = {name.removeprefix("src/") for name in tracked("src/ihdm")}
    assert own == {name for name in names if name.startswith("ihdm/")}
    some = {"ihdm/py.typed", "ihdm/models/mnist-ready/model.safetensors", "ihdm/presets/digits.toml"}
    assert some | {"ihdm/data/digits-idx3-ubyte.gz", "ihdm/data/NOTICE.md"} <= own
    assert {name.split("/")[0] for name in names} == {"ihdm", next(n for n in names if "dist-info" in n).split("/")[0]}


def test_the_source_archive_holds_what_builds_and_tests_it(dist):
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert tracked("src/ihdm") | tracked("tests") <= names
    assert {"pyproject.toml", "Makefile", "constraints.txt", "README.md", "LICENSE", "mkdocs.yml"} <= names


def test_an_unpacked_wheel_samples(dist, tmp_path):
    zipfile.ZipFile(next(dist.glob("*.whl"))).extractall(tmp_path / "unpacked")
    code = "import sys, ihdm; from ihdm.cli import main; main(sys.argv[1:]); print(ihdm.__file__)"
    words = ["sample", "mnist-ready", "--n", "1", "--steps", "2", "--grid", "one.png"]
    surroundings = os.environ | {"PYTHONPATH": str(tmp_path / "unpacked"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, env=surroundings, capture_output=True, text=True
    )
    assert done.returncode == 0 and (tmp_path / "one.png").exists(), done.stderr
    assert done.stdout.splitlines()[-1].startswith(str(tmp_path / "unpacked"))
