"""From one picture to another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gradio as gr
from PIL import Image
from torch import Tensor

from ihdm import pictures
from ihdm.app.film import Film
from ihdm.app.job import Bench, said, watched
from ihdm.app.studio import MOST_STEPS, Studio
from ihdm.app.tabs.parts import PAGE, lead, offered, picture, save_button, saved, seed

TEXT = """Here are two pictures, and what lies between them. Start and chance of the first are turned, little by little,
into those of the second. **Every step on the way is a picture of its own, not a cross-fade of the two.**"""
SHOWN, MOVING = 8, 280


def tab(studio: Studio) -> None:
    lead(TEXT)
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            one = seed("From seed", 1, "The first picture that Generate makes with that seed.")
            other = seed("To seed", 2, "The same, for the other end.")
            steps = gr.Slider(2, MOST_STEPS, max(8, studio.usual), step=1, label="Pictures on the way, ends included")
            make = gr.Button("Go from one to the other", variant="primary")
            bench = Bench.build()
        with gr.Column(scale=2, min_width=300):
            strip = picture("strip")
            moving = picture("moving", width=MOVING + 20)
            with gr.Row():
                png, gif = save_button("PNG"), save_button("GIF")

    def work(one: Any, other: Any, steps: Any) -> Iterator[tuple[Any, ...]]:
        growth = studio.between(one, other, steps)
        film = Film(growth.levels)
        yield from watched(growth, film, draw, 3)
        with TemporaryDirectory() as folder:
            name = f"ihdm-{one:.0f}-to-{other:.0f}"
            animated, images = Path(folder, f"{name}.gif"), film.last
            pictures.animation(animated, [*images[:, None], *images[:, None].flip(0)], 3.0, 0.5, MOVING)
            still = saved(pictures.grid(images, len(images)), Path(folder, f"{name}.png"))
            yield said("Done."), draw(images), str(animated), still, offered(animated)

    bench.connect(make, work, [one, other, steps], [strip, moving, png, gif])


def draw(images: Tensor) -> Image.Image:
    """At most SHOWN of the images in a row."""
    shown = images[pictures.some_of(range(len(images)), SHOWN)]
    return pictures.grid(shown, len(shown), cell=PAGE // len(shown))
