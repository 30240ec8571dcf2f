"""`ihdm guide`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from ihdm.disk import expanded, replaced_text
from ihdm.errors import UsageError
from ihdm.verbs.words import ModelName

if TYPE_CHECKING:
    from ihdm.model import Model


def guide(
    model: ModelName,
    weaker: Annotated[Positional[str], arg(metavar="WEAKER")],
    /,
    guidance: float = 1.5,
) -> None:
    """Let a model's samples be guided away from what a weaker model makes.

    The weaker one is trained on the same data with the same process, but with a smaller network and for fewer steps.
    Its network becomes part of the model folder, and is used whenever the model is sampled (docs/guidance.md).

    Args:
        model: a model folder, or a run folder that has one, to which guide.safetensors is written
        weaker: another, or a model on the hub
        guidance: 1 none; higher: clearer, less varied; ihdm evaluate --guidance says which is best
    """
    if not expanded(model).is_dir():
        raise UsageError(f"{model} is no folder of yours, to which a network could be added; copy it to one first")
    from ihdm.model import Model
    from ihdm.model_folder import locate

    folder = locate(model)
    alone = Model.from_pretrained(folder)
    guided = alone.guided_by(Model.from_pretrained(weaker), guidance)
    _write(folder, alone, guided)
    print(f"{folder}: guidance {guided.guidance_words()}")


def _write(folder: Path, alone: Model, guided: Model) -> None:
    """Add what is new to a model's folder, whole at any time: the config names the weights once they are there.

    A card that somebody has written is left as it is.
    """
    import torch

    from ihdm.model_folder import CARD, CONFIG, GUIDE, card, config_text, weights_of, write_tensors

    assert guided.guide is not None
    fresh = folder / f".{GUIDE}.new"
    write_tensors(fresh, weights_of(guided.guide, torch.float32))
    fresh.replace(folder / GUIDE)
    replaced_text(folder / CONFIG, config_text(guided.config))
    written = folder / CARD
    if written.exists() and written.read_text(encoding="utf-8") == card(alone.config, alone.facts()):
        replaced_text(written, card(guided.config, guided.facts()))
