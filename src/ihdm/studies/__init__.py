"""One file for each experiment of the paper: a picture, the numbers behind it, and what to make of them."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ihdm.errors import UsageError, unknown
from ihdm.studies.verdict import Judged

if TYPE_CHECKING:
    from ihdm.studies.lab import Findings, Lab

STUDIES = {
    "sequence": "forward and generative sequences (Fig. 1, 5a)",
    "branches": "one start that branches into a tree at given levels (Fig. 5b)",
    "same-start": "many samples from one blank image (App. D.1)",
    "delta-sweep": "increasing sampling noise: samples, their quality and the bound (Fig. 6, App. C.3, D.3)",
    "colour-and-shape": "the start decides the colour, the noise the shape (Fig. 7a, App. D.4)",
    "interpolation": "interpolation between two samples, compared with the diffusion baseline (Fig. 7b, App. D.2)",
    "input-gradients": "which input pixels a step looks at, compared with the diffusion baseline (Fig. 8)",
    "few-shot": "learning from twenty images, compared with the diffusion baseline (App. C.2)",
    "sigma-robustness": "which sampling noise suits which training noise (App. C.1)",
    "sigma-zero": "why training needs noise (App. C.5)",
    "prior-overlap": "how L_K depends on the widest blur (App. C.4)",
    "blur-operators": "three ways to blur, and how well models do with them (App. C.6)",
    "power-spectrum": "spectra under noising and under blurring (Fig. 4, App. B.5-B.6)",
    "neighbours": "samples and their nearest training images (App. D.5)",
    "langevin-limit": "with many levels a step becomes a Langevin step (App. A.4)",
    "network-bias": "how far a learned step is from the best linear one (beyond the paper)",
    "exact-steps": "the paper's steps compared with fewer and fewer exact steps (beyond the paper)",
    "family": "processes of blur and noise, trained alike: samples, quality by steps, bounds (beyond the paper)",
    "how-much-blur": "blurring diffusion with more blur and with later blur, trained alike (beyond the paper)",
    "restore": "restoring blurred images: how close to the truth, and how sure (beyond the paper)",
}
OWN: dict[str, Any] = {}  # studies that users add
PARTS = ("CLAIM", "study", "verdict")  # of a study; some also have `parts`


def register(name: str, about: str, module: Any) -> None:
    """Add a study of one's own, such as `sys.modules[__name__]`, to those that `ihdm study` knows."""
    if missing := [part for part in PARTS if not hasattr(module, part)]:
        raise ValueError(f"the study {name!r} has no {', '.join(missing)}; a study has {', '.join(PARTS)}")
    if name in STUDIES and name not in OWN:
        raise ValueError(f"there is a study {name!r} already; give yours another name")
    STUDIES[name], OWN[name] = about, module


def run(name: str, lab: Lab) -> tuple[Findings, Judged]:
    """Run a study, compare it with what is claimed, and write NAME.png, NAME.json and NAME.md."""
    if name not in STUDIES:
        raise unknown("study", name, STUDIES)
    module = OWN.get(name) or import_module(f"ihdm.studies.{name.replace('-', '_')}")
    if lab.only:
        _check_parts(name, lab.only, module.parts(lab.quick) if hasattr(module, "parts") else {})
    if name not in OWN:
        lab.check_kind(name)
    _ = lab.images  # images that do not fit the model are refused before any work
    findings = module.study(lab)
    judged = Judged(findings.claim or module.CLAIM, module.verdict(findings.numbers))
    lab.write(name, STUDIES[name], findings, judged)
    return findings, judged


def _check_parts(name: str, chosen: tuple[str, ...], parts: Iterable[str]) -> None:
    parts = list(parts)
    if not parts:
        raise UsageError(f"the study {name} has no parts; --only is for studies that train several processes")
    for part in chosen:
        if part not in parts:
            raise unknown(f"part of {name}", part, parts)
