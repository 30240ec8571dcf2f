"""Images per second of sampling, ours and, given a checkout of it, the authors'.

    python benchmarks/sampling.py [--presets mnist cifar10 ...] [--batch-size N] [--levels 10] [--reference PATH]

A chain of a few levels is timed; images/s are for all K levels of the preset, each of which costs the same.
"""

from __future__ import annotations

import argparse

import authors
import measure
import torch

from ihdm.engine import choose_precision
from ihdm.model import Model, build_network
from ihdm.model_folder import ModelConfig

BATCHES = {"mnist": 1024, "cifar10": 1024, "afhq-64": 256, "ffhq-128": 64, "ffhq-256": 16}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+")
    parser.add_argument("--batch-size", type=int, help="default: by preset on a GPU, 64 on a CPU")
    parser.add_argument("--levels", type=int, default=10, help="levels of the chain that is timed")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--reference", help="a checkout of the authors' code")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    if options.reference:
        authors.use(options.reference)

    peak = measure.peak_flops(device)
    rows = []
    for name, config in measure.chosen_presets(options.presets, device).items():
        K, shape = config.process.K, measure.image_shape(config)
        batch = options.batch_size or (BATCHES.get(name, 256) if device.type == "cuda" else 64)
        config = config.with_settings([f"process.K={options.levels}"])
        model_config = ModelConfig(config.process, config.network, shape)
        flops = batch * options.levels * measure.forward_flops(lambda c=model_config: build_network(c), shape)  # type: ignore[misc]
        images = torch.randint(0, 256, (64, *shape), dtype=torch.uint8)
        model = Model.from_images(model_config, images).to(device).eval()
        precision = choose_precision("auto", device, shape[1] * shape[2])
        chain = lambda m=model, p=precision, b=batch: m.sample(b, batch_size=b, precision=p)  # noqa: E731
        ours = measure.milliseconds(chain, device, options.repeats, warmup=1) / options.levels
        memory = measure.peak_bytes(device)
        theirs = float("nan")
        if options.reference:
            network = authors.build_network(config.network, shape).to(device).eval()
            u_K = torch.rand(batch, *shape, device=device)
            theirs = (
                measure.milliseconds(authors.sampling(config, network, u_K), device, options.repeats, warmup=1)
                / options.levels
            )
            measure.peak_bytes(device)
        rate = flops / options.levels / (ours / 1000)
        speed, their_speed = (1000 * batch / (ms * K) for ms in (ours, theirs))
        row = [f"{ours:.1f}", f"{speed:.2f}", f"{rate / 1e12:.2f}", f"{100 * rate / peak:.0f}", f"{memory / 1e9:.1f}"]
        rows.append([name, str(batch), str(K), *row, f"{their_speed:.2f}", f"{speed / their_speed:.1f}"])
    columns = [
        "preset",
        "batch",
        "K",
        "ms/level",
        "images/s",
        "TFLOP/s",
        "% of peak",
        "GB",
        "authors",
        "ratio",
    ]
    title = f"Sampling. {measure.machine(device)}; a large matrix product: {peak / 1e12:.2f} TFLOP/s"
    measure.print_table(title, columns, rows)


if __name__ == "__main__":
    main()
