"""Models and presets described in rows of words, for `ihdm info`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from ihdm import memory, settings
from ihdm.config import Config, DataConfig
from ihdm.data import data_domain, labels_of, opened, split_off
from ihdm.data.sources import MADE_HERE, locate
from ihdm.disk import size_words
from ihdm.model import Model
from ihdm.model_folder import ModelConfig
from ihdm.networks import build_network
from ihdm.processes import coarse
from ihdm.registry import DOMAINS, NETWORKS, PROCESSES

SAMPLE_BATCH = 16


def preset(config: Config) -> dict[str, str]:
    """The model that a configuration would train, and on what. Data that should be on this machine must be there."""
    data, trainer = config.data, config.trainer
    amount, labels = _amount(data), labels_of(data)
    described = ModelConfig.of(config, data_domain(data), labels=labels)
    shape, noun = described.shape, described.domain.noun
    part = -(-trainer.batch_size // trainer.accumulate)
    build = partial(build_network, described, config.engine.checkpoint)
    words = _memory_words(lambda precision: memory.to_train(build, shape, part, precision))
    source = data.source or "none; give --data SOURCE"
    rows = _rows(described)
    if labels is None:
        rows["labels"] = "unknown, as the images are not on this machine; each label adds parameters"
    return rows | {
        "sampling": ", ".join(settings.words(config.sampling)),
        "to train": f"about {words}, with {part} {noun}s at a time",
        "data": f"{source}{amount}{', mirrored at random' * data.flip}{', with labels' * data.labels}",
        "training": f"{trainer.steps:,} steps of {trainer.batch_size} {noun}s, learning rate {trainer.lr:g}",
    }


def model(name: str) -> dict[str, str]:
    """What a model folder holds."""
    loaded = Model.from_pretrained(name)
    config = loaded.config
    rows = _rows(config) | {"trained": f"{config.steps:,} steps on {config.data}"}
    if config.origin:
        rows["trained"] = f"{config.steps:,} steps with the authors' code; converted from {config.origin}"
    rows["sampling"] = loaded.process.sampling_words()
    if loaded.guide is not None:
        rows["guidance"] = loaded.guidance_words()
    rows |= loaded.process.facts()
    sees_less = hasattr(config.network, "pyramid") and loaded.process.predicts_alone(config.process)
    enough = coarse.words(loaded.process) if sees_less else ""
    return rows | ({"grids that suffice": f"{enough} (network.pyramid)"} if enough else {})


def _amount(data: DataConfig) -> str:
    """How many images there are. Nothing where that takes long: in a stream, on the hub, or of data of other kinds."""
    if not data.source or DOMAINS.is_own(data.kind):
        return ""
    at_hand = data.source in MADE_HERE or not isinstance(locate(data.source), str)
    if not at_hand or data.stream or data.kind != "images":
        return ""
    train, held_out = split_off(opened(data.source), data.holdout)
    return f", {len(train):,} images to learn from and {len(held_out):,} held out"


def _rows(config: ModelConfig) -> dict[str, str]:
    with torch.device("meta"):
        parameters = sum(p.numel() for p in build_network(config).parameters())
    build = partial(build_network, config)
    words = _memory_words(lambda precision: memory.to_sample(build, config.shape, SAMPLE_BATCH, precision))
    return {
        f"{config.domain.noun}s": config.domain.words,
        "network": f"{parameters:,} parameters ({size_words(4 * parameters)}); {_network_words(config)}",
        **({"labels": config.labels.words} if config.labels else {}),
        "process": PROCESSES.of(config.process).summary(config.process, config.sampling, config.domain),
        "to sample": f"about {words}, with {SAMPLE_BATCH} {config.domain.noun}s at a time",
    }


def _memory_words(needed: Callable[[torch.dtype], int]) -> str:
    return f"{size_words(needed(torch.bfloat16))} in bf16 on a GPU, {size_words(needed(torch.float32))} in float32"


def _network_words(config: ModelConfig) -> str:
    network = NETWORKS.of(config.network)
    return network.words(config.network, config.domain) if hasattr(network, "words") else NETWORKS.kind(config.network)
