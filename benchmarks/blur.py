"""How long a blur takes, by size and by route, beside the authors' code where a checkout is given.

python benchmarks/blur.py [--sizes 28 32 64 128 256 512 1024] [--reference PATH] [--device cpu]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial

import torch

from ihdm import heat
from ihdm.heat import GridLaplacian


def milliseconds(work: Callable[[], torch.Tensor], device: torch.device, repeats: int = 15) -> float:
    """The median time of one call."""
    times = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - start))
    return sorted(times[2:])[repeats // 2]


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
        sys.path.insert(0, options.reference)
        from model_code.utils import DCTBlur

    print(f"one blur, ms (median), float32, {device}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    columns = ["matrix", "fourier", *(["authors"] if options.reference else [])]
    print(f"{'size':>5} {'batch':>5} " + " ".join(f"{column:>9}" for column in columns))
    for size in options.sizes:
        batch = max(1, min(128, 2**20 // size**2))
        u = torch.rand(batch, 3, size, size, device=device)
        sigma_B = torch.linspace(0.5, size / 2, batch, device=device)
        t = sigma_B.square() / 2
        blurs = [partial(laplacian(size, longest).dissipate, u, t) for longest in (size, 0)]
        if options.reference:
            blurs.append(partial(DCTBlur(sigma_B.tolist(), size, device), u, torch.arange(batch, device=device)))
        print(f"{size:>5} {batch:>5} " + " ".join(f"{milliseconds(blur, device):>9.2f}" for blur in blurs))


if __name__ == "__main__":
    main()
