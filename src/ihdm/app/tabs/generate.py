"""Many pictures at once, and a slider through their growth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image
from torch import Tensor

from ihdm import pictures
from ihdm.app.film import Film
from ihdm.app.job import QUIET, Bench, said, watched
from ihdm.app.studio import MOST_IMAGES, Studio
from ihdm.app.tabs.parts import PAGE, lead, offered, picture, random_seed, save_button, saved, seed
from ihdm.app.tabs.sampling import sampling_row
from ihdm.app.ways import chosen

TEXT = """Every picture begins with hardly anything in it. The model brings it out in small steps, until there is a
picture that nobody has drawn. **Move the slider to watch it happen.**"""
MOST_BUTTONS = 20  # with more labels than this, there is a list instead of buttons


def tab(studio: Studio, bench_for: Callable[[], Bench]) -> None:
    lead(TEXT)
    how = sampling_row(studio.process, studio.process)
    with gr.Row(elem_classes="sides"):
        with gr.Column(scale=1, min_width=280):
            wanted = _label(studio.labels) if studio.labels else {}
            number = gr.Slider(1, MOST_IMAGES, studio.usual, step=1, label="How many pictures")
            wanted |= _guidance(studio) if studio.guided else {}
            first = seed()
            make = gr.Button("Make pictures", variant="primary")
            dice = random_seed()
            bench = bench_for()
        with gr.Column(scale=2, min_width=300, elem_classes="results"):
            label = "From nothing (left) to picture (right)"
            place = gr.Slider(0, studio.steps, studio.steps, step=1, label=label, interactive=False)
            page = picture("generated")
            words = gr.Markdown(elem_classes="words")
            with gr.Row():
                png, gif = save_button("PNG"), save_button("GIF")
    film = gr.State(time_to_live=3600)

    def work(folder: Path, n: Any, seed: Any, *given: Any) -> Iterator[tuple[Any, ...]]:
        asked, given = given[: len(wanted)], given[len(wanted) :]
        growth = studio.grow(n, seed, **dict(zip(wanted, asked)), **chosen(studio.process, dict(zip(how, given))))
        made = Film(growth.levels)
        yield from watched(growth, made, draw, 5)
        moving = folder / f"ihdm-{seed:.0f}-growing.gif"
        pictures.animation(moving, list(made.states.values()))
        still = saved(draw(made.last), folder / f"ihdm-{seed:.0f}.png")
        slider = gr.update(maximum=made.steps, value=made.steps, step=made.every, interactive=True)
        yield said("Done."), draw(made.last), slider, _words(studio, made, 0), still, offered(moving), made

    def scrub(made: Film | None, step: int) -> tuple[Any, Any]:
        if made is None:
            return gr.skip(), gr.skip()
        k = made.nearest(int(step))
        return draw(made.states[k]), _words(studio, made, k)

    fields, results = [number, first, *wanted.values(), *how.values()], [page, place, words, png, gif, film]
    bench.begin(work, fields, results)
    bench.connect(make, work, fields, results, rolls=(dice, [first]))
    place.input(scrub, [film, place], [page, words], trigger_mode="always_last", **QUIET)


def _label(labels: Sequence[str]) -> dict[str, Any]:
    """A field for what the pictures should show: buttons, or a list if there are many labels."""
    kind = gr.Radio if len(labels) <= MOST_BUTTONS else gr.Dropdown
    return {"label": kind([("any", ""), *((label, label) for label in labels)], value="", label="What they show")}


def _guidance(studio: Studio) -> dict[str, Any]:
    usual, less = studio.model.guidance(), "label ignored" if studio.model.guide is None else "a weaker network alone"
    about = f"1: as the model learned it. More: clearer and more alike. 0: {less}. Usual: {usual:g}."
    return {"guidance": gr.Slider(0, studio.most_guidance, usual, step=0.05, label="Guidance", info=about)}


def draw(images: Tensor) -> Image.Image:
    columns = int(max(1, len(images) - 1) ** 0.5) + (len(images) > 1)
    return pictures.grid(images, columns, cell=PAGE // columns)


def _words(studio: Studio, film: Film, k: int) -> str:
    return f"Step {film.step(k)} of {film.steps}: {studio.process.level_words(k)}."
