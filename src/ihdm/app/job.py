"""What every tab has: a button that computes, one that cancels, and a line that reports progress.

One state, one result: what is shown belongs to the settings beside it. When these change, and when work begins, fails
or is cancelled, all of its outputs are emptied. Browsers do this by themselves, before anything else can happen.
"""

from __future__ import annotations

import asyncio
import html
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gradio as gr
from PIL import Image
from torch import Tensor

from ihdm.app.film import Film
from ihdm.app.firsts import Firsts, Work
from ihdm.app.studio import Growth
from ihdm.errors import IhdmError

QUIET: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
WRONG = "Something went wrong; the terminal says what."
EVERY = 0.25  # seconds between the pictures that are shown during a computation
CHANGES = ("input", "release", "upload", "clear", "delete")  # events by which a visitor changes a field


@dataclass(frozen=True)
class Bench:
    """A tab's cancel button and status line; `begun` holds events that end when a visitor does something."""

    cancel: gr.Button
    status: gr.HTML
    page: gr.Blocks
    firsts: Firsts
    begun: list[Any] = field(default_factory=list)

    @classmethod
    def build(cls, page: gr.Blocks, firsts: Firsts) -> Bench:
        cancel = gr.Button("Cancel", interactive=False, size="md")
        return cls(cancel, gr.HTML(said(""), elem_classes="status"), page, firsts)

    def begin(self, work: Work, fields: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Show visitors a first result as soon as it is ready: what the work yields last for the initial settings."""
        given = [each.value for each in fields]
        first = self.firsts.add(work, given)

        async def show() -> AsyncIterator[tuple[Any, ...]]:
            nothing = [gr.skip()] * len(outputs)
            waited = not first.ready
            if waited:
                yield said("Making a first picture …"), *nothing
            while not first.ready:
                await asyncio.sleep(0.1)
            yield said("") if waited else gr.skip(), *(first.found[1:] if first.found else nothing)

        options: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
        showing = self.page.load(show, None, [self.status, *outputs], concurrency_limit=None, **options)
        self.begun.append(showing)
        # A quick visitor may have changed a field before the result came.
        seen = [output for output in outputs if not isinstance(output, gr.State)]
        same = f"now.every((value, i) => value === {json.dumps(given)}[i])"
        js = f"(...now) => {same} ? {_untouched(seen)} : {json.dumps([*map(emptied, seen)])}"
        showing.then(None, list(fields), seen, js=js, **QUIET)

    def connect(
        self,
        button: gr.Button,
        work: Work,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        fields: Sequence[Any] | None = None,
        rolls: tuple[gr.Button, Sequence[gr.Number]] | None = None,
    ) -> None:
        """Let a button start some work. Only one piece of work runs at a time, for all visitors together.

        work: takes a folder for its files, then the inputs; yields the text of the status line, then a value for each
        of the outputs.
        fields: those whose change makes the outputs outdated; by default all inputs.
        rolls: a button that starts the work too, and the fields that it first fills with random numbers.
        """
        starts = [button.click]
        if rolls is not None:
            dice, seeds = rolls
            starts.append(dice.click(None, None, list(seeds), js=_random(len(seeds)), **QUIET).then)
        begun = [*self.begun]
        seen = [output for output in outputs if not isinstance(output, gr.State)]
        all_seen = [self.status, self.cancel, *seen]
        for start in starts:
            waits = _empty(seen, "Waiting for its turn …", working=True)
            waiting = start(None, None, all_seen, js=waits, cancels=self.begun, **QUIET)
            working = waiting.then(
                _plainly(work, self.firsts, inputs, outputs),
                inputs,
                [self.status, *outputs],
                concurrency_id="computing",
                concurrency_limit=1,
                show_progress="hidden",
                api_visibility="private",
            )
            # A last progress report may arrive after the cancellation; gradio counts cancelled work as failed.
            working.failure(
                None,
                [self.status],
                all_seen,
                js=f"line => line.includes('problem') ? {_untouched(all_seen)} : ({_empty(seen, 'Cancelled.')})()",
                **QUIET,
            )
            working.then(None, None, self.cancel, js=f"() => [{json.dumps(gr.update(interactive=False))}]", **QUIET)
            begun.append(working)
        asked = inputs if fields is None else fields
        changes = [getattr(each, name) for each in asked for name in CHANGES if _has(each, name)]
        gr.on(changes, None, None, all_seen, js=_empty(seen, ""), **QUIET)
        self.cancel.click(None, None, all_seen, js=_empty(seen, "Cancelled."), **QUIET)
        for event in begun:  # one by one: gradio waits for each, and would end work that began meanwhile
            gr.on([*changes, self.cancel.click], None, None, None, cancels=[event], **QUIET)


def watched(
    growth: Growth, film: Film, draw: Callable[[Tensor], Image.Image], others: int
) -> Iterator[tuple[Any, ...]]:
    """Fill the film, and yield the status line, now and then a picture, and nothing for the other outputs."""
    shown = 0.0
    for k, u in growth:
        film.add(k, u)
        done, steps = film.step(k), film.steps
        # Not the last picture: it is shown afterwards, and gradio would rewrite its file while browsers read it.
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


def emptied(output: Any) -> Any:
    """What an output holds while there is no result. Files that a visitor gave stay."""
    if isinstance(output, gr.State):
        return None
    if isinstance(output, gr.File):
        return gr.skip()
    if isinstance(output, gr.Slider):
        return gr.update(interactive=False)
    if isinstance(output, gr.DownloadButton):
        return gr.update(value=None, interactive=False)
    return gr.update(value="" if isinstance(output, gr.Markdown) else None)


def _empty(outputs: Sequence[Any], words: str, working: bool = False) -> str:
    """JavaScript that sets the status line and the cancel button, and empties the outputs."""
    values = [said(words), gr.update(interactive=working), *map(emptied, outputs)]
    return f"() => {json.dumps(values)}"


def _untouched(outputs: Sequence[Any]) -> str:
    return json.dumps([gr.skip()] * len(outputs))


def _random(count: int) -> str:
    """JavaScript that draws `count` random numbers, short enough to be remembered."""
    return f"() => [{', '.join(['Math.floor(Math.random() * 1e6)'] * count)}]"


def _has(component: Any, event: str) -> bool:
    return any(str(known) == event for known in component.EVENTS)


def _plainly(work: Work, firsts: Firsts, inputs: Sequence[Any], outputs: Sequence[Any]) -> Work:
    """The work, with plain words for errors that a visitor can correct. States that it starts from stay if it fails."""
    kept = [output for output in outputs if isinstance(output, gr.State) and output in inputs]
    nothing = [gr.skip() if output in kept else emptied(output) for output in outputs]

    def plain(*given: Any) -> Iterator[tuple[Any, ...]]:
        try:
            with TemporaryDirectory() as folder:
                yield said("Starting …"), *nothing
                yield from firsts.turns.visitor(work(Path(folder), *given))
        except IhdmError as error:
            gr.Warning(html.escape(str(error)), title="This does not work")
            yield said(str(error), problem=True), *nothing
        except Exception:
            yield said(WRONG, problem=True), *nothing
            raise

    return plain
