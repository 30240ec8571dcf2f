"""The demo: train on the embedded digits, then show the results, and what models trained for longer can do."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from ihdm import pictures
from ihdm.config import load_config
from ihdm.data import evenly_taken, load_images
from ihdm.errors import IhdmError
from ihdm.execution import Execution
from ihdm.model import Model
from ihdm.pixels import to_unit
from ihdm.run import check_run
from ihdm.trainer import Trainer

SAMPLES = 64  # images in samples.png
ROWS, COLUMNS = 6, 11  # images and levels in sequence.png
MOVING, FRAMES = 16, 50  # images and levels in growth.gif
LONGER = {"mnist-ready": 16, "cifar10-ready": 16}  # models that come with ihdm, and how many images of each


def run_demo(out: Path, settings: Iterable[str]) -> None:
    """Fill `out` with a trained model and pictures; a second call does not train again."""
    config = load_config("digits", settings)
    check_run(out, config, "--out")
    images = load_images(config.data)
    print(f"Learning to grow handwritten digits from blur: {len(images.train):,} images of 8x8 pixels.", flush=True)
    trainer = Trainer(config, images, out)
    if not trainer.train():
        raise IhdmError(f"stopped at step {trainer.step:,}; run the demo again to resume there")

    model = Model.from_pretrained(out / "model")
    samples = model.sample(SAMPLES, execution=Execution(progress=True))
    real = to_unit(evenly_taken(images.train, SAMPLES))
    page = pictures.beside(pictures.grid(samples, caption="generated"), pictures.grid(real, caption="real"))
    page.save(out / "samples.png")

    states, levels = list(model.trajectory(MOVING)), model.process.levels()
    columns = [u[:ROWS] for u in pictures.evenly(states, levels, COLUMNS)]
    pictures.sequence(columns, caption="from blank to sharp").save(out / "sequence.png")
    pictures.animation(out / "growth.gif", pictures.evenly(states, levels, FRAMES))

    for name, count in LONGER.items():
        longer = Model.from_pretrained(name).sample(count, execution=Execution(progress=True))
        pictures.grid(longer, caption=f"ihdm sample {name}").save(out / f"{name}.png")

    made = {
        "samples.png": "generated digits beside real ones",
        "sequence.png": f"how {ROWS} of them grew, from blank to sharp",
        "growth.gif": f"{MOVING} of them growing, as an animation",
        "model": f"the model; try: ihdm sample {shlex.quote(str(out / 'model'))} --seed 1",
        **{f"{name}.png": f"from a model that comes with ihdm: ihdm sample {name}" for name in LONGER},
    }
    width = max(map(len, made))
    print("", *(f"{out / name}{' ' * (width - len(name))}  {words}" for name, words in made.items()), sep="\n")
    print(f"(delete {out} to train again)")
