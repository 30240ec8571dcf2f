"""The shape of the house: imports go downward only, and every room has a noun."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ihdm
from ihdm.registry import PROCESSES

ROOT = Path(ihdm.__file__).parent

FLOORS = [  # a module imports from its own floor or those before it
    {"errors", "cache", "heat", "schedule", "noise", "kernels", "pixels", "workers", "writer", "stopping", "plots"}
    | {"torch_archive", "flat", "sharding", "settings", "registry", "constant", "basis", "earlier", "disk", "progress"}
    | {"blurs", "labels", "trackers", "extras", "pictures", "domains", "graph", "eigenvectors", "remembered", "host"},
    {"networks", "prior", "processes", "sampler", "likelihood", "restoration", "familiar"},
    {"config", "optimisation"},
    {"data", "engine", "checkpoint", "metrics", "width_reader"},
    {"memory", "model_folder"},
    {"execution", "judgement", "guide", "card"},
    {"model", "restorer"},
    {"run", "held_out", "packing", "evaluation", "convert", "training", "hub", "export"},
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


def test_every_room_has_a_floor_and_every_floor_its_rooms():
    rooms = {path.relative_to(ROOT).with_suffix("").parts[0] for path in ROOT.rglob("*.py")} - {"__init__"}
    floors = [name for names in FLOORS for name in names]
    assert sorted(floors) == sorted(rooms)


SHARED = {"Steps", "EtaSteps"}  # settings that several processes may have


def of_one_process() -> set[str]:
    """The names of classes that belong to one process: its own, and those of its settings."""
    classes = [PROCESSES[kind] for kind in PROCESSES]
    return {c.__name__ for process in classes for c in (process, process.Settings, process.Sampling)} - SHARED


def mentioned(*trees: ast.AST) -> set[str]:
    """Names, the last parts of dotted names, and texts."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return names | {str(node.value) for node in nodes if isinstance(node, ast.Constant)}


def switches(source: str) -> list[str]:
    """Where code asks which process it has."""
    classes, kinds, found = of_one_process(), set(PROCESSES), []
    for node in ast.walk(ast.parse(source)):
        asked: set[str] = set()
        if isinstance(node, ast.Call) and mentioned(node.func) & {"isinstance", "issubclass"}:
            asked = mentioned(*node.args[1:]) & classes
        elif isinstance(node, ast.Compare):
            words = mentioned(node)
            asked = words & classes | (words & kinds if "kind" in words else set())
        elif isinstance(node, ast.Match):
            patterns = mentioned(*(case.pattern for case in node.cases))
            asked = patterns & classes | (patterns & kinds if "kind" in mentioned(node.subject) else set())
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Dict):
            asked = mentioned(*filter(None, node.value.keys)) & kinds if "kind" in mentioned(node.slice) else set()
        found += [f"line {node.lineno}: {name}" for name in sorted(asked)]
    return found


def concrete_imports(source: str) -> list[str]:
    """Imports of what belongs to one process."""
    classes, found = of_one_process(), []
    modules = {PROCESSES[kind].__module__ for kind in PROCESSES}
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name in modules]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ihdm":
            whole = [(alias.name, f"{node.module}.{alias.name}") for alias in node.names]
            names = [place for name, place in whole if node.module in modules or place in modules or name in classes]
        found += [f"line {node.lineno}: {name}" for name in names]
    return found


def test_nothing_asks_which_process_it_has():
    """What differs from process to process is the process's own: others may ask what it can do, not what it is."""
    for path in ROOT.rglob("*.py"):
        room = path.relative_to(ROOT).with_suffix("").parts[0]
        if room in ("processes", "registry", "earlier"):  # the last is a table of names
            continue
        assert not switches(path.read_text()), f"{path.relative_to(ROOT)}: {switches(path.read_text())}"
        if room not in ("__init__", "studies", "convert"):
            found = concrete_imports(path.read_text())
            assert not found, f"{path.relative_to(ROOT)}: {found}"


@pytest.mark.parametrize(
    "source",
    [
        "isinstance(process, InverseHeat)",
        "isinstance(model.process, (Other, processes.DDPM))",
        "issubclass(type(process), DDPM)",
        "if isinstance(config.process, HeatSettings): pass",
        "type(process) is DDPM",
        "type(process) in (InverseHeat, Other)",
        "kind == 'heat'",
        "'ddpm' != kind",
        "config.process.kind == 'ddpm'",
        "tree['process']['kind'] in ('heat', 'other')",
        "PROCESSES.kind(config.process) == 'heat'",
        "tree.get('kind', 'heat') == 'heat'",
        "match process:\n    case InverseHeat(): pass",
        "match settings.kind:\n    case 'heat': pass",
        "{'heat': 1, 'ddpm': 2}[kind]",
    ],
)
def test_such_questions_are_found(source):
    assert switches(source)


@pytest.mark.parametrize(
    "source",
    [
        "from ihdm.processes import DDPM",
        "from ihdm.processes import Process, InverseHeat as Heat",
        "from ihdm import InverseHeat",
        "from ihdm.processes.inverse_heat import HeatSettings",
        "from ihdm.processes.ddpm import LONG",
        "from ihdm.processes import ddpm",
        "import ihdm.processes.ddpm as diffusion",
        "def f():\n    from ihdm.processes.ddpm import DDPM",
    ],
)
def test_such_imports_are_found(source):
    assert concrete_imports(source)


def test_other_questions_and_imports_are_not():
    source = """
from ihdm.processes import Bounded, Process, restoring
from ihdm.heat import GridLaplacian
assert isinstance(process, Bounded) and kind == "cuda" and settings.blur == "heat" and isinstance(kind, str)
names = {"heat": 1}
"""
    assert not switches(source) and not concrete_imports(source)


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
