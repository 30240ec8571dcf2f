"""A table with one start in each column and one noise in each row, as in the study of the same name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
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
from ihdm.app.tabs.parts import PAGE, lead, picture, random_seed, save_button, saved, seed, stacked
from ihdm.errors import UsageError

TEXT = """Two things decide what a picture becomes: the blur that it starts from, and the noise on the way.
**Down a column the start is the same, and so is the {what}; along a row the noise is the same, and the shapes tend to
be alike.** The top row shows the starts, each with a single {what}."""


def tab(studio: Studio, bench_for: Callable[[], Bench]) -> None:
    what = "colour" if studio.in_colour else "brightness"
    prior = studio.picking().prior
    light = prior.colours().mean(1)
    low, middle, high = (round(100 * float(light.quantile(q))) for q in (0.0, 0.5, 1.0))
    side = round(studio.usual**0.5)
    lead(TEXT.format(what=what))
    with gr.Row(elem_classes="sides"):
        with gr.Column(scale=1, min_width=280):
            if studio.in_colour:
                wanted: Any = gr.ColorPicker("#8090b0", label="Colour of the first column", info=NEAREST)
            else:
                label = "Brightness of the first column (%)"
                wanted = gr.Slider(low, max(high, low + 1), middle, step=1, label=label, info=NEAREST)
            first = seed("Seed of the first row")
            columns = gr.Slider(1, MOST_SIDE, side, step=1, label="Columns: starts")
            rows = gr.Slider(1, MOST_SIDE, side, step=1, label="Rows: seeds")
            make = gr.Button("Make the table", variant="primary")
            dice = random_seed()
            bench = bench_for()
        with gr.Column(scale=2, min_width=300, elem_classes="results"):
            page = picture("table")
            png = save_button("PNG")

    def work(folder: Path, wanted: Any, seed: Any, columns: Any, rows: Any) -> Iterator[tuple[Any, ...]]:
        colour = parse_colour(wanted) if studio.in_colour else within(wanted, "The brightness", 0, 100) / 100
        columns, rows = (whole(n, "The number of rows and columns", 1, MOST_SIDE) for n in (columns, rows))
        seed = whole(seed, "The seed", 0, MOST_SEED - MOST_SIDE)
        starts = studio.starts(colour, columns)
        blurs, growth = prior.means(starts), studio.matrix(starts, range(seed, seed + rows))
        film = Film(growth.levels)
        yield from watched(growth, film, lambda images: draw(blurs, images), 1)
        table = draw(blurs, film.last)
        yield said("Done."), table, saved(table, folder / f"ihdm-{what}-and-shape.png")

    fields, results = [wanted, first, columns, rows], [page, png]
    bench.begin(work, fields, results)
    bench.connect(make, work, fields, results, rolls=(dice, [first]))


HEIGHT = 480  # pixels, of all rows together
NEAREST = "The nearest start is taken; the other columns differ from it as much as possible."


def draw(starts: Tensor, images: Tensor) -> Image.Image:
    """The starts, and below each of them what became of it."""
    columns = len(starts)
    cell = min(PAGE // columns, HEIGHT // (len(images) // columns + 1))
    return stacked(
        pictures.grid(starts, columns, "starts", cell), pictures.grid(images, columns, "what became of them", cell)
    )


def parse_colour(text: Any) -> list[float]:
    """A colour as the browser writes it, #8090b0 or rgba(128, 144, 176, 1), as numbers in [0, 1]."""
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
