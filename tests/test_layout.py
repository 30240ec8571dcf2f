"""The shape of the house: imports go downward only, and every room has a noun."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import ihdm

ROOT = Path(ihdm.__file__).parent

FLOORS = [  # a module imports from its own floor or those before it
    {"errors", "cache", "heat", "schedule", "noise", "kernels", "pixels", "workers", "writer", "stopping", "plots"}
    | {"torch_archive", "sharding"},
    {"network", "prior", "processes", "sampler", "likelihood", "config", "optimisation", "pictures", "restoration"},
    {"data", "engine", "checkpoint", "metrics"},
    {"memory", "model_folder"},
    {"building", "model"},
    {"run", "evaluation", "convert"},
    {"trainer", "describe"},
    {"demo", "studies", "app"},
    {"verbs"},
    {"cli", "__main__"},
]


def imported(path: Path) -> set[str]:
    """The modules of ihdm that a file imports, by their first name."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "ihdm":
            parts = node.module.split(".")[1:]
            names |= {parts[0]} if parts else {alias.name for alias in node.names if not alias.name.startswith("__")}
        elif isinstance(node, ast.Import):
            names |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("ihdm.")}
    return names


def test_imports_go_downward_only():
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    for path in ROOT.rglob("*.py"):
        room = path.relative_to(ROOT).with_suffix("").parts[0]
        if room == "__init__":
            continue
        assert room in floor, f"{path.name} has no floor in this test"
        for name in imported(path):
            assert floor[name] <= floor[room], f"{path.relative_to(ROOT)} imports {name} from a floor above"


def test_no_room_without_a_noun():
    assert not [path for path in ROOT.rglob("*.py") if path.stem in {"utils", "util", "helpers", "common", "misc"}]


def test_importing_ihdm_is_light_and_public_names_resolve():
    code = "import sys, ihdm; print(any(name in sys.modules for name in ('torch', 'numpy', 'PIL', 'accelerate')))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
    for name in ihdm.__all__:
        assert getattr(ihdm, name) is not None
    code = (
        "import sys; from ihdm import Model; print(any(m in sys.modules for m in ('accelerate', 'datasets', 'scipy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
