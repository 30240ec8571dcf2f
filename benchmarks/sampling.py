"""How many images a second are sampled, by our code and, given a checkout, by the authors'.

    python benchmarks/sampling.py [--presets mnist cifar10 ...] [--batch-size N] [--reference PATH]

One step of our chain is timed, and a short chain of the authors'. images/s is for all steps of the preset, one for each
of its K levels, which all cost the same. On a CPU that others use, `--in-turns 60` prints the processor time of the
network and of a step, the least of 60, running ours and theirs in turns.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import authors
import measure
import torch
from torch import Tensor

from ihdm.config import Config
from ihdm.engine import choose_precision, keep_freed_memory, placed
from ihdm.execution import Execution
from ihdm.model import Model
from ihdm.model_folder import ModelConfig
from ihdm.networks import build_network
from ihdm.noise import SeededNoise
from ihdm.sampler import reverse_step

MANY = 1024  # the number of images for which the batch size is chosen

Work = Callable[[], Tensor]


def ours(config: ModelConfig, batch: int, device: torch.device, repeats: int) -> tuple[float, float, float]:
    """Milliseconds for one level, seconds until the first is done, bytes of memory."""
    start = time.perf_counter()
    _, step = our_work(config, batch, device)
    with torch.no_grad():
        if not step().isfinite().all():
            raise RuntimeError("a step does not give finite numbers")
        started = time.perf_counter() - start
        ms = measure.milliseconds(step, device, repeats, warmup=3, calls=3)
    return ms, started, measure.peak_bytes(device)


def our_work(config: ModelConfig, batch: int, device: torch.device) -> tuple[Work, Work]:
    """The network, and a whole step of the chain."""
    model = build(config, device)
    process, runner = model.process, model.runner(execution(config, device))
    state = process.begin(torch.rand(batch, *config.shape, device=device))
    levels = process.levels()
    half = len(levels) // 2
    i, k, j = (torch.full((), levels[place], device=device) for place in (half - 1, half, half + 1))
    noise = SeededNoise(0, torch.arange(batch, device=device), config.shape)
    step = runner.recorded(reverse_step(process, runner.network, noise), batch)
    u = torch.rand(batch, *config.shape, device=device)
    return lambda: runner.network(u, k.expand(batch)), lambda: step(state, k, j, i, None)


def execution(config: ModelConfig, device: torch.device) -> Execution:
    """How `ihdm sample` computes."""
    return Execution(choose_precision("auto", device, config.shape[1:]))


def build(config: ModelConfig, device: torch.device) -> Model:
    """A model with random weights, none of them zero."""
    model = Model.from_images(config, torch.randint(0, 256, (64, *config.shape), dtype=torch.uint8))
    for parameter in model.network.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    return placed(model, device).eval()


def theirs(config: Config, shape: tuple[int, int, int], batch: int, device: torch.device, levels: int) -> float:
    """Milliseconds for one level of the authors' chain."""
    _, chain = their_work(config, shape, batch, device, levels)
    ms = measure.milliseconds(chain, device, repeats=3, warmup=1) / levels
    measure.peak_bytes(device)
    return ms


def their_work(
    config: Config, shape: tuple[int, int, int], batch: int, device: torch.device, levels: int
) -> tuple[Work, Work]:
    """The authors' network, and a chain of `levels` steps."""
    short = config.with_settings([f"process.K={levels}"])
    network = authors.build_network(config.network, shape).to(device).eval()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    u, k = torch.rand(batch, *shape, device=device), torch.ones(batch, device=device)
    return lambda: network(u, k), authors.sampling(short, network, u)


def in_turns(
    config: Config, model: ModelConfig, batch: int, device: torch.device, repeats: int
) -> tuple[list[float], list[float]]:
    """Milliseconds for the network and for a step, ours and theirs: the least of `repeats`, run in turns."""
    works = [*our_work(model, batch, device), *their_work(config, model.shape, batch, device, levels=1)]
    with torch.no_grad():
        found = measure.least_ms(works, device, repeats)
    return found[:2], found[2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+")
    parser.add_argument("--batch-size", type=int, help="default: what ihdm sample would choose for many images")
    parser.add_argument("--levels", type=int, default=5, help="levels of the authors' chain that are timed together")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--reference", help="a checkout of the authors' code")
    parser.add_argument("--in-turns", type=int, metavar="N", help="needs --reference")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    device = torch.device(options.device)
    if options.reference:
        authors.use(options.reference)

    presets = measure.chosen_presets(options.presets, device)
    configs = {name: ModelConfig.of(c, measure.image_shape(c)) for name, c in presets.items()}
    batches = {
        name: options.batch_size or build(config, device).runner(execution(config, device)).size(MANY)
        for name, config in configs.items()
    }
    if options.in_turns:
        keep_freed_memory()
        for name, config in presets.items():
            own, other = in_turns(config, configs[name], batches[name], device, options.in_turns)
            row = [f"{a:.2f} {b:.2f} {b / a:.2f}" for a, b in zip(own, other)]
            print(f"{name}, batch {batches[name]}: ms of the network, theirs, ratio: {row[0]}; of a step: {row[1]}")
        return
    peak = measure.peak_flops(device)
    their_times = {
        name: theirs(config, configs[name].shape, batches[name], device, options.levels)
        for name, config in (presets.items() if options.reference else ())
    }
    keep_freed_memory()  # as `ihdm sample` does
    rows = []
    for name, config in configs.items():
        K, batch = config.process.K, batches[name]
        ms, start, memory = ours(config, batch, device, options.repeats)
        flops = batch * measure.forward_flops(lambda c=config: build_network(c), config.shape)  # type: ignore[misc]
        rate, their_ms = flops / (ms / 1000), their_times.get(name, math.nan)
        speed, their_speed = 1000 * batch / (ms * K), 1000 * batch / (their_ms * K)
        row = [f"{ms:.1f}", f"{speed:.2f}", f"{rate / 1e12:.2f}", f"{100 * rate / peak:.0f}", f"{memory / 1e9:.1f}"]
        rows.append([name, str(batch), str(K), *row, f"{start:.0f}", f"{their_speed:.2f}", f"{their_ms / ms:.1f}"])
        print(" ".join(rows[-1]), flush=True)
    columns = [
        "preset",
        "batch",
        "K",
        "ms/level",
        "images/s",
        "TFLOP/s",
        "% of peak",
        "GB",
        "start s",
        "authors",
        "ratio",
    ]
    title = f"Sampling. {measure.machine(device)}; a large matrix product: {peak / 1e12:.2f} TFLOP/s"
    measure.print_table(title, columns, rows)


if __name__ == "__main__":
    main()
