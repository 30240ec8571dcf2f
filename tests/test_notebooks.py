"""The notebooks run from top to bottom, without Jupyter, and show a picture wherever they end in one."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"
NOTEBOOKS = sorted((EXAMPLES / "notebooks").glob("*.ipynb"))
SHORTER = {  # what takes minutes otherwise
    r"trainer\.steps=\d+": "trainer.steps=2",
    r"sample\(\d+": "sample(2",
    r"n=6": "n=1",
    r"steps=25": "steps=2",
}


def cells(notebook: Path, kind: str) -> list[str]:
    found = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == kind]


def run(notebook: Path) -> None:
    """In this process and folder; say how many pictures it showed."""
    from PIL import Image

    shown = []
    sliders = types.ModuleType("ipywidgets")
    for name in ("FloatLogSlider", "FloatSlider", "IntSlider"):
        setattr(sliders, name, lambda value, **_: value)
    sliders.interact = lambda **values: lambda function: shown.append(function(**values))  # type: ignore[attr-defined]
    sys.modules["ipywidgets"] = sliders
    names: dict[str, object] = {}
    for source in cells(notebook, "code"):
        for long, short in SHORTER.items():
            source = re.sub(long, short, source)
        *statements, last = ast.parse(source).body
        if isinstance(last, ast.Expr):
            exec(compile(ast.Module(statements, []), notebook.name, "exec"), names)
            shown.append(eval(compile(ast.Expression(last.value), notebook.name, "eval"), names))
        else:
            exec(source, names)
    print(f"pictures in {notebook.stem}: {sum(isinstance(picture, Image.Image) for picture in shown)}")


def test_they_run_and_show_their_pictures(tmp_path):
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    command = [sys.executable, __file__, *(notebook.name for notebook in NOTEBOOKS)]
    own = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path / "examples" / "notebooks", env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown = [line for line in done.stdout.splitlines() if line.startswith("pictures in ")]
    assert shown == ["pictures in own_process: 3", "pictures in sliders: 2", "pictures in tour: 8"]


def test_their_links_lead_somewhere():
    for notebook in NOTEBOOKS:
        for text in cells(notebook, "markdown"):
            for link in re.findall(r"\]\(([^)]+)\)", text):
                assert (notebook.parent / link).exists(), f"{notebook.name}: {link}"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        run(Path(name))
