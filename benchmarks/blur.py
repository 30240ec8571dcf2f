"""How long a blur takes, by size and by route, beside the authors' code where a checkout is given.

python benchmarks/blur.py [--sizes 28 32 64 128 256 512 1024] [--reference PATH] [--device cpu]
"""

from __future__ import annotations

import argparse
from functools import partial

import authors
import measure
import torch

from ihdm import heat
from ihdm.heat import GridLaplacian


def laplacian(size: int, longest_matrix_axis: int) -> GridLaplacian:
    before, heat.LONGEST_MATRIX_AXIS = heat.LONGEST_MATRIX_AXIS, longest_matrix_axis
    try:
        return GridLaplacian((size, size))
    finally:
        heat.LONGEST_MATRIX_AXIS = before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[28, 32, 64, 128, 256, 512, 1024])
    parser.add_argument("--reference", help="a checkout of the authors' code")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    if options.reference:
        authors.use(options.reference)
        from model_code.utils import DCTBlur

    rows = []
    for size in options.sizes:
        batch = max(1, min(128, 2**20 // size**2))
        u = torch.rand(batch, 3, size, size, device=device)
        sigma_B = torch.linspace(0.5, size / 2, batch, device=device)
        t = sigma_B.square() / 2
        blurs = [partial(laplacian(size, longest).dissipate, u, t) for longest in (size, 0)]
        if options.reference:
            blurs.append(partial(DCTBlur(sigma_B.tolist(), size, device), u, torch.arange(batch, device=device)))
        times = [measure.milliseconds(blur, device, repeats=15) for blur in blurs]
        rows.append([str(size), str(batch), *(f"{ms:.2f}" for ms in times)])
    columns = ["size", "batch", "matrices", "Fourier", *(["authors"] if options.reference else [])]
    measure.print_table(f"One blur in float32, ms. {measure.machine(device)}", columns, rows)


if __name__ == "__main__":
    main()
