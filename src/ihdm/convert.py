"""Models from checkpoints of the authors' code, AaltoML/generative-inverse-heat-dissipation.

Their checkpoint is a dict: `model`, the weights by name; `ema`, their moving average as a list in the same order;
`step`; `optimizer`. The average and the step are used. It says nothing about the process, which the preset defines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ihdm.config import Config, load_config, presets
from ihdm.data import ImageSet, image_shape
from ihdm.domains import ImageDomain
from ihdm.domains.domain import by
from ihdm.errors import IhdmError, UsageError, first_few
from ihdm.model import Model
from ihdm.model_folder import NAMED_MOST, ModelConfig
from ihdm.networks import build_network
from ihdm.networks.layers import Block
from ihdm.networks.unet import UNet, UNetSettings
from ihdm.processes.inverse_heat import as_published
from ihdm.registry import NETWORKS
from ihdm.torch_archive import StoredTensor, read_archive

GROUPS = 32  # of each normalisation; their code always has this many

OF_BLOCK = {
    "enter_norm": "in_layers.0",
    "enter": "in_layers.2",
    "level": "emb_layers.1",
    "leave_norm": "out_layers.0",
    "leave": "out_layers.3",
    "skip": "skip_connection",
}
OF_ATTENTION = {"norm": "norm", "qkv": "qkv", "project": "proj_out"}

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Checkpoint:
    """Averaged weights by the authors' names, not yet read from the file, and the number of training steps."""

    path: Path
    weights: dict[str, StoredTensor]
    steps: int

    @property
    def shapes(self) -> Shapes:
        return {name: tensor.shape for name, tensor in self.weights.items()}


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint as data; nothing in it is executed."""
    tree = read_archive(path)
    try:
        names, steps, averages = list(tree["model"]), tree["step"], tree["ema"]["shadow_params"]
        originals = list(tree["model"].values())
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        found = f"; this file has {', '.join(map(ascii, list(tree)[:8]))[:200]}" if isinstance(tree, dict) else ""
        raise IhdmError(
            f"{path} is no checkpoint of the authors' code, which has model, ema.shadow_params and step{found}"
        ) from error
    tensors = [*originals, *averages] if type(averages) is list else []
    if not names or not tensors or type(steps) is not int or not all(type(t) is StoredTensor for t in tensors):
        raise IhdmError(f"{path} is no checkpoint of the authors' code: its model, ema and step hold something else")
    if [t.shape for t in averages] != [t.shape for t in originals] or not 0 <= steps < 2**40:
        raise IhdmError(f"the averaged weights or the step in {path} cannot be right: it is damaged or was changed")
    return Checkpoint(path, dict(zip((str(n).removeprefix("module.") for n in names), averages)), steps)


def fitting(config: Config, checkpoint: Checkpoint) -> ModelConfig:
    """The config of the model to convert a checkpoint to; refuse a configuration that does not fit the checkpoint."""
    if not as_published(config.process):
        raise UsageError(
            "the authors' networks add what the heat equation removed to the blurred image itself; use one of the "
            "paper's presets, such as cifar10, or --set process.kind=heat process.skip=identity process.blur=heat"
        )
    if config.data.kind != "images" or not isinstance(config.network, UNetSettings):
        raise UsageError(
            f"the authors' networks are U-Nets for images, not network.kind={NETWORKS.kind(config.network)} for "
            f"{config.data.kind}; use one of the paper's presets, such as cifar10"
        )
    model = _model_config(config, checkpoint.shapes)
    misfits = _misfits(checkpoint.shapes, _expected(model))
    if misfits:
        found = first_few(misfits, NAMED_MOST)
        raise IhdmError(f"{checkpoint.path} does not fit the settings: {found}. {_advice(checkpoint.shapes)}")
    return replace(model, steps=checkpoint.steps, origin=checkpoint.path.name)


def convert(checkpoint: Checkpoint, config: ModelConfig, images: ImageSet) -> Model:
    """The model with the checkpoint's averaged weights and a prior made from the training images."""
    if images.shape != config.shape:
        raise IhdmError(f"the images are {images.shape} (channels, height, width), but the model's are {config.shape}")
    model = Model.from_images(replace(config, data=images.name), images.train)
    model.network.load_state_dict(_weights(checkpoint, model.network))
    return model.eval()


def _weights(checkpoint: Checkpoint, network: nn.Module) -> dict[str, Tensor]:
    """The weights by our names and in our shapes: where they have convolutions of one pixel, we have linear maps."""
    weights = {}
    theirs = dict(_names(network))
    for name, parameter in network.state_dict().items():
        weight = checkpoint.weights[theirs[name]].read().float()
        if not weight.isfinite().all():
            raise IhdmError(f"{theirs[name]} in {checkpoint.path} has values that are not finite: training diverged")
        weights[name] = weight.reshape(parameter.shape)
    return weights


