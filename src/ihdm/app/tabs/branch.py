"""One state, several futures; continue from one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image
from torch import Tensor

from ihdm import pictures
from ihdm.app.film import Film
from ihdm.app.job import QUIET, Bench, said, watched
from ihdm.app.numbers import whole
from ihdm.app.studio import Studio
from ihdm.app.tabs.parts import PAGE, lead, picture, random_seed, save_button, saved, seed
from ihdm.errors import UsageError

TEXT = """While a picture grows, it can still become many pictures. Grow one, stop on the way, and let the rest happen
several times. **If you stop early, the futures differ in shape; if you stop late, only in detail.** Click on a future
to continue from there."""
FUTURES, SHOWN, CELL = 8, 8, 224


@dataclass(frozen=True)
class Walk:
    """The path so far, how often it has turned into a future, and its latest futures."""

    seed: int
    path: Film
    turns: int = 0
    futures: Film | None = None

    def turned(self, i: int) -> Walk:
        """This walk continued along future i."""
        if self.futures is None:
            raise UsageError("First show its futures.")
        return Walk(self.seed, self.path.then(self.futures.only(i)), self.turns + 1)


def tab(studio: Studio, bench_for: Callable[[], Bench]) -> None:
    lead(TEXT)
    with gr.Row(elem_classes="sides"):
        with gr.Column(scale=1, min_width=280):
            first = seed()
            dice = random_seed()
            grow = gr.Button("1. Grow one picture", variant="primary")
            stop = gr.Slider(0, 100, 30, step=1, label="Stop at this percentage of the way")
            part = gr.Button("2. Show its futures", variant="primary")
            bench = bench_for()
        with gr.Column(scale=2, min_width=300, elem_classes="results"):
            path = picture("path")
            with gr.Row():
                with gr.Column(scale=1, min_width=140):
                    state = picture("state")
                    words = gr.Markdown(elem_classes="words")
                with gr.Column(scale=3, min_width=280):
                    gallery = _gallery()
            png = save_button("PNG")
    walk = gr.State(time_to_live=3600)

    def growing(folder: Path, seed: Any, percent: Any) -> Iterator[tuple[Any, ...]]:
        growth = studio.grow(1, seed)
        film = Film(growth.levels, exact=True)
        yield from watched(growth, film, lambda u: draw(film), 5)
        still, walk = saved(draw(film), folder / "ihdm-path.png"), Walk(int(seed), film)
        yield said("Grown. Now choose where to stop."), draw(film), *look(walk, percent), None, still, walk

    def parting(folder: Path, walk: Walk | None, seed: Any, percent: Any) -> Iterator[tuple[Any, ...]]:
        if walk is None or walk.seed != seed:
            raise UsageError("First grow one picture.")
        level = level_at(walk.path, whole(percent, "Where to stop", 0, 100))
        growth = studio.futures(walk.path.states[level], level, FUTURES, walk.seed, walk.turns)
        film = Film(growth.levels, exact=True)
        for status, *_ in watched(growth, film, draw_all, 0):
            yield status, gr.skip(), gr.skip(), gr.skip()
        still = saved(draw_all(film.last), folder / "ihdm-futures.png")
        found = Walk(walk.seed, walk.path, walk.turns, film)
        step = f"step {walk.path.step(level)} of {walk.path.steps}"
        words = f"{FUTURES} futures of {step}. Click on one to continue from it."
        yield said(words), tiles(film.last), still, found

    def both(folder: Path, seed: Any, percent: Any) -> Iterator[tuple[Any, ...]]:
        for status, *grown in growing(folder, seed, percent):
            yield status, *grown
        for status, *parted in parting(folder, grown[-1], seed, percent):
            yield status, *grown[:3], *parted

    def look(walk: Walk | None, percent: Any) -> tuple[Any, Any]:
        if walk is None:
            return gr.skip(), gr.skip()
        level = level_at(walk.path, whole(percent, "Where to stop", 0, 100))
        step = f"Step {walk.path.step(level)} of {walk.path.steps}"
        words = f"{step}, {studio.process.level_words(level)}: the futures start here."
        return pictures.grid(walk.path.states[level], 1, cell=CELL), words

    def turn(walk: Walk | None, chosen: gr.SelectData) -> tuple[Any, ...]:
        if walk is None or walk.futures is None:
            return gr.skip(), gr.skip(), gr.skip()
        on = walk.turned(chosen.index)
        words = f"Continuing along future {chosen.index + 1}. Stop at a later point and show the futures from there."
        return said(words), draw(on.path), replace(on, futures=walk.futures)

    results = [path, state, words, gallery, png, walk]
    bench.begin(both, [first, stop], results)
    bench.connect(grow, growing, [first, stop], results, fields=[first], rolls=(dice, [first]))
    bench.connect(part, parting, [walk, first, stop], [gallery, png, walk], fields=[first, stop])
    stop.input(look, [walk, stop], [state, words], trigger_mode="always_last", **QUIET)
    gallery.select(turn, walk, [bench.status, path, walk], **QUIET)


def _gallery() -> gr.Gallery:
    return gr.Gallery(
        label="Futures: click on one to continue from it",
        show_label=False,
        columns=4,
        height="auto",
        format="png",
        allow_preview=False,
        buttons=[],
        object_fit="contain",
        elem_classes="futures",
        elem_id="futures",
    )


def level_at(path: Film, percent: int) -> int:
    """The level at this percentage of a path."""
    return path.levels[round(percent / 100 * (len(path.levels) - 1))]


def draw(path: Film) -> Image.Image:
    """Some states of a path in a row."""
    return pictures.grid([u[0] for u in path.some(SHOWN)], SHOWN, cell=PAGE // SHOWN)


def draw_all(images: Tensor) -> Image.Image:
    return pictures.grid(images, 4, cell=CELL)


def tiles(images: Tensor) -> list[Image.Image]:
    """Each image by itself, enlarged."""
    return [pictures.grid(image[None], 1, cell=CELL) for image in images]
