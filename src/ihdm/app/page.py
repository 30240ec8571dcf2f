"""The page, and the server that shows it."""

from __future__ import annotations

import os
import re
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ihdm.app.door import Addresses, Door
from ihdm.app.firsts import Firsts
from ihdm.app.policy import OwnHostOnly
from ihdm.app.studio import MOST_BYTES, Studio
from ihdm.errors import IhdmError, UsageError
from ihdm.stopping import stop_requests

if TYPE_CHECKING:
    import gradio as gr

    from ihdm.app.job import Bench

MOST_WAITING = 20  # visitors in the queue; any more are asked to come back later
CACHE_SECONDS = 3600  # how long files of visitors are kept


def build(studios: Mapping[str, Studio], firsts: Firsts | None = None) -> gr.Blocks:
    """The page of a model, or linked pages, one for each model; `firsts` collects what the tabs show at first."""
    import gradio as gr

    told = Firsts() if firsts is None else firsts
    (name, studio), *others = studios.items()
    with gr.Blocks(title="ihdm", analytics_enabled=False, delete_cache=(600, CACHE_SECONDS)) as page:
        gr.Navbar(main_page_name=name)
        _fill(page, name, studio, told)
    for other, its_studio in others:
        with _route(page, other):
            gr.Navbar(main_page_name=name)
            _fill(page, other, its_studio, told)
    return page.queue(max_size=MOST_WAITING, api_open=False)


def _route(page: gr.Blocks, name: str) -> gr.Blocks:
    """A further page, at an address made from its model's name, but none that gradio itself uses, such as /config."""
    path = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "model"
    try:
        return page.route(name, path)
    except ValueError:
        return page.route(name, f"{path}-model")


def _fill(page: gr.Blocks, name: str, studio: Studio, firsts: Firsts) -> None:
    """A tab for each thing that the model's process can do."""
    import gradio as gr

    from ihdm.app.job import Bench
    from ihdm.app.tabs import branch, colour_and_shape, generate, interpolate, restore

    shapes = "Colour and shape" if studio.in_colour else "Brightness and shape"
    tabs: dict[str, tuple[Callable[[Studio, Callable[[], Bench]], None], bool]] = {
        "Generate": (generate.tab, True),
        shapes: (colour_and_shape.tab, studio.picks and studio.process.noisy),
        "Interpolate": (interpolate.tab, True),
        "Branch": (branch.tab, studio.process.noisy),
        "Restore": (restore.tab, studio.restores),
    }
    gr.HTML(_masthead(studio, name))
    for title, (tab, possible) in tabs.items():
        if possible:
            with gr.Tab(title):
                tab(studio, partial(Bench.build, page, firsts))


def serve(studios: Mapping[str, Studio], host: str, port: int, open_browser: bool, allowed: Iterable[str]) -> None:
    """Serve the page until Ctrl-C. Files of visitors are kept in a folder that is deleted at the end.

    allowed: names by which the page can be reached, in addition to those that follow from the host.
    """
    port = free_port(host, port)
    from starlette.middleware import Middleware

    guarded = [Middleware(OwnHostOnly), Middleware(Door, addresses=Addresses.of(host, allowed))]
    written = f"[{host}]" if ":" in host else host  # as it is written in an address
    with tempfile.TemporaryDirectory(prefix="ihdm-app-") as folder, tempfile.TemporaryDirectory() as kept:
        os.environ |= {"GRADIO_ANALYTICS_ENABLED": "False", "GRADIO_TEMP_DIR": folder}
        from ihdm.app.theme import CSS, ENTER_STARTS, theme

        firsts = Firsts()
        page = build(studios, firsts)
        page.launch(
            server_name=written,
            server_port=port,
            share=False,
            inbrowser=open_browser,
            max_file_size=MOST_BYTES,
            footer_links=[],
            ssr_mode=False,
            mcp_server=False,
            enable_monitoring=False,
            quiet=True,
            prevent_thread_lock=True,
            app_kwargs={"middleware": guarded},
            theme=theme(),
            css=CSS,
            js=ENTER_STARTS,
        )
        page.app.iterators = Running()
        print(f"http://{written}:{port} shows the page; Ctrl-C ends it", flush=True)
        making = threading.Thread(target=firsts.make, args=[Path(kept)], daemon=True)
        with stop_requests() as asked_to_stop:
            making.start()
            while not asked_to_stop():
                time.sleep(0.2)
        firsts.end()
        page.close(verbose=False)
        making.join()


class Running(dict[str, Any]):
    """gradio's record of running work, in which cancelling twice at once, as by a double click, is not an error."""

    def __delitem__(self, name: str) -> None:
        self.pop(name, None)


def free_port(host: str, port: int) -> int:
    """The port, if it is free; for 0, any free port."""
    if not 0 <= port < 2**16:
        raise UsageError(f"--port must be a number from 0 (any free port) to {2**16 - 1}, not {port}")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            return int(listener.getsockname()[1])
    except (OSError, UnicodeError) as error:  # UnicodeError: a name that no host can have
        reason = getattr(error, "strerror", None) or error
        raise IhdmError(
            f"cannot listen on {host}, port {port} ({reason}); choose another --port (0 for any free one) "
            "or another --host"
        ) from error


def _masthead(studio: Studio, name: str) -> str:
    channels, height, width = studio.shape
    kind = "colour" if studio.in_colour else "grey" if channels == 1 else f"{channels}-channel"
    return f"""<div class="masthead"><h1>Pictures {escape(studio.process.grown)}</h1>
<p>Model <b>{escape(name)}</b>: {kind} pictures of {width} x {height} pixels, usually made in {studio.steps} steps.
<span class="aside">Everything runs on the machine that serves this page; nothing is sent elsewhere.</span></p></div>"""
