"""Make a model folder small enough to ship: weights in bf16, and fewer of the prior's starts.

    python examples/smaller_model.py runs/mnist-small small/

The models that come with the package were made this way.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from ihdm import Model
from ihdm.data import evenly_spaced
from ihdm.processes import FromImages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--starts", type=int, default=10_000, help="blurred training images to keep")
    arguments = parser.parse_args()

    model = Model.from_pretrained(arguments.model)
    if isinstance(model.process, FromImages):
        prior = model.process.prior
        prior.coefficients = prior.coefficients[evenly_spaced(len(prior), arguments.starts)].clone()
    model.save_pretrained(arguments.out, torch.bfloat16)
    for file in sorted(arguments.out.iterdir()):
        print(f"{file.stat().st_size:>10,}  {file}")


if __name__ == "__main__":
    main()
