"""`ihdm sample`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import OmitArgPrefixes, arg

from ihdm.errors import IhdmError, UsageError
from ihdm.verbs.words import (
    AS_THE_MODEL_HAS_IT,
    AS_USUAL,
    Computing,
    Folder,
    Guidance,
    HowToSample,
    ModelName,
    check_count,
    check_file,
    check_folder,
    make_folders,
)

if TYPE_CHECKING:
    from torch import Tensor

    from ihdm.domains import Domain
    from ihdm.model import Model
    from ihdm.workers import Workers

GIF_IMAGES, GIF_FRAMES = 16, 50


def sample(
    model: ModelName,
    /,
    n: int = 64,
    seed: int = 0,
    grid: Annotated[Path | None, arg(metavar="PNG", help_behavior_hint="")] = None,
    gif: Annotated[Path | None, arg(metavar="GIF", help_behavior_hint="")] = None,
    out: Folder = None,
    same_start: bool = False,
    same_noise: bool = False,
    label: Annotated[tuple[str, ...], arg(metavar="NAME ...", help_behavior_hint="")] = (),
    guidance: Guidance = None,
    sampling: Annotated[HowToSample, OmitArgPrefixes] = AS_THE_MODEL_HAS_IT,
    computing: Annotated[Computing, OmitArgPrefixes] = AS_USUAL,
) -> None:
    """Make images with a trained model.

    Args:
        model: a model folder, a run folder, owner/name on the hub, or a model that comes with ihdm (see ihdm info)
        n: how many images
        seed: image i depends only on the seed and i
        grid: one picture of all images; default: samples.png, unless --gif or --out is given
        gif: animation of the first 16 images emerging from blur
        out: an empty folder for the images, one PNG each (sounds: wav; volumes, fields, 2 or 5 channels: npy)
        same_start: start all from one blurred image: same colours, different shapes
        same_noise: use the same noise for all: same shapes, different colours (small grey images barely differ)
        label: what to generate, if the model has labels (see ihdm info); several take turns; default: as in training
        guidance: strength away from the weaker network, if the model has one, else towards the label; 1: none; higher:
            clearer, less varied; 0: the weaker network alone, or no label; default: the model's
    """
    check_count(n)
    if same_start and same_noise:
        raise UsageError("--same-start and --same-noise together make all images the same; give only one of them")
    if grid is None and gif is None and out is None:
        grid = Path("samples.png")
    _check_outputs(grid, gif, out)
    import torch

    from ihdm import pictures, workers
    from ihdm.engine import placed
    from ihdm.model import Model

    place = computing.place()
    loaded = Model.from_pretrained(model).sampled(**sampling.changes())
    if (same_start or same_noise) and not loaded.process.noisy:
        effect = "--same-start makes all images the same" if same_start else "--same-noise changes nothing"
        raise UsageError(f"the steps ({loaded.process.sampling_words()}) add no noise, so {effect}; leave it out")
    loaded.guidance(guidance)  # refuses impossible strengths
    loaded.told(torch.arange(len(label)), seed, label or None)  # refuses unknown labels
    options: dict[str, Any] = {"same_start": same_start, "same_noise": same_noise, "guidance": guidance}
    with workers.together() as team:
        team.agree(True)  # all processes have checked the folders before one fills them
        placed(loaded, team.device(place))
        options["execution"] = computing.execution(place, loaded.config.shape, team.main)
        make_folders(out, *(path.parent for path in (grid, gif) if path))
        if grid or out:
            images = _make(loaded, team, n, seed, out, grid is not None, label, options)
        if not team.main:
            return
    if grid:
        pictures.write(pictures.grid(loaded.config.domain.pictures(images)), grid)
    if gif:
        from ihdm.progress import progress_bar

        shown = min(n, GIF_IMAGES)
        states = loaded.trajectory(shown, seed, labels=_in_turn(label, range(shown)), **options)
        levels = loaded.process.levels()
        bar = progress_bar(states, desc="animating", unit="level", total=len(levels))
        frames = pictures.evenly(bar, levels, GIF_FRAMES)
        pictures.animation(gif, [loaded.config.domain.pictures(frame) for frame in frames])
    for path in filter(None, (grid, out, gif)):
        print(path)


def _make(
    model: Model,
    team: Workers,
    n: int,
    seed: int,
    out: Path | None,
    together: bool,
    label: Sequence[str],
    options: dict[str, Any],
) -> Tensor:
    """Write the images of this process to `out`; if wanted `together`, return those of all processes."""
    import torch

    share, domain = team.share(n), model.config.domain
    kept = [domain.kept(torch.empty(0, *domain.shape))]
    number = share.start
    labels = _in_turn(label, share)
    for batch in model.sample_batches(len(share), seed, first=share.start, labels=labels, **options):
        for image in batch if out else ():
            _write(image, domain, out / f"{number:06d}{domain.suffix}")  # type: ignore[operator]
            number += 1
        if together:
            kept.append(batch)
    return team.join(torch.cat(kept))


def _write(image: Tensor, domain: Domain, path: Path) -> None:
    """Write an image to a new file. The folder was empty, but another command may have begun to fill it since."""
    try:
        path.touch(exist_ok=False)
    except FileExistsError as error:
        raise IhdmError(
            f"another program has written {path} in the meantime; that is left as it is; give another folder"
        ) from error
    domain.write(image, path)


def _in_turn(labels: Sequence[str], numbers: range) -> list[str] | None:
    """A label for each of the images with these numbers, taken in turn; None if there are no labels."""
    return [labels[i % len(labels)] for i in numbers] if labels else None


def _check_outputs(grid: Path | None, gif: Path | None, out: Path | None) -> None:
    """Refuse what cannot be written, before anything is computed."""
    if grid and grid.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff"):
        raise UsageError(f"--grid takes the name of a picture, such as samples.png, not {grid}")
    if gif and gif.suffix.lower() != ".gif":
        raise UsageError(f"--gif takes a name that ends in .gif, not {gif}")
    check_file(grid, "--grid")
    check_file(gif, "--gif")
    if out:
        check_folder(out)
    if out and out.exists() and any(out.iterdir()):
        raise UsageError(f"--out takes an empty folder, so that old and new images do not mix; {out} is not empty")
