"""The command line: a table from verb to function. Heavy imports wait until a verb needs them."""

from __future__ import annotations

import itertools
import math
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tyro.conf import Positional, UseAppendAction, arg

from ihdm import __version__
from ihdm.config import Device, Precision, load_config, presets, setting_names
from ihdm.errors import IhdmError, UsageError, unknown

if TYPE_CHECKING:
    from ihdm.config import Config

GIF_IMAGES, GIF_FRAMES = 16, 50
LESS_MEMORY = (
    "less is needed with a larger trainer.accumulate or engine.checkpoint=true in training, a smaller --batch-size in "
    "sampling, smaller images or networks in both; ihdm info says how much"
)

Settings = Annotated[
    UseAppendAction[tuple[tuple[str, ...], ...]],
    arg(name="set", metavar="NAME=VALUE ...", help="settings to change, such as trainer.steps=1000 (see ihdm --help)"),
]


def train(
    preset: Annotated[Positional[str], arg(metavar="PRESET")],
    /,
    data: Annotated[str | None, arg(metavar="SOURCE")] = None,
    run: Annotated[Path | None, arg(metavar="FOLDER")] = None,
    settings: Settings = (),
) -> None:
    """Train a model. The same command again goes on from the last checkpoint.

    Args:
        preset: a preset's name (see `ihdm --help`), or a TOML file of the same form
        data: a named set, a folder, zip, idx, npy or npz file of images, or hf:NAME; default: the preset's
        run: the folder for checkpoints, log, sample pictures and the model; default: runs/PRESET
    """
    config = _with_data(load_config(preset, itertools.chain(*settings)), data)
    run = run or Path("runs") / Path(preset).stem
    if config.process.sigma == 0:
        print("warning: without noise (process.sigma=0) the reverse process is unstable (App. C.5)", file=sys.stderr)
    from ihdm.data import load_images
    from ihdm.engine import keep_freed_memory
    from ihdm.run import check_run
    from ihdm.trainer import Trainer

    keep_freed_memory()
    check_run(run, config)
    images = load_images(config.data)
    trainer = Trainer(config, images, run)
    parameters = sum(p.numel() for p in trainer.model.network.parameters())
    trainer.say(
        f"learning from {len(images.train):,} images {_shape_text(images.shape)}, checking on {len(images.held_out):,} "
        f"others; {parameters:,} parameters on {trainer.accelerator.device}"
    )
    widest, longest = trainer.model.process.schedule.sigma_B_max, max(images.shape[1:])
    if widest < longest / 2:
        trainer.say(
            f"note: at the widest blur, {widest:g} pixels, images of {longest} pixels are not blank yet; "
            f"the paper blurs by half the size or more: --set process.sigma_B_max=auto"
        )
    if trainer.train():
        trainer.say(f"done; the model is in {run / 'model'}. Next: ihdm sample {shlex.quote(str(run / 'model'))}")
    else:
        trainer.say(f"stopped at step {trainer.step:,}, all saved; the same command goes on from there")


def sample(
    model: Annotated[Positional[str], arg(metavar="MODEL")],
    /,
    n: int = 64,
    seed: int = 0,
    delta_ratio: Annotated[float | None, arg(metavar="RATIO")] = None,
    grid: Annotated[Path | None, arg(metavar="PNG")] = None,
    gif: Annotated[Path | None, arg(metavar="GIF")] = None,
    out: Annotated[Path | None, arg(metavar="FOLDER")] = None,
    same_start: bool = False,
    same_noise: bool = False,
    batch_size: int | None = None,
    device: Device = "auto",
    precision: Precision = "auto",
    compile: bool = True,
) -> None:
    """Make images with a trained model.

    Args:
        model: a model folder, a run folder, or owner/name on the hub
        n: how many images
        seed: image i depends on the seed and i alone
        delta_ratio: sampling noise in units of sigma: more gives more detail, then noise; default: the model's
        grid: a picture of all images; default: samples.png, if neither --gif nor --out is given
        gif: an animation of the first 16 images growing from blur
        out: an empty folder for the images, one PNG each
        same_start: grow all images from one blurred image: same colours, different shapes
        same_noise: use the same noise for all: same shapes, different colours (small grey images hardly differ then)
        batch_size: images computed at a time; default: as many as are computed fast and fit into memory
        device: where to compute; auto: the GPU if there is one
        precision: of the network; auto: bf16 where it is faster
        compile: on a GPU, compiled kernels and recorded steps, which start some seconds later and are faster
    """
    if n < 1 or (batch_size is not None and batch_size < 1):
        raise UsageError("--n and --batch-size must be at least 1")
    if delta_ratio is not None and not 0 <= delta_ratio < float("inf"):
        raise UsageError(f"--delta-ratio cannot be negative: {delta_ratio}")
    if same_start and same_noise:
        raise UsageError("--same-start and --same-noise together make all images the same; give one of them")
    if grid is None and gif is None and out is None:
        grid = Path("samples.png")
    _check_outputs(grid, gif, out)
    from ihdm import pictures
    from ihdm.engine import choose_device, choose_precision, keep_freed_memory, placed
    from ihdm.model import Model

    keep_freed_memory()
    place = choose_device(device)
    loaded = placed(Model.from_pretrained(model), place)
    options: dict[str, Any] = {"delta_ratio": delta_ratio, "same_start": same_start, "same_noise": same_noise}
    options["compiled"] = compile
    options["precision"] = choose_precision(precision, place, math.prod(loaded.config.shape[1:]))
    if grid or out:
        batches = loaded.sample_batches(n, seed, batch_size=batch_size, progress=True, **options)
        shown = []
        for i, image in enumerate(itertools.chain.from_iterable(batches)):
            if out:
                pictures.plain(image).save(out / f"{i:06d}.png")
            if grid:
                shown.append(image)
        if grid:
            pictures.grid(shown).save(grid)
    if gif:
        from tqdm import tqdm

        states = loaded.trajectory(min(n, GIF_IMAGES), seed, **options)
        bar = tqdm(states, desc="animating", unit="level", total=loaded.process.K + 1, leave=False)
        pictures.animation(gif, pictures.evenly(bar, loaded.process.K, GIF_FRAMES))
    for path in filter(None, (grid, out, gif)):
        print(path)


