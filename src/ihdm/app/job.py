"""What every tab has: a button that computes, one that cancels, and a line that says how far it is."""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
from PIL import Image
from torch import Tensor

from ihdm.app.film import Film
from ihdm.app.studio import Growth
from ihdm.errors import IhdmError

QUIET: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
WRONG = "Something went wrong; the terminal says what."
EVERY = 0.25  # seconds between pictures that are shown while one computes


@dataclass(frozen=True)
class Bench:
    """A tab's cancel button and status line."""

    cancel: gr.Button
    status: gr.HTML

    @classmethod
    def build(cls) -> Bench:
        return cls(gr.Button("Cancel", interactive=False, size="md"), gr.HTML(said(""), elem_classes="status"))

    def connect(
        self, button: gr.Button, work: Callable[..., Iterator[tuple[Any, ...]]], inputs: Sequence[Any], outputs: Any
    ) -> None:
        """Let a button start some work, one piece at a time for all visitors together.

        work: yields what the status line says, then a value for each of the outputs.
        """
        waiting = button.click(
            lambda: (said("Waiting for its turn …"), gr.update(interactive=True)),
            None,
            [self.status, self.cancel],
            **QUIET,
        )
        working = waiting.then(
            _plainly(work, len(outputs)),
            inputs,
            [self.status, *outputs],
            concurrency_id="computing",
            concurrency_limit=1,
            show_progress="hidden",
            api_visibility="private",
        )
        # A last progress report may arrive after the cancelling; gradio counts what was cancelled as failed.
        working.failure(
            lambda line: gr.skip() if line == said(WRONG, problem=True) else said("Cancelled."),
            self.status,
            self.status,
            **QUIET,
        )
        working.then(lambda: gr.update(interactive=False), None, self.cancel, **QUIET)
        self.cancel.click(
            lambda: (said("Cancelled."), gr.update(interactive=False)),
            None,
            [self.status, self.cancel],
            cancels=[working],
            **QUIET,
        )


def watched(
    growth: Growth, film: Film, draw: Callable[[Tensor], Image.Image], others: int
) -> Iterator[tuple[Any, ...]]:
    """Fill the film, and yield the status line, now and then a picture, and nothing for the other outputs."""
    shown = 0.0
    for k, u in growth:
        film.add(k, u)
        done, steps = film.step(k), film.steps
        # Not the last: it is shown afterwards, and gradio would write the same file again while browsers read it.
        due = done < steps and time.monotonic() - shown > EVERY
        shown = time.monotonic() if due else shown
        bar = progress(done, steps, f"Growing: step {done} of {steps}")
        yield bar, draw(u) if due else gr.skip(), *[gr.skip()] * others


def said(text: str, problem: bool = False) -> str:
    """The status line."""
    return f'<p class="{"problem" if problem else "fine"}">{html.escape(text)}</p>'


def progress(done: int, total: int, text: str) -> str:
    """The status line with a bar."""
    share = 100 * done / max(total, 1)
    return f'{said(text)}<div class="track" role="progressbar"><div style="width:{share:.0f}%"></div></div>'


def _plainly(work: Callable[..., Iterator[tuple[Any, ...]]], outputs: int) -> Callable[..., Iterator[tuple[Any, ...]]]:
    """The work, with what a visitor can put right said in plain words."""

    def plain(*inputs: Any) -> Iterator[tuple[Any, ...]]:
        try:
            yield from work(*inputs)
        except IhdmError as error:
            gr.Warning(html.escape(str(error)), title="Not like this")
            yield said(str(error), problem=True), *[gr.skip()] * outputs
        except Exception:
            yield said(WRONG, problem=True), *[gr.skip()] * outputs
            raise

    return plain
