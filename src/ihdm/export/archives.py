"""Programs as torch.export archives: zips of JSON and numbers, in which nothing is pickled."""

from __future__ import annotations

import io
from pathlib import Path

import torch

from ihdm.export.programs import Program

ENDING = ".pt2"
TOLERANCE = 1e-5


def write(program: Program, path: Path) -> float:
    """Write a program, read it again, and return how far its results are from those of the original."""
    file = io.BytesIO()  # because torch cannot open files whose names are not UTF-8
    torch.export.save(program.traced(), file)
    path.write_bytes(file.getbuffer())
    file.seek(0)
    return program.difference(torch.export.load(file).module())