def info(
    name: Annotated[Positional[str], arg(metavar="MODEL_OR_PRESET")],
    /,
    data: Annotated[str | None, arg(metavar="SOURCE")] = None,
    settings: Settings = (),
) -> None:
    """Say what a model folder or a preset is.

    Args:
        name: a model folder, a run folder, owner/name on the hub, or a preset
        data: with a preset: the images it would be trained on; default: the preset's
    """
    from ihdm import describe

    if name in presets() or name.endswith(".toml"):
        config = _with_data(load_config(name, itertools.chain(*settings)), data)
        rows = describe.preset(config)
    elif settings or data:
        raise UsageError("--set and --data go with a preset; a model folder is what it is")
    else:
        rows = describe.model(name)
    width = max(len(label) for label in rows)
    print("\n".join(f"{label:<{width}}  {value}" for label, value in rows.items()))


def demo(out: Annotated[Path, arg(metavar="FOLDER")] = Path("demo"), settings: Settings = ()) -> None:
    """Train on the embedded digits for about 90 seconds, then make pictures.

    Args:
        out: the folder for everything
    """
    from ihdm.demo import run_demo
    from ihdm.engine import keep_freed_memory

    keep_freed_memory()
    run_demo(out, itertools.chain(*settings))


VERBS: dict[str, Callable[..., None]] = {"train": train, "sample": sample, "info": info, "demo": demo}


def main(words: list[str] | None = None) -> None:
    """Run the verb that the words name; print errors without a traceback."""
    words = sys.argv[1:] if words is None else words
    try:
        if not words or words[0] in ("-h", "--help", "help"):
            print(_overview())
        elif words[0] == "--version":
            print(__version__)
        elif words[0] not in VERBS:
            raise unknown("command", words[0], VERBS)
        else:
            tyro.cli(VERBS[words[0]], prog=f"ihdm {words[0]}", args=words[1:])
    except IhdmError as error:
        print(f"ihdm: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except OSError as error:
        print(f"ihdm: {error}", file=sys.stderr)
        sys.exit(1)
    except (MemoryError, RuntimeError) as error:
        from ihdm.memory import ran_out

        if not ran_out(error):
            raise
        print(f"ihdm: there is not enough memory; {LESS_MEMORY}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("ihdm: stopped", file=sys.stderr)
        sys.exit(130)


def _overview() -> str:
    def table(rows: dict[str, str]) -> str:
        width = max(map(len, rows))
        return "\n".join(f"  {name:<{width}}  {about}" for name, about in rows.items())

    verbs = {verb: (function.__doc__ or "").splitlines()[0] for verb, function in VERBS.items()}
    return f"""ihdm {__version__}: generative modelling with inverse heat dissipation

usage: ihdm COMMAND ...      (ihdm COMMAND --help says more)

commands:
{table(verbs)}

presets, for train and info:
{table(presets())}

settings, for --set:
{table(setting_names())}"""


def _with_data(config: Config, data: str | None) -> Config:
    """The configuration with the images that the user named."""
    from ihdm.data.sources import absolute

    source = absolute(data or config.data.source)
    return config.with_settings([f"data.source={source}"]) if source else config


def _check_outputs(grid: Path | None, gif: Path | None, out: Path | None) -> None:
    """Refuse what cannot be written before anything is computed, and make the folders."""
    if grid and grid.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff"):
        raise UsageError(f"--grid takes the name of a picture, such as samples.png, not {grid}")
    if gif and gif.suffix.lower() != ".gif":
        raise UsageError(f"--gif takes a name that ends in .gif, not {gif}")
    for folder in filter(None, (grid and grid.parent, gif and gif.parent, out)):
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise IhdmError(f"the folder {folder} may not be written to")
    if out and any(out.iterdir()):
        raise UsageError(f"--out takes an empty folder, so that no other images are among the new ones; {out} is not")


def _shape_text(shape: tuple[int, int, int]) -> str:
    channels, height, width = shape
    return f"of {height}x{width} in {'grey' if channels == 1 else f'{channels} channels'}"
