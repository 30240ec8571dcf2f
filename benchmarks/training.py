"""How many milliseconds a training step takes, in our code and, given a checkout, in the authors'.

    python benchmarks/training.py [--presets mnist cifar10 ...] [--batch-size N] [--reference PATH] [--device cpu]

By default it measures the five sizes of the paper on a GPU and the two smallest presets on a CPU. start: seconds from
nothing to the end of the first step, including everything that is compiled and chosen on the way.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from pathlib import Path

import authors
import measure
import torch

from ihdm.config import Config
from ihdm.data import ImageSet
from ihdm.engine import keep_freed_memory
from ihdm.model_folder import ModelConfig
from ihdm.networks import build_network
from ihdm.trainer import Trainer

CALLS = 3  # steps that are timed together: training does not wait for the device after each


def ours(name: str, config: Config, device: torch.device, repeats: int) -> tuple[float, float, float]:
    """Milliseconds for a step, seconds until the first is done, bytes of memory."""
    images = torch.randint(0, 256, (max(256, config.trainer.batch_size), *measure.image_shape(config)))
    with tempfile.TemporaryDirectory() as run:
        start = time.perf_counter()
        trainer = Trainer(config, ImageSet(name, images.byte(), images[:0].byte()), Path(run))
        loss, norm = (float(fact) for fact in trainer.train_step())
        started = time.perf_counter() - start
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise RuntimeError(f"{name}: the loss is {loss}, the norm of its gradient {norm}")
        ms = measure.milliseconds(trainer.train_step, device, repeats, warmup=3, calls=CALLS)
        return ms, started, measure.peak_bytes(device)


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

    presets = {
        name: config.with_settings([f"trainer.batch_size={batch_size}"] if batch_size else [])
        for name, config in measure.chosen_presets(options.presets, device).items()
    }
    peak = measure.peak_flops(device)
    their_times = {}
    for name, config in presets.items() if options.reference else ():
        work = authors.training_step(config, measure.image_shape(config), device)
        their_times[name] = measure.milliseconds(work, device, options.repeats, calls=CALLS)
        del work
        measure.peak_bytes(device)
    keep_freed_memory()  # as `ihdm train` does
    rows = []
    for name, config in presets.items():
        shape, batch = measure.image_shape(config), config.trainer.batch_size
        model_config = ModelConfig.of(config, shape)
        # Backward is twice the forward: one product for the inputs, one for the weights.
        flops = 3 * batch * measure.forward_flops(lambda c=model_config: build_network(c), shape)  # type: ignore[misc]
        ms, start, memory = ours(name, config, device, options.repeats)
        rate, theirs = flops / (ms / 1000), their_times.get(name, math.nan)
        row = [f"{ms:.1f}", f"{1000 * batch / ms:.0f}", f"{rate / 1e12:.2f}", f"{100 * rate / peak:.0f}"]
        rows.append(
            [name, str(batch), *row, f"{memory / 1e9:.1f}", f"{start:.0f}", f"{theirs:.1f}", f"{theirs / ms:.1f}"]
        )
        print(" ".join(rows[-1]), flush=True)
    columns = ["preset", "batch", "ms", "images/s", "TFLOP/s", "% of peak", "GB", "start s", "authors ms", "ratio"]
    title = f"One training step. {measure.machine(device)}; a large matrix product: {peak / 1e12:.2f} TFLOP/s"
    measure.print_table(title, columns, rows)


if __name__ == "__main__":
    main()
