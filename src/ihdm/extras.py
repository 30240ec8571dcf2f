"""Extras: packages that only parts of ihdm need, and how to install them."""

from __future__ import annotations

import importlib.util

from ihdm.errors import IhdmError

EXTRAS = {  # what each is for
    "app": "the web page (ihdm app)",
    "hf": "sets on the Hugging Face hub (hf:NAME)",
    "plots": "plots (ihdm study, --figures)",
    "sound": "flac and other sound files that are not plain wav (data.kind=signals)",
    "graphs": "graphs and meshes of more than 4,096 nodes",
    "tensorboard": "training curves in TensorBoard",
    "wandb": "training curves in Weights & Biases (trainer.tracker)",
    "trackio": "training curves in trackio (trainer.tracker)",
    "onnx": "models for ONNX and browsers (ihdm export)",
    "diffusers": "running exported models in diffusers",
}


def install(extra: str) -> str:
    """The command that installs ihdm, with an extra unless that is empty."""
    return f"pip install 'ihdm{f'[{extra}]' if extra else ''}'"


def needs(what: str, extra: str, *packages: str) -> str:
    """The message when packages of an extra are missing."""
    return f"{what} needs {' and '.join(packages)}: {install(extra)}"


def installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def check(what: str, extra: str, *packages: str) -> None:
    """Refuse, before any work, what cannot be done because packages of an extra are missing."""
    if missing := [package for package in packages if not installed(package)]:
        raise IhdmError(needs(what, extra, *missing))
