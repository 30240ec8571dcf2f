"""Rows of starts, columns of chance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gradio as gr
import torch
from PIL import Image, ImageColor
from torch import Tensor

from ihdm import pictures
from ihdm.app.film import Film
from ihdm.app.job import Bench, said, watched
from ihdm.app.numbers import MOST_SEED, whole, within
from ihdm.app.studio import MOST_SIDE, Studio
from ihdm.app.tabs.parts import PAGE, lead, picture, save_button, saved, seed
from ihdm.errors import UsageError

TEXT = """Two things decide what a picture becomes: the blur that it starts from, and the chance on the way.
**Along a row the start is the same, and so is the {what}; down a column the chance is the same, and the shapes tend to
be alike.** The left column shows the starts, each of one {what}."""


def tab(studio: Studio) -> None:
    what = "colour" if studio.in_colour else "brightness"
    prior = studio.picking().prior
    light = prior.colours().mean(1)
    low, middle, high = (round(100 * float(light.quantile(q))) for q in (0.0, 0.5, 1.0))
    side = round(studio.usual**0.5)
    lead(TEXT.format(what=what))
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            if studio.in_colour:
                wanted: Any = gr.ColorPicker("#8090b0", label="Colour of the first row", info=NEAREST)
            else:
                label = "Brightness of the first row (%)"
                wanted = gr.Slider(low, max(high, low + 1), middle, step=1, label=label, info=NEAREST)
            first = seed("Seed of the first column")
            rows = gr.Slider(1, MOST_SIDE, side, step=1, label="Rows: starts")
            columns = gr.Slider(1, MOST_SIDE, side, step=1, label="Columns: seeds")
            make = gr.Button("Make the table", variant="primary")
            bench = Bench.build()
        with gr.Column(scale=2, min_width=300):
            page = picture("table")
            png = save_button("PNG")

    def work(wanted: Any, seed: Any, rows: Any, columns: Any) -> Iterator[tuple[Any, ...]]:
        colour = parse_colour(wanted) if studio.in_colour else within(wanted, "The brightness", 0, 100) / 100
        rows, columns = (whole(n, "The number of rows and columns", 1, MOST_SIDE) for n in (rows, columns))
        seed = whole(seed, "The seed", 0, MOST_SEED - MOST_SIDE)
        starts = studio.starts(colour, rows)
        blurs, growth = prior.means(starts), studio.matrix(starts, range(seed, seed + columns))
        film = Film(growth.levels)
        yield from watched(growth, film, lambda images: draw(blurs, images), 1)
        with TemporaryDirectory() as folder:
            table = draw(blurs, film.last)
            yield said("Done."), table, saved(table, Path(folder, f"ihdm-{what}-and-shape.png"))

    bench.connect(make, work, [wanted, first, rows, columns], [page, png])


NEAREST = "The nearest start is taken; the other rows differ from it as much as can be."


def draw(starts: Tensor, images: Tensor) -> Image.Image:
    """The starts, and beside each what became of it."""
    columns = len(images) // len(starts)
    cell = PAGE // (columns + 1)
    return pictures.beside(pictures.grid(starts, 1, "start", cell), pictures.grid(images, columns, "pictures", cell))


def parse_colour(text: Any) -> list[float]:
    """A colour as the browser says it, #8090b0 or rgba(128, 144, 176, 1), as numbers in [0, 1]."""
    try:
        words = str(text).strip()
        if words.startswith("rgba("):
            parts = [float(part) for part in words[5:].rstrip(")").split(",")[:3]]
            found = torch.tensor(parts)
        else:
            found = torch.tensor(ImageColor.getrgb(words)[:3], dtype=torch.float32)
        if found.shape != (3,) or not bool(((found >= 0) & (found <= 255)).all()):
            raise ValueError(words)
    except ValueError as error:
        raise UsageError(f"{text} is not a colour; choose one, or write it like #8090b0.") from error
    return (found / 255).tolist()
