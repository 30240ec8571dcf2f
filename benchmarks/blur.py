"""How long it takes to blur a batch to two levels, k and k - 1, which every training step does.

    python benchmarks/blur.py [--sizes 28 32 64 128 256] [--reference PATH] [--device cpu]

matrices, Fourier: our two ways; ihdm uses the first for axes of up to 512 pixels. recorded: the first, replayed as in
a training step. limit: the time to read the batch once and write it twice.
"""

from __future__ import annotations

import argparse

import authors
import measure
import torch

from ihdm import heat
from ihdm.engine import recorded
from ihdm.heat import GridLaplacian
from ihdm.schedule import Schedule

SIZES = [28, 32, 64, 128, 256]
BATCH = {28: 128, 32: 128, 64: 128, 128: 32, 256: 32}  # as in the paper


def laplacian(size: int, longest_matrix_axis: int) -> GridLaplacian:
    before, heat.LONGEST_MATRIX_AXIS = heat.LONGEST_MATRIX_AXIS, longest_matrix_axis
    try:
        return GridLaplacian((size, size))
    finally:
        heat.LONGEST_MATRIX_AXIS = before


def measured(size: int, device: torch.device, reference: bool) -> list[str]:
    """One row of the table."""
    batch = BATCH.get(size, max(1, 2**21 // size**2)) // (1 if device.type == "cuda" else 8) or 1
    schedule = Schedule(200, 0.75 * size)
    u = torch.rand(batch, 3, size, size, device=device)
    k = torch.randint(1, 201, (batch,), device=device)
    t = schedule.t.to(u)[torch.stack([k, k - 1])]
    matrices, fourier = (laplacian(size, longest).dissipate for longest in (size, 0))
    replayed = recorded(matrices, device)
    copies = torch.empty(2, *u.shape, device=device)
    works = [
        lambda: matrices(u, t),
        lambda: fourier(u, t),
        lambda: replayed(u, t),
        lambda: copies.copy_(u),
    ]
    if reference:
        from model_code.utils import DCTBlur

        theirs = DCTBlur(schedule.sigma_B.tolist(), size, device)
        works.append(lambda: (theirs(u, k), theirs(u, k - 1)))
    times = [measure.milliseconds(work, device, repeats=15, warmup=4, calls=5) for work in works]
    ratio = [f"{times[-1] / times[2]:.1f}"] if reference else []
    return [str(size), str(batch), *(f"{ms:.3f}" for ms in times), *ratio]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--reference", help="a checkout of the authors' code")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    device, reference = torch.device(options.device), bool(options.reference)
    if reference:
        authors.use(options.reference)
    rows = [measured(size, device, reference) for size in options.sizes]
    columns = ["size", "batch", "matrices", "Fourier", "recorded", "limit", *["authors", "ratio"] * reference]
    measure.print_table(f"Blurring to two levels in float32, ms. {measure.machine(device)}", columns, rows)


if __name__ == "__main__":
    main()
