"""What a model or a preset is, in rows of words: `ihdm info`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from ihdm import memory
from ihdm.building import build_network, build_schedule
from ihdm.config import Config, ProcessConfig
from ihdm.data import image_shape
from ihdm.model import Model
from ihdm.model_folder import ModelConfig
from ihdm.prior import Prior

SAMPLE_BATCH = 16


def preset(config: Config) -> dict[str, str]:
    """What training with a configuration would make."""
    shape = image_shape(config.data)
    described = ModelConfig(config.process, config.network, shape)
    trainer = config.trainer
    part = -(-trainer.batch_size // trainer.accumulate)
    build = partial(build_network, described, config.engine.checkpoint)
    words = _memory_words(lambda precision: memory.to_train(build, shape, part, precision))
    return _rows(described) | {
        "to train": f"about {words}, with {part} images at a time",
        "data": f"{config.data.source}{', mirrored at random' * config.data.flip}",
        "training": f"{trainer.steps:,} steps of {trainer.batch_size} images, learning rate {trainer.lr:g}",
    }


def model(name: str) -> dict[str, str]:
    """What a model folder holds."""
    loaded = Model.from_pretrained(name)
    config = loaded.config
    rows = _rows(config) | {"trained": f"{config.steps:,} steps on {config.data}"}
    if config.origin:
        rows["trained"] = f"{config.steps:,} steps with the authors' code; converted from {config.origin}"
    if isinstance(loaded.prior, Prior):
        prior = loaded.prior.coefficients
        size = f"{prior[0].numel()} coefficients each, {_bytes(prior.nbytes)}"
        rows["prior"] = f"{len(prior):,} blurred images, {size}"
    return rows


def _rows(config: ModelConfig) -> dict[str, str]:
    channels, *grid = config.shape
    with torch.device("meta"):
        parameters = sum(p.numel() for p in build_network(config).parameters())
    build = partial(build_network, config)
    words = _memory_words(lambda precision: memory.to_sample(build, config.shape, SAMPLE_BATCH, precision))
    return {
        "images": f"{channels} x {' x '.join(map(str, grid))} (channels x height x width)",
        "network": f"{parameters:,} parameters ({_bytes(4 * parameters)}); {_network_words(config)}",
        "process": _process_words(config.process, grid),
        "to sample": f"about {words}, with {SAMPLE_BATCH} images at a time",
    }


def _memory_words(needed: Callable[[torch.dtype], int]) -> str:
    return f"{_bytes(needed(torch.bfloat16))} in bf16 on a GPU, {_bytes(needed(torch.float32))} in float32"


def _network_words(config: ModelConfig) -> str:
    network = config.network
    sizes = ["x".join(str(-(-n // 2**level)) for n in config.shape[1:]) for level in network.attention]
    widths = ", ".join(str(network.channels * multiplier) for multiplier in network.multipliers)
    where = ", ".join(sizes) or "the middle only"
    return f"{widths} channels, {network.blocks} block{'s' * (network.blocks > 1)} each, attention at {where}"


def _process_words(process: ProcessConfig, grid: list[int]) -> str:
    if process.kind == "ddpm":
        return f"denoising diffusion, K = {process.K}, {process.betas} betas, eta {process.delta_ratio:g}"
    schedule = build_schedule(process, grid)
    delta = process.delta_ratio * process.sigma
    filter = ", Gaussian filter" if process.blur == "gaussian" else ""
    return (
        f"K = {process.K}, sigma_B {schedule.sigma_B_min:g} to {schedule.sigma_B_max:g} pixels, "
        f"sigma {process.sigma:g}, delta {delta:g}, {process.skip} skip{filter}"
    )


def _bytes(n: float) -> str:
    for unit in ("B", "kB", "MB"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} GB"
