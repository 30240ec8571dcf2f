"""Many pictures at once, and a slider through their growth."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gradio as gr
from PIL import Image
from torch import Tensor

from ihdm import pictures
from ihdm.app.film import MOST, Film
from ihdm.app.job import QUIET, Bench, said, watched
from ihdm.app.studio import MOST_IMAGES, MOST_RATIO, Studio
from ihdm.app.tabs.parts import PAGE, lead, offered, picture, save_button, saved, seed

TEXT = """Every picture begins as a blur with hardly anything in it. The model sharpens it in small steps, each with a
pinch of chance, until there is a picture that nobody has drawn. **Move the slider to watch it happen.**"""


def tab(studio: Studio) -> None:
    own, steps = studio.model.config.process.delta_ratio, min(studio.K, MOST - 1)
    lead(TEXT)
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            number = gr.Slider(1, MOST_IMAGES, studio.usual, step=1, label="How many pictures")
            first = seed()
            ratio = gr.Slider(
                0, MOST_RATIO, own, step=0.05, label="Randomness", info=f"Little: smooth. Much: grainy. Usual: {own:g}."
            )
            make = gr.Button("Make pictures", variant="primary")
            bench = Bench.build()
        with gr.Column(scale=2, min_width=300):
            place = gr.Slider(0, steps, steps, step=1, label="From blank (left) to sharp (right)", interactive=False)
            page = picture("generated")
            words = gr.Markdown(elem_classes="words")
            with gr.Row():
                png, gif = save_button("PNG"), save_button("GIF")
    film = gr.State(time_to_live=3600)

    def work(n: Any, seed: Any, ratio: Any) -> Iterator[tuple[Any, ...]]:
        made = Film(studio.K)
        yield from watched(studio.grow(n, seed, ratio), made, draw, 5)
        with TemporaryDirectory() as folder:
            moving = Path(folder, f"ihdm-{seed:.0f}-growing.gif")
            pictures.animation(moving, list(made.states.values()))
            still = saved(draw(made.last), Path(folder, f"ihdm-{seed:.0f}.png"))
            slider = gr.update(value=steps, interactive=True)
            yield said("Done."), draw(made.last), slider, _words(studio, made, steps), still, offered(moving), made

    def scrub(made: Film | None, position: int) -> tuple[Any, Any]:
        if made is None:
            return gr.skip(), gr.skip()
        return draw(made.states[made.levels[int(position)]]), _words(studio, made, int(position))

    bench.connect(make, work, [number, first, ratio], [page, place, words, png, gif, film])
    place.input(scrub, [film, place], [page, words], trigger_mode="always_last", **QUIET)


def draw(images: Tensor) -> Image.Image:
    columns = int(max(1, len(images) - 1) ** 0.5) + (len(images) > 1)
    return pictures.grid(images, columns, cell=PAGE // columns)


def _words(studio: Studio, film: Film, position: int) -> str:
    k = film.levels[position]
    if k == 0:
        return f"Step {studio.K} of {studio.K}: sharp."
    return f"Step {studio.K - k} of {studio.K}: as if blurred over {studio.width(k):.1f} pixels."
