"""`ihdm app`."""

from __future__ import annotations

import importlib.util
import math
from typing import Annotated

from tyro.conf import Positional, UseAppendAction, arg

from ihdm.config import Device, Precision
from ihdm.disk import expanded, real
from ihdm.errors import IhdmError


def app(
    model: Annotated[Positional[str], arg(metavar="[MODEL]")] = "mnist-ready",
    /,
    host: Annotated[str, arg(metavar="ADDRESS")] = "127.0.0.1",
    port: Annotated[int, arg(metavar="INT")] = 7860,
    device: Device = "auto",
    precision: Precision = "auto",
    open: bool = False,
    allow_host: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="NAME")] = (),
) -> None:
    """Show a web page for playing with a model, for this machine only.

    Args:
        model: a model folder, a run folder, owner/name on the hub, or mnist-ready, which comes with ihdm
        host: the address to listen on; 0.0.0.0: let other machines of the network see the page
        port: 0: any that is free
        device: where to compute; auto: the GPU if there is one
        precision: of the network; auto: bf16 where it is faster
        open: open the page in a browser
        allow_host: another name by which browsers may reach the page, as behind a proxy
    """
    if importlib.util.find_spec("gradio") is None:
        raise IhdmError("the page needs gradio: pip install gradio")
    from ihdm.app.door import Addresses
    from ihdm.app.page import free_port, serve
    from ihdm.app.studio import Studio
    from ihdm.engine import choose_device, choose_precision, keep_freed_memory, placed
    from ihdm.model import Model

    free_port(host, port)
    Addresses.of(host, allow_host)
    keep_freed_memory()
    place = choose_device(device)
    loaded = placed(Model.from_pretrained(model), place)
    pixels = math.prod(loaded.config.shape[1:])
    name = real(expanded(model))
    shown = name.parent.name if name.name == "model" else name.name
    serve(Studio(loaded, choose_precision(precision, place, pixels)), shown, host, port, open, allow_host)
