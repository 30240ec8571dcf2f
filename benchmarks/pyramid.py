"""What small grids for coarse levels (network.pyramid) save: arithmetic, and the time to train and to sample.

    python benchmarks/pyramid.py [--preset cifar10-small] [--pyramids none 77 77,116] [--set network.channels=32 ...]

Operations are those of a forward pass, averaged over all levels. The images are noise, which takes as long as any.
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
    """The operations of one image's forward pass, averaged over all levels."""
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
    parser.add_argument("--images", type=int, help="how many to sample at a time; default: 1024 on a GPU, 8 on a CPU")
    parser.add_argument("--repeats", type=int, default=9, help="training steps; sampling is repeated a third as often")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    count = options.images or (1024 if device.type == "cuda" else 8)
    keep_freed_memory()  # as `ihdm train` does
    words = [*options.set, f"engine.device={device.type}"]
    configs = [load_config(options.preset, [*words, f"network.pyramid={pyramid}"]) for pyramid in options.pyramids]
    shape = measure.image_shape(configs[0])
    images = torch.randint(0, 256, (max(256, configs[0].trainer.batch_size), *shape)).byte()
    with tempfile.TemporaryDirectory() as run:
        data = ImageSet("noise", images, images[:0])
        trainers = [Trainer(config, data, Path(run) / str(n)) for n, config in enumerate(configs)]
        works = [trainer.train_step for trainer in trainers]
        measure.least_ms(works, device, 3)  # the first steps are recorded
        training = measure.least_ms(works, device, options.repeats)
    execution = Execution(trainers[0].precision, batch_size=count)
    samples = [partial(trainer.trained_model().sample, count, execution=execution) for trainer in trainers]
    sampling = [ms / count for ms in measure.least_ms(samples, device, -(-options.repeats // 3))]
    columns = [[mean_flops(config, shape) / 1e9 for config in configs], training, sampling]
    cells = [[f"{value:.4g}", f"{values[0] / value:.2f}"] for values in columns for value in values]
    rows = [
        [name, *(cells[n + i] for i in range(0, len(cells), len(configs)))] for n, name in enumerate(options.pyramids)
    ]
    titles = ["pyramid", "GFLOP", "less by", "ms a step", "faster by", "ms an image", "faster by"]
    batch = f"batch {configs[0].trainer.batch_size}, {count} images sampled at a time"
    about = f"{options.preset}, {batch}. {measure.machine(device)}, {trainers[0].precision}"
    measure.print_table(about, titles, [[row[0], *(cell for pair in row[1:] for cell in pair)] for row in rows])


if __name__ == "__main__":
    main()
