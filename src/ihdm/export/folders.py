"""What each format's folder holds: programs, chain.json, and files that are copied unchanged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from ihdm import __version__
from ihdm.errors import IhdmError
from ihdm.export import Format, archives, graphs
from ihdm.export.programs import programs, steps
from ihdm.model import Model

VERSION = 1  # of chain.json and of the programs' inputs and outputs
CARRIED = Path(__file__).parent / "carried"

# For each format: the module that writes programs, which programs it writes, and which files are copied beside them.
LAYOUTS: dict[str, tuple[Any, tuple[str, ...], tuple[str, ...]]] = {
    "diffusers": (archives, ("start", "step"), ("ihdm_chain.py",)),
    "onnx": (graphs, ("start", "step", "network"), ()),
    "torch": (archives, ("start", "step", "network"), ("ihdm_chain.py",)),
    "web": (graphs, ("start", "step"), ("index.html", "page.js")),
}
MODEL_INDEX = {  # where diffusers finds the pipeline (a file beside this one) and its only component (in a folder)
    "_class_name": ["ihdm_pipeline", "IhdmPipeline"],
    "_diffusers_version": "0.42.1",
    "chain": ["ihdm_chain", "Chain"],
}


def write(model: Model, format: Format, folder: Path) -> dict[str, float]:
    """Fill a folder; return for each program in it how far its results, when run from there, are from the model's."""
    writer, names, files = LAYOUTS[format]
    inner = folder
    if format == "diffusers":
        _write_json(folder / "model_index.json", MODEL_INDEX)
        shutil.copyfile(CARRIED / "ihdm_pipeline.py", folder / "ihdm_pipeline.py")
        inner = folder / "chain"
        inner.mkdir()
    for name in files:
        shutil.copyfile(CARRIED / name, inner / name)
    _write_json(inner / "chain.json", described(model))
    found, differences = programs(model), {}
    for name in names:
        path = inner / f"{name}{writer.ENDING}"
        difference = writer.write(found[name], path)
        if not difference <= writer.TOLERANCE:
            instead = "" if format == "torch" else " (--format torch computes more exactly)"
            raise IhdmError(
                f"{path.name} does not do what the model does: it is off by {difference:.0e}, more than "
                f"{writer.TOLERANCE:g}; nothing was exported{instead}"
            )
        differences[path.relative_to(folder).as_posix()] = difference
    return differences


def described(model: Model) -> dict[str, Any]:
    """The contents of chain.json, such as the shape of an image or of other data and the levels (k, j, i) of each step.

    counts: how many training images have each label, if the model knows labels.
    """
    labels, domain = model.config.labels, model.config.domain
    return {
        "export": VERSION,
        "ihdm": __version__,
        "model": model.process.title,
        "sampling": model.process.sampling_words(),
        "shape": list(domain.shape),
        **({} if domain.kind == "images" else {"domain": {"kind": domain.kind} | domain.tree()}),
        "steps": [list(levels) for levels in steps(model.process)],
        **({"labels": labels.names, "counts": labels.counts} if labels else {}),
    }


def _write_json(path: Path, tree: dict[str, Any]) -> None:
    path.write_text(json.dumps(tree) + "\n", encoding="utf-8")
