"""What smaller grids for coarse levels save (network.pyramid): arithmetic, and the time to train and to sample.

    python benchmarks/pyramid.py [--preset cifar10-small] [--pyramids none 77 77,116] [--set network.channels=32 ...]

Operations are those of a forward pass, a mean over all levels. Images are noise, which takes as long as any.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path

import measure
import torch

from ihdm.config import Config, load_config
from ihdm.data import ImageSet
from ihdm.engine import keep_freed_memory
from ihdm.execution import Execution
from ihdm.model_folder import ModelConfig
from ihdm.networks import build_network
from ihdm.trainer import Trainer


def mean_flops(config: Config, shape: tuple[int, int, int]) -> float:
    """Of one image's forward pass, all levels being as frequent."""
    K, pyramid = config.process.K, config.network.pyramid
    levels = [after - before for before, after in zip([1, *pyramid], [*pyramid, K + 1])]
    by_depth = [
        measure.forward_flops(lambda: build_network(ModelConfig.of(config, shape)), shape, depth=depth)
        for depth in range(len(levels))
    ]
    return sum(count * flops for count, flops in zip(levels, by_depth)) / K


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="cifar10-small")
    parser.add_argument("--pyramids", nargs="+", default=["none", "77", "77,116", "77,116,155"])
    parser.add_argument("--set", nargs="+", default=[])
    parser.add_argument("--images", type=int, help="to sample at a time; default: 1024 on a GPU, 16 on a CPU")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    count = options.images or (1024 if device.type == "cuda" else 16)
    keep_freed_memory()  # as `ihdm train` does
    rows, first = [], None
    for pyramid in options.pyramids:
        settings = [*options.set, f"engine.device={device.type}", f"network.pyramid={pyramid}"]
        config = load_config(options.preset, settings)
        shape = measure.image_shape(config)
        images = torch.randint(0, 256, (max(256, config.trainer.batch_size), *shape)).byte()
        with tempfile.TemporaryDirectory() as run:
            trainer = Trainer(config, ImageSet("noise", images, images[:0]), Path(run))
            step = measure.milliseconds(trainer.train_step, device, options.repeats, warmup=3)
            model, execution = trainer.trained_model(), Execution(trainer.precision, batch_size=count)
            work = partial(model.sample, count, execution=execution)
            on_gpu = device.type == "cuda"
            sampling = measure.milliseconds(work, device, options.repeats, warmup=int(on_gpu))
        figures = [mean_flops(config, shape), step, sampling / count]
        first = first or figures
        ratios = [f"{one / other:.2f}" for one, other in zip(first, figures)]
        cells = [f"{figures[0] / 1e9:.3g}", f"{figures[1]:.4g}", f"{figures[2]:.4g}"]
        rows.append([pyramid, *(cell for pair in zip(cells, ratios) for cell in pair)])
        print(" ".join(rows[-1]), flush=True)
    columns = ["pyramid", "GFLOP", "less by", "ms a step", "faster by", "ms an image", "faster by"]
    batch = f"batch {config.trainer.batch_size}, {count} images sampled in {len(model.process.levels()) - 1} steps"
    measure.print_table(f"{options.preset}, {batch}. {measure.machine(device)}, {trainer.precision}", columns, rows)


if __name__ == "__main__":
    main()
