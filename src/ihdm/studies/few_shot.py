"""Learning from twenty images, compared with the diffusion baseline (App. C.2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from ihdm import checkpoint
from ihdm.data import ImageSet
from ihdm.metrics.neighbours import memorisation, nearest
from ihdm.model import Model
from ihdm.pixels import to_bytes, to_unit
from ihdm.plots import figure, tiles
from ihdm.run import read_log
from ihdm.studies.lab import Findings, Lab
from ihdm.studies.verdict import Verdict, every, told

IMAGES, STAGES, SHOWN, COLUMNS = 20, 8, 4, 6
SAMPLES = 100
NEW = 0.5  # of the usual distance; nearer images count as copies
SCORE_ERROR = 0.1  # at most, for a ratio of medians of about 100 distances, each of which scatters by a third
CLAIM = (
    "at the end of training, samples of inverse heat dissipation are at least half as far from the twenty images as "
    "held-out images are, and samples of DDPM are not (a ratio within 0.2 of a half is too small to tell)."
)


def study(lab: Lab) -> Findings:
    others = lab.held_out(SAMPLES)
    few = ImageSet(f"{lab.images.name}-{IMAGES}", lab.images.train[:IMAGES], lab.images.held_out)
    interval = max(1, lab.config.trainer.steps // STAGES)
    stages = (f"trainer.checkpoint_every={interval}", f"trainer.keep={STAGES + 1}", "trainer.decay=0")
    kinds = {"inverse heat": (), "DDPM": lab.diffusion}
    scores: dict[str, list[float | None]] = {}
    losses: dict[str, list[float]] = {}
    rows: list[Tensor] = []
    labels: list[str] = []
    taken: dict[str, list[int]] = {}
    for name, kind in kinds.items():
        run = lab.run(*kind, *stages, images=few)
        held_out = {line["step"]: line["held_out_loss"] for line in read_log(run) if "held_out_loss" in line}
        saved = {int(path.name.split("-")[1]): path for path in checkpoint.saved(run / "checkpoints")}
        steps = [step for step in saved if step in held_out]
        taken[name] = steps
        model = lab.trained(*kind, *stages, images=few)
        samples = [_samples(lab, model, saved[step]) for step in steps]
        scores[name] = [_score(lab, few, some, others) for some in samples]
        losses[name] = [held_out[step] for step in steps]
        rows += [to_unit(some[:COLUMNS]) for some in samples[-1 :: -max(1, STAGES // SHOWN)][::-1]]
        labels += [f"{name}, {step:,}" for step in steps[-1 :: -max(1, STAGES // SHOWN)][::-1]]
    with figure(lab.picture("few-shot"), columns=3, size=(4.2, 4.2)) as (left, middle, right):
        tiles(left, rows, labels)
        for name in kinds:
            middle.plot(taken[name], scores[name], "o-", label=name)
            right.plot(taken[name], [loss / losses[name][0] for loss in losses[name]], "o-", label=name)
        middle.set(
            xlabel="steps", ylabel="distance to the nearest training image\n(1: held-out images)", ylim=(0, None)
        )
        right.set(xlabel="steps", ylabel="held-out loss, relative to the first")
        middle.legend()
    return Findings(
        {"steps": taken, "memorisation_score": scores, "held_out_loss": losses, "images": IMAGES},
        "samples in the course of training on twenty images, how close they are to those, and the loss on others.",
        "trained on the first 20 MNIST digits, a diffusion model makes copies of them or nothing plausible, while "
        "inverse heat dissipation makes new digits (App. C.2).",
        "the median distance from samples to the nearest training image, in units of that from held-out images: "
        + "; ".join(f"{name} {_in_words(taken[name], values)}" for name, values in scores.items())
        + ". The held-out loss is lowest at step "
        + ", ".join(f"{taken[name][values.index(min(values))]:,} ({name})" for name, values in losses.items())
        + ".",
    )


def verdict(numbers: dict[str, Any]) -> Verdict:
    heat, diffusion = (numbers["memorisation_score"][name][-1] for name in ("inverse heat", "DDPM"))
    if heat is None or diffusion is None:
        return "too small to tell"
    return every([told(heat - NEW, SCORE_ERROR), told(NEW - diffusion, SCORE_ERROR)])


def _in_words(steps: list[int], scores: list[float | None]) -> str:
    """The scores at the beginning, in the middle and at the end."""
    places = (0, (len(steps) - 1) // 2, len(steps) - 1)
    words = [f"{score:.2f}" if (score := scores[i]) is not None else "no figure" for i in places]
    return ", ".join(f"{word} at step {steps[i]:,}" for word, i in zip(words, places))


def _samples(lab: Lab, model: Model, saved: Path) -> Tensor:
    """Samples from the averaged weights of a checkpoint."""
    model.network.load_state_dict(load_file(saved / "average.safetensors"))
    return to_bytes(model.sample(SAMPLES, lab.seed, execution=lab.execution))


def _score(lab: Lab, few: ImageSet, samples: Tensor, others: Tensor) -> float | None:
    near, usual = (nearest(some, few.train, 1, lab.device).distance[:, 0] for some in (samples, others))
    return memorisation(near, usual).score
