"""Milliseconds of one training step, ours and, given a checkout of it, the authors'.

    python benchmarks/training.py [--presets mnist cifar10 ...] [--batch-size N] [--reference PATH] [--device cpu]

By default the five sizes of the paper on a GPU, the two smallest presets on a CPU.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import authors
import measure
import torch

from ihdm.data import ImageSet
from ihdm.model import build_network
from ihdm.model_folder import ModelConfig
from ihdm.trainer import Trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+")
    parser.add_argument("--batch-size", type=int, help="default: the preset's on a GPU, 32 on a CPU")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--reference", help="a checkout of the authors' code")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    batch_size = options.batch_size or (None if device.type == "cuda" else 32)
    if options.reference:
        authors.use(options.reference)

    peak = measure.peak_flops(device)
    rows = []
    for name, config in measure.chosen_presets(options.presets, device).items():
        if batch_size:
            config = config.with_settings([f"trainer.batch_size={batch_size}"])
        shape, batch = measure.image_shape(config), config.trainer.batch_size
        model_config = ModelConfig(config.process, config.network, shape)
        # Backward is twice the forward: one product for the inputs, one for the weights.
        flops = 3 * batch * measure.forward_flops(lambda c=model_config: build_network(c), shape)  # type: ignore[misc]
        images = torch.randint(0, 256, (max(256, batch), *shape), dtype=torch.uint8)
        with tempfile.TemporaryDirectory() as run:
            trainer = Trainer(config, ImageSet(name, images, images[:0]), Path(run))
            ours = measure.milliseconds(trainer.train_step, device, options.repeats)
            memory = measure.peak_bytes(device)
            del trainer
        theirs = float("nan")
        if options.reference:
            theirs = measure.milliseconds(authors.training_step(config, shape, device), device, options.repeats)
            measure.peak_bytes(device)
        rate = flops / (ours / 1000)
        row = [f"{ours:.1f}", f"{1000 * batch / ours:.0f}", f"{rate / 1e12:.2f}", f"{100 * rate / peak:.0f}"]
        rows.append([name, str(batch), *row, f"{memory / 1e9:.1f}", f"{theirs:.1f}", f"{theirs / ours:.1f}"])
    columns = ["preset", "batch", "ms", "images/s", "TFLOP/s", "% of peak", "GB", "authors ms", "ratio"]
    title = f"One training step. {measure.machine(device)}; a large matrix product: {peak / 1e12:.2f} TFLOP/s"
    measure.print_table(title, columns, rows)


if __name__ == "__main__":
    main()
