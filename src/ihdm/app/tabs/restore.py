"""What a blurred or small picture may have been."""

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
from ihdm.app.numbers import within
from ihdm.app.studio import MOST_BYTES, Studio
from ihdm.app.tabs.parts import PAGE, lead, picture, random_seed, save_button, saved, seed, stacked
from ihdm.app.tabs.sampling import sampling_row
from ihdm.app.ways import chosen
from ihdm.data.pictures import SUFFIXES
from ihdm.errors import UsageError
from ihdm.pixels import to_unit
from ihdm.processes import restoring
from ihdm.restoration import Restored

TEXT = """Blur destroys detail, so several sharp pictures can look the same when blurred. Give a blurred picture of the
kind that the model knows. **The more the versions differ, the less the picture says; the spread map shows where.**"""
INVERTED = {False: "; its negative does: choose *Restore its negative*", True: "; the picture itself does"}
MOST_VERSIONS, SMALL = 16, PAGE // 4


def tab(studio: Studio, bench_for: Callable[[], Bench]) -> None:
    process = studio.process
    widest = round(restoring(process).schedule.sigma_B_max / 2, 1)
    lead(TEXT)
    how = sampling_row(process, studio.restorer.process())
    with gr.Row(elem_classes="sides"):
        with gr.Column(scale=1, min_width=280):
            file = gr.File(
                label=f"A blurred or small picture, at most {MOST_BYTES >> 20} MB",
                file_types=sorted(SUFFIXES),
                height=130,
                elem_id="upload",
            )
            example = gr.Button("Blur one for me", size="sm")
            blur = gr.Slider(0, widest, 0, step=0.1, label="Blur width in pixels", info="0: estimate it.")
            negative = gr.Checkbox(label="Restore its negative", info="For example of black ink on white paper.")
            number = gr.Slider(2, MOST_VERSIONS, 8, step=1, label="How many versions")
            first = seed()
            make = gr.Button("Restore", variant="primary")
            dice = random_seed()
            bench = bench_for()
        with gr.Column(scale=2, min_width=300, elem_classes="results"):
            summary = picture("summary")
            versions = picture("versions")
            words = gr.Markdown(elem_classes="words")
            png = save_button("PNG")

    def work(
        folder: Path, file: Any, blur: Any, inverted: Any, n: Any, seed: Any, *given_how: Any
    ) -> Iterator[tuple[Any, ...]]:
        given = studio.upload(file, inverted)
        blur_width = within(blur, "The blur width", 0, widest) or given.blur_width
        if blur_width is None:
            yield said("Estimating the blur …"), *[gr.skip()] * 4
        seen = studio.restorer.settled(given.image, blur_width)
        if seen.level == 0:
            raise UsageError("That picture already looks sharp. To restore it anyway, set its blur width.")
        growth = studio.restore(seen, n, seed, **chosen(process, dict(zip(how, given_how))))
        film = Film(growth.levels)
        for status, page, *_ in watched(growth, film, draw, 0):
            yield status, gr.skip(), page, gr.skip(), gr.skip()
        restored = Restored(to_unit(film.last), seen)
        top, bottom = draw_summary(given.image, restored), draw(film.last)
        whole = saved(stacked(top, bottom), folder / "ihdm-restored.png")
        note = f"{given.note} Blur: {seen.width_words} pixels wide, level {seen.level} of {process.K}; "
        note += f"from there it took {film.steps} step{'s' if film.steps > 1 else ''}. "
        note += f"Spread: white is {100 * float(restored.spread.max()):.0f} % of full brightness."
        verdict = studio.restorer.verdict(seen)
        note += f" **{verdict.words[0].upper()}{verdict.words[1:]}{INVERTED[bool(inverted)] * verdict.inverted}.**"
        end = said("The model may not know such pictures." if verdict.unusual else "Done.")
        yield end, top, bottom, note.strip(), whole

    def blurring(folder: Path, seed: Any) -> Iterator[tuple[Any, ...]]:
        yield said("Making a picture to blur …"), *[gr.skip()] * 5
        path = folder / "blurred.png"
        pictures.plain(studio.blurred(seed, max(1, round(0.6 * process.K)))).save(path)
        yield said("Here is a blurred picture. Now restore it."), str(path), *[gr.skip()] * 4

    def example_restored(folder: Path, seed: Any, *given: Any) -> Iterator[tuple[Any, ...]]:
        *_, (_, path, *_) = blurring(folder, seed)
        for status, *found in work(folder, path, *given):
            yield status, path, *found

    fields, results = [file, blur, negative, number, first, *how.values()], [summary, versions, words, png]
    bench.begin(example_restored, [first, *fields[1:]], [file, *results])
    bench.connect(make, work, fields, results, rolls=(dice, [first]))
    bench.connect(example, blurring, [first], [file, *results], fields=[file])


def draw(images: Tensor) -> Image.Image:
    return pictures.grid(images, 4, "versions", PAGE // 4)


def draw_summary(image: Tensor, restored: Restored) -> Image.Image:
    """The given picture, the average of the versions, and where they differ, with the largest spread in white."""
    spread = restored.spread / restored.spread.max().clamp(min=1e-6)
    shown = {"given": image, "average": restored.mean, "spread": spread}
    return pictures.beside(*(pictures.grid(u[None], 1, name, SMALL) for name, u in shown.items()))
