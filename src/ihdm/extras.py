"""Extras: packages that only some of ihdm needs, and how to get them."""

from __future__ import annotations

EXTRAS = {  # and what each is for
    "app": "the web page (ihdm app)",
    "hf": "sets on the Hugging Face hub (hf:NAME)",
    "plots": "pictures of curves (ihdm study, --figures)",
    "sound": "flac and other sound files than plain wav (data.kind=signals)",
    "graphs": "graphs and meshes of more than 4,096 nodes",
    "tensorboard": "curves of training in TensorBoard",
    "wandb": "figures of training in Weights & Biases (trainer.tracker)",
    "trackio": "the same in trackio",
    "onnx": "models for ONNX and browsers (ihdm export)",
    "diffusers": "exported models in diffusers",
}


def install(extra: str = "") -> str:
    """The line that installs ihdm with an extra, or by itself."""
    return f"pip install 'ihdm{f'[{extra}]' if extra else ''}'"


def needs(what: str, extra: str, *packages: str) -> str:
    """What is said where packages of an extra are missing."""
    return f"{what} needs {' and '.join(packages)}: {install(extra)}"
