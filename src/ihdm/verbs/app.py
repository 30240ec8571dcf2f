"""`ihdm app`."""

from __future__ import annotations

import itertools
from collections.abc import Container
from typing import Annotated

from tyro.conf import Positional, UseAppendAction, arg

from ihdm import extras
from ihdm.config import Device, Precision, shipped
from ihdm.disk import expanded, real


def app(
    models: Annotated[Positional[tuple[str, ...]], arg(metavar="[MODEL ...]", help_behavior_hint="")] = (),
    /,
    host: Annotated[str, arg(metavar="ADDRESS")] = "127.0.0.1",
    port: Annotated[int, arg(metavar="INT")] = 7860,
    device: Device = "auto",
    precision: Precision = "auto",
    open: bool = False,
    allow_host: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="NAME")] = (),
) -> None:
    """Serve a local web page for trying out models.

    Args:
        models: model folders, run folders, owner/name on the hub; default: those that come with ihdm
        host: address to listen on; 0.0.0.0: let other machines on the network see the page
        port: 0: any free port
        device: device to use; auto: the GPU if there is one
        precision: network precision; auto: bf16 where faster
        open: open the page in a browser
        allow_host: another host name for the page, e.g. behind a proxy
    """
    extras.check("the page", "app", "gradio")
    from ihdm.app.door import Addresses
    from ihdm.app.page import free_port, serve
    from ihdm.app.studio import Studio
    from ihdm.engine import choose_device, choose_precision, keep_freed_memory, placed
    from ihdm.model import Model

    free_port(host, port)
    Addresses.of(host, allow_host)
    keep_freed_memory()
    place = choose_device(device)
    studios: dict[str, Studio] = {}
    for model in models or shipped():
        loaded = placed(Model.from_pretrained(model), place)
        precise = choose_precision(precision, place, loaded.config.shape[1:])
        studios[shown_as(model, studios)] = Studio(loaded, precise)
    serve(studios, host, port, open, allow_host)


def shown_as(model: str, others: Container[str]) -> str:
    """A model's name on the page, which no other model there has."""
    folder = real(expanded(model))
    name = folder.parent.name if folder.name == "model" else folder.name
    return next(found for n in itertools.count(1) if (found := name if n == 1 else f"{name} {n}") not in others)
