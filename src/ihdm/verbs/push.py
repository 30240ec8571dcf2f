"""`ihdm push`."""

from __future__ import annotations

from typing import Annotated

from tyro.conf import OmitArgPrefixes, Positional, arg

from ihdm.verbs.words import AS_USUAL, Computing, ModelName, check_count


def push(
    model: ModelName,
    name: Annotated[Positional[str], arg(metavar="OWNER/NAME")],
    /,
    private: bool = False,
    message: Annotated[str, arg(metavar="TEXT", help_behavior_hint="")] = "",
    n: int = 16,
    computing: Annotated[Computing, OmitArgPrefixes] = AS_USUAL,
) -> None:
    """Put a model on the Hugging Face hub, with a card and samples.

    Args:
        model: a model folder, a run folder, or a model that comes with ihdm (see ihdm info)
        name: its name on the hub
        private: make a new repository private
        message: what changed, for the hub's history
        n: samples in the card's picture; 0: no picture
    """
    if n:
        check_count(n)
    from ihdm import hub
    from ihdm.engine import placed
    from ihdm.model import Model
    from ihdm.model_folder import locate

    hub.check(name)
    folder, place = locate(model), computing.place()
    loaded = placed(Model.from_pretrained(folder), place)
    samples = loaded.sample(n, execution=computing.execution(place, loaded.config.shape)) if n else None
    print(hub.push(folder, loaded, name, samples, private, message))
