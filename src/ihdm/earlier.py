"""Settings as earlier versions wrote them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

NOISE = {"heat": ("delta_ratio", math.inf), "ddpm": ("eta", 1.0)}  # delta_ratio's name today, and its largest value
OTHERS = {  # settings to drop: 0.1.0 wrote those of both its processes, whichever was used
    "heat": ("betas",),
    "ddpm": ("sigma", "sigma_B_min", "sigma_B_max", "skip", "blur"),
}


def from_0_1(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A tree of settings in the form that is written today.

    In 0.1.0 the noise of sampling was `process.delta_ratio`: delta / sigma or, for ddpm, what is called `eta` today.
    """
    process, sampling = tree.get("process"), tree.get("sampling", {})
    if not isinstance(process, Mapping) or not isinstance(sampling, Mapping) or "delta_ratio" not in process:
        return dict(tree)
    kind, ratio = str(process.get("kind", "heat")), process["delta_ratio"]
    if kind not in NOISE:
        return dict(tree)
    name, most = NOISE[kind]
    noise = {name: min(ratio, most) if isinstance(ratio, (int, float)) else ratio}
    kept = {key: value for key, value in process.items() if key not in ("delta_ratio", *OTHERS[kind])}
    return {**tree, "process": kept, "sampling": noise | dict(sampling)}
