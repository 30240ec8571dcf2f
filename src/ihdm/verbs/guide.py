"""`ihdm guide`."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from ihdm.disk import replaced_text
from ihdm.errors import IhdmError
from ihdm.verbs.words import ModelName

if TYPE_CHECKING:
    from ihdm.model import Model

NONE = "none"  # in place of a weaker model


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
        weaker: another model; none: remove the one that is there (a folder called none is ./none)
        guidance: 1: none; higher: clearer, less varied; ihdm evaluate --guidance says which is best
    """
    from ihdm.guide import check_other_network
    from ihdm.model import Model
    from ihdm.run import adding_to

    with adding_to(model) as folder:
        alone = Model.from_pretrained(folder, guided=False)
        if weaker == NONE:
            _write(folder, alone, alone)
            print(f"{folder}: no guidance")
            return
        other = Model.from_pretrained(weaker, guided=False)
        check_other_network(alone.network, other.network)
        guided = alone.guided_by(other, guidance)
        _warn(alone, other, weaker)
        _write(folder, alone, guided)
    print(f"{folder}: guidance {guided.guidance_words()}")


def _warn(model: Model, other: Model, name: str) -> None:
    """Warn about what is allowed but probably not intended."""
    (size, steps), (other_size, other_steps) = (
        (sum(weights.numel() for weights in each.network.parameters()), each.config.steps) for each in (model, other)
    )
    if other_size >= size and other_steps >= steps:
        print(
            f"warning: {name} is not the weaker one: it has {other_size:,} parameters and {other_steps:,} steps, the "
            f"model to be guided {size:,} and {steps:,}; name the model to be guided first",
            file=sys.stderr,
        )
    if model.config.data != other.config.data:
        print(f"warning: {name} was trained on {other.config.data}, not on {model.config.data}", file=sys.stderr)


def _write(folder: Path, alone: Model, guided: Model) -> None:
    """Write the weaker network to a model's folder, or remove it. The folder stays usable: it names no missing weights.

    A card that somebody has edited is left as it is.
    """
    import torch

    from ihdm.card import card
    from ihdm.model_folder import CARD, CONFIG, GUIDE, config_text, weights_of, write_tensors

    written = folder / CARD
    ours = written.exists() and written.read_text(encoding="utf-8") in _cards(folder, alone)
    replaced_text(folder / CONFIG, config_text(alone.config))
    write_tensors(folder / GUIDE, {} if guided.guide is None else weights_of(guided.guide, torch.float32))
    replaced_text(folder / CONFIG, config_text(guided.config))
    if ours:
        replaced_text(written, card(guided.config, guided.facts()))


def _cards(folder: Path, alone: Model) -> list[str]:
    """The cards that ihdm writes for the model without a weaker network and with the one in the folder, if any."""
    from ihdm.card import card

    found = [alone]
    with contextlib.suppress(IhdmError):  # the one in the folder is damaged
        found.append(alone.guided_like(folder))
    return [card(model.config, model.facts()) for model in found]