def _model_config(config: Config, shapes: Shapes) -> ModelConfig:
    """The preset's model, with the normalisation, resampling and depth of the authors' code."""
    convolved = any(name.endswith(".op.weight") for name in shapes)
    network = replace(config.network, groups=GROUPS, resample="conv" if convolved else "pool")
    network = replace(network, blocks=_blocks(network, shapes))
    return ModelConfig(config.process, config.sampling, network, ImageDomain(image_shape(config.data)))


def _blocks(network: UNetSettings, shapes: Shapes) -> int:
    """Residual blocks per resolution. Their encoder also has a first layer, and a step down between resolutions."""
    numbers = [name.split(".")[1] for name in shapes if name.startswith("input_blocks.")]
    layers = 1 + max((int(number) for number in numbers if number.isdecimal() and len(number) < 6), default=0)
    blocks, rest = divmod(layers - len(network.multipliers), len(network.multipliers))
    return blocks if rest == 0 and 1 <= blocks <= 64 else network.blocks


def _expected(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The authors' names and shapes for the weights of a model."""
    with torch.device("meta"):
        network = build_network(config)
    shapes = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    pixel_wide = (".qkv.weight", ".proj_out.weight")
    return {theirs: shapes[ours] + (1,) * theirs.endswith(pixel_wide) for ours, theirs in _names(network)}


def _misfits(found: Shapes, expected: Shapes) -> list[str]:
    return [
        *(
            f"{name} is {by(found[name])}, not {by(shape)}"
            for name, shape in expected.items()
            if name in found and found[name] != shape
        ),
        *(f"{name} is missing" for name in expected if name not in found),
        *(f"{name[:80]!a} is not expected" for name in found if name not in expected),
    ]


def _advice(shapes: Shapes) -> str:
    """Which presets a checkpoint fits, or what to set if there are none."""
    configs = {name: load_config(name) for name in presets()}
    named = [
        name
        for name, config in configs.items()
        if as_published(config.process)
        if not _misfits(shapes, _expected(_model_config(config, shapes)))
    ]
    if named:
        return f"It fits --preset {' or '.join(named)}"
    return "It fits no preset; give its network.channels, network.multipliers and network.attention with --set"


def _names(network: nn.Module) -> Iterator[tuple[str, str]]:
    """Our name and the authors' name of every weight."""
    theirs = dict(_places(network))  # type: ignore[arg-type]
    for name in network.state_dict():
        place, _, kind = name.rpartition(".")
        yield name, f"{theirs[place]}.{kind}"


def _places(network: UNet) -> Iterator[tuple[str, str]]:
    """Our name and the authors' name of every layer.

    They number layers in the encoder, but blocks in the decoder. Attention, then a step up, follow under the block's
    number.
    """
    yield from {"embed_level.first": "time_embed.0", "embed_level.second": "time_embed.2"}.items()
    yield from {"stem": "input_blocks.0.0", "head_norm": "out.0", "head": "out.2"}.items()
    for number, layer in enumerate(network.down):
        theirs = f"input_blocks.{number + 1}"
        if isinstance(layer, Block):
            yield from _block_places(f"down.{number}", f"{theirs}.0", f"{theirs}.1")
        yield f"down.{number}.conv", f"{theirs}.0.op"
    yield from _block_places("middle.0", "middle_block.0", "middle_block.1")
    yield from _block_places("middle.1", "middle_block.2", "")
    theirs, behind = "", 0
    for number, layer in enumerate(network.up):
        if isinstance(layer, Block):
            theirs = f"output_blocks.{sum(isinstance(before, Block) for before in network.up[:number])}"
            behind = 1 if layer.attention is None else 2
            yield from _block_places(f"up.{number}", f"{theirs}.0", f"{theirs}.1")
        yield f"up.{number}.conv", f"{theirs}.{behind}.conv"


def _block_places(ours: str, theirs: str, attention: str) -> Iterator[tuple[str, str]]:
    for place, their_place in OF_BLOCK.items():
        yield f"{ours}.{place}", f"{theirs}.{their_place}"
    for place, their_place in OF_ATTENTION.items():
        yield f"{ours}.attention.{place}", f"{attention}.{their_place}"


def differing(config: ModelConfig, preset: Config) -> dict[str, Any]:
    """The network settings in which a converted model differs from its preset."""
    before = vars(preset.network)
    return {name: value for name, value in vars(config.network).items() if value != before[name]}
