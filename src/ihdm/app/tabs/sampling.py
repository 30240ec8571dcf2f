"""A row of fields for how pictures are made, in the tabs that offer this choice."""

from __future__ import annotations

from typing import Any

import gradio as gr

from ihdm.app.job import QUIET
from ihdm.app.ways import RANDOMNESS, SAMPLER, STEPS, Way, most, own_way, ways
from ihdm.processes import Process

NAMES = {"paper": "The paper's", "exact": "Exact", "momentum": "With momentum"}
KINDS = {
    "paper": "The paper's go through every level.",
    "momentum": "Momentum leaves no randomness to choose.",
    "exact": "Exact ones can be few.",
}
ABOUT = {
    "delta_ratio": "Little: smooth. Much: grainy.",
    "eta": "0: the start decides everything.",
}


def sampling_row(process: Process, first: Process) -> dict[str, Any]:
    """The fields by the setting that each is for. Settings that the process does not have get none.

    first: the process with the sampling that the fields start with; other kinds of steps start with the process's own.
    """
    known, start, usual = ways(process), own_way(first), first.sampling
    offered = {name for way in known for name in way.free}
    fields: dict[str, Any] = {}
    with gr.Row(visible=bool(offered), elem_classes="how"):
        if len(known) > 1:
            choices = [(NAMES.get(way.sampler, way.sampler), way.sampler) for way in known]
            info = " ".join(KINDS[way.sampler] for way in known if way.sampler in KINDS)
            fields[SAMPLER] = gr.Radio(choices, value=start.sampler, label="Kind of steps", info=info, min_width=260)
        if STEPS in offered:
            fields[STEPS] = gr.Slider(
                1, process.K, step=1, label="Number of steps", min_width=260, **_steps(first, start)
            )
        for name in (name for name in RANDOMNESS if name in offered):
            fields[name] = gr.Slider(
                0,
                most(process, name),
                getattr(usual, name),
                step=0.05,
                label="Randomness",
                info=f"{ABOUT[name]} Usual: {getattr(usual, name):g}.",
                visible=name in start.free,
                min_width=260,
            )
    if SAMPLER in fields:
        others = {name: field for name, field in fields.items() if name != SAMPLER}

        def changed(sampler: str) -> list[Any]:
            way = next(way for way in known if way.sampler == sampler)
            shown = first if way.sampler == start.sampler else process
            return [
                gr.update(**_steps(shown, way)) if name == STEPS else gr.update(visible=name in way.free)
                for name in others
            ]

        fields[SAMPLER].input(changed, fields[SAMPLER], list(others.values()), **QUIET)
    return fields


def _steps(process: Process, way: Way) -> dict[str, Any]:
    """The slider for the number of steps, which cannot be moved where that number is fixed."""
    K = process.K
    if STEPS not in way.free:
        return {"value": K, "interactive": False, "info": f"Always {K} of this kind: one for each level."}
    info = f"Fewer are faster. At most {K}: one for each level."
    return {"value": process.sampling.steps or K, "interactive": True, "info": info}
