"""`ihdm study`."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from ihdm.config import Device
from ihdm.errors import UsageError, unknown
from ihdm.studies import STUDIES
from ihdm.verbs.words import File, OwnSource, Settings, check_folder


def study(
    name: Annotated[Positional[str | None], arg(metavar="[NAME]", help_behavior_hint="")] = None,
    /,
    list: bool = False,
    model: Annotated[str | None, arg(metavar="MODEL", help_behavior_hint="")] = None,
    data: OwnSource = None,
    preset: Annotated[str | None, arg(metavar="PRESET", help_behavior_hint="")] = None,
    quick: bool = False,
    only: Annotated[tuple[str, ...], arg(metavar="PART ...", help_behavior_hint="")] = (),
    out: Annotated[Path, arg(metavar="FOLDER")] = Path("studies"),
    seed: int = 0,
    inception: File = None,
    device: Device = "auto",
    settings: Settings = (),
) -> None:
    """Repeat one of the paper's experiments and check its claim.

    Args:
        name: the study (see --list)
        list: list all studies
        model: a trained model; default: train one from the preset, once for all studies in the folder
        data: the training images; default: the preset's, if they have the model's shape
        preset: settings for training; default: those of --model if a run folder, else mnist-small (digits with --quick)
        quick: small and rough, about a minute on a laptop
        only: for studies in parts, such as family: compute these; others appear if computed before
        out: folder for NAME.png, NAME.json, NAME.md and trained models
        seed: of samples
        inception: the Inception network of 2015-12-05, for studies with FID; default: found or downloaded once
        device: device to use; auto: the GPU if there is one
    """
    if list:
        width = max(map(len, STUDIES))
        print("\n".join(f"{name:<{width}}  {about}" for name, about in STUDIES.items()))
        return
    if name is None:
        raise UsageError("name a study; ihdm study --list shows them all")
    if name not in STUDIES:
        raise unknown("study", name, STUDIES)
    check_folder(out)
    from ihdm import plots, studies
    from ihdm.engine import keep_freed_memory
    from ihdm.studies.lab import Lab, own_settings

    plots.check_available()
    keep_freed_memory()
    chosen = preset or own_settings(model) or ("digits" if quick else "mnist-small")
    words = tuple(itertools.chain(*settings))
    lab = Lab(out, chosen, words, model, data, quick, seed, device, inception, only)
    findings, judged = studies.run(name, lab)
    print(f"{findings.found}\n{judged}\n{out / f'{name}.png'}\n{out / f'{name}.md'}")
