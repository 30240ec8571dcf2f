"""From one picture to another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image
from torch import Tensor

from ihdm import pictures
from ihdm.app.film import Film
from ihdm.app.job import Bench, said, watched
from ihdm.app.studio import MOST_STEPS, Studio
from ihdm.app.tabs.parts import PAGE, lead, offered, picture, random_seed, save_button, saved, seed

TEXT = """Here are two pictures and what lies between them. The start and the noise of the first turn, little by little,
into those of the second. **Every step on the way is a picture of its own, not a cross-fade of the two.**"""
COLUMNS, MOVING = 8, 280
FROM, TO = 10, 0  # with mnist-ready, a six that turns into an eight


def tab(studio: Studio, bench_for: Callable[[], Bench]) -> None:
    lead(TEXT)
    with gr.Row(elem_classes="sides"):
        with gr.Column(scale=1, min_width=280):
            one = seed("From seed", FROM, "The first picture that Generate makes with that seed.")
            other = seed("To seed", TO, "The same, for the other end.")
            steps = gr.Slider(2, MOST_STEPS, max(8, studio.usual), step=1, label="Pictures on the way, ends included")
            make = gr.Button("Go from one to the other", variant="primary")
            dice = random_seed("Random seeds")
            bench = bench_for()
        with gr.Column(scale=2, min_width=300, elem_classes="results"):
            strip = picture("strip")
            moving = picture("moving", width=MOVING + 20)
            with gr.Row():
                png, gif = save_button("PNG"), save_button("GIF")

    def work(folder: Path, one: Any, other: Any, steps: Any) -> Iterator[tuple[Any, ...]]:
        growth = studio.between(one, other, steps)
        film = Film(growth.levels)
        yield from watched(growth, film, draw, 3)
        name, images = f"ihdm-{one:.0f}-to-{other:.0f}", film.last
        animated = folder / f"{name}.gif"
        pictures.animation(animated, [*images[:, None], *images[:, None].flip(0)], 3.0, 0.5, MOVING)
        still = saved(draw(images), folder / f"{name}.png")
        yield said("Done."), draw(images), str(animated), still, offered(animated)

    fields, results = [one, other, steps], [strip, moving, png, gif]
    bench.begin(work, fields, results)
    bench.connect(make, work, fields, results, rolls=(dice, [one, other]))


def draw(images: Tensor) -> Image.Image:
    """All of them, in rows of at most COLUMNS."""
    columns = min(len(images), COLUMNS)
    return pictures.grid(images, columns, cell=PAGE // columns)
