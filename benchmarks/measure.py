"""What the benchmarks share: time, memory, counted arithmetic, the machine's limit, and a table."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ihdm.config import Config, load_config

PAPER = ["mnist", "cifar10", "afhq-64", "ffhq-128", "ffhq-256"]
SMALL = ["digits", "mnist-small"]


def milliseconds(
    work: Callable[[], Any], device: torch.device, repeats: int = 9, warmup: int = 2, calls: int = 1
) -> float:
    """The median time of one call, including what it starts on the device; `calls` calls are timed together."""
    for _ in range(warmup):
        work()
    times = []
    for _ in range(repeats):
        _wait(device)
        start = time.perf_counter()
        for _ in range(calls):
            work()
        _wait(device)
        times.append(1000 * (time.perf_counter() - start) / calls)
    return sorted(times)[repeats // 2]


def least_ms(works: Sequence[Callable[[], Any]], device: torch.device, repeats: int) -> list[float]:
    """The least time of each, run in turns; on a CPU in processor time, because others may be using the machine."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    times: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for work, found in zip(works, times):
            start = clock()
            work()
            _wait(device)
            found.append(1000 * (clock() - start))
    return [min(found) for found in times]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def forward_flops(network: Callable[[], nn.Module], shape: tuple[int, int, int], **options: int) -> int:
    """Floating point operations of one image's forward pass, counted operator by operator without computing any."""
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        network()(torch.empty(1, *shape), torch.ones(1), **options)
    return counter.get_total_flops()


def peak_flops(device: torch.device) -> float:
    """Operations per second of a large matrix product: bfloat16 on a GPU, float32 on a CPU."""
    n, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (2048, torch.float32)
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    return 2 * n**3 / (milliseconds(lambda: a @ b, device) / 1000)


def peak_bytes(device: torch.device) -> float:
    """The most memory that tensors took on a GPU since the last call; NaN on a CPU."""
    if device.type != "cuda":
        return float("nan")
    most = torch.cuda.max_memory_allocated()
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return most


def chosen_presets(names: Sequence[str] | None, device: torch.device) -> dict[str, Config]:
    """The presets to measure, with the public code's strided convolutions, so that both sides compute the same."""
    names = names or (PAPER if device.type == "cuda" else SMALL)
    settings = ["network.resample=conv", f"engine.device={device.type}"]
    return {name: load_config(name, settings) for name in names}


def image_shape(config: Config) -> tuple[int, int, int]:
    """(C, H, W); where a preset leaves them to the data, those of the digits."""
    return (config.data.channels or 1, *(config.data.size or (8, 8)))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table that is also Markdown."""
    lines = [list(columns), ["-" * len(column) for column in columns], *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    print(f"\n{title}\n")
    for line in lines:
        print("| " + " | ".join(cell.rjust(width) for cell, width in zip(line, widths)) + " |")


def machine(device: torch.device) -> str:
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return f"{name}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}"
