"""Model = process + network + prior: what a user loads, samples from and saves.

A model folder holds `config.json`, `model.safetensors` (weights, and the spectrum of the linear skip),
`prior.safetensors` and `README.md`. It needs nothing else, and nothing in it is executed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from tqdm import tqdm

from ihdm.config import NetworkConfig, ProcessConfig, as_tree, check_together, read_text, updated
from ihdm.data import evenly_spaced, unit_batches
from ihdm.engine import inference
from ihdm.errors import IhdmError, UsageError
from ihdm.heat import GridLaplacian
from ihdm.network import UNet
from ihdm.noise import SeededNoise
from ihdm.prior import Prior
from ihdm.processes import IdentitySkip, InverseHeat, LinearSkip, Spectrum
from ihdm.sampler import sample, trajectory
from ihdm.schedule import Schedule

CONFIG, WEIGHTS, PRIOR, CARD = "config.json", "model.safetensors", "prior.safetensors", "README.md"
NETWORK, SPECTRUM = "network.", "spectrum."  # prefixes of the tensors in WEIGHTS
SPECTRUM_MOST = 20_000  # images that the spectrum is measured on: its power is then known to one percent
BATCH = 512

SectionType = TypeVar("SectionType", ProcessConfig, NetworkConfig)


@dataclass(frozen=True)
class ModelConfig:
    """What a model folder's config.json says: all that the tensors do not."""

    process: ProcessConfig
    network: NetworkConfig
    shape: tuple[int, int, int]
    data: str = ""
    steps: int = 0


class Model(nn.Module):
    """An inverse heat dissipation model that can be sampled, saved and loaded."""

    def __init__(self, config: ModelConfig, process: InverseHeat, network: nn.Module, prior: Prior):
        super().__init__()
        self.config, self.process, self.network, self.prior = config, process, network, prior

    @classmethod
    def from_images(cls, config: ModelConfig, images: Tensor) -> Model:
        """An untrained model for training images (N, C, H, W), uint8."""
        laplacian = GridLaplacian(config.shape[1:])
        spectrum = None
        if config.process.skip == "linear":
            measured = images[evenly_spaced(len(images), SPECTRUM_MOST)]
            spectrum = Spectrum.from_images(laplacian, _shown(measured, "measuring the spectrum"))
        process = build_process(config.process, laplacian, spectrum)
        prior = Prior.from_images(laplacian, float(process.schedule.t[-1]), _shown(images, "blurring for the prior"))
        return cls(config, process, build_network(config), prior)

    @torch.no_grad()
    def sample(
        self,
        n: int,
        seed: int = 0,
        *,
        delta_ratio: float | None = None,
        same_start: bool = False,
        same_noise: bool = False,
        batch_size: int = 64,
        precision: torch.dtype = torch.float32,
        progress: bool = False,
    ) -> Tensor:
        """n images (n, C, H, W) in [0, 1], on the CPU; image i depends on the seed and i alone.

        delta_ratio: sampling noise in units of sigma, instead of the model's own.
        same_start: all images grow from one blurred image; same_noise: all share their noise, step by step.
        """
        process = self._process(delta_ratio)
        network = inference(self.network, precision)
        images = []
        with self._bar(n, progress) as bar:
            for numbers in torch.arange(n).split(batch_size):
                u_K, noise = self._start(process, numbers, seed, same_start, same_noise)
                images.append(sample(process, network, u_K, noise).clamp(0, 1).cpu())
                bar.update(len(numbers))
        return torch.cat(images) if images else torch.empty(0, *self.config.shape)

    @torch.no_grad()
    def trajectory(
        self,
        n: int,
        seed: int = 0,
        *,
        delta_ratio: float | None = None,
        same_start: bool = False,
        same_noise: bool = False,
        precision: torch.dtype = torch.float32,
    ) -> Iterator[tuple[int, Tensor]]:
        """(k, u_k) for k = K..0: the way of the images that `sample` returns, in one batch, on the CPU."""
        process = self._process(delta_ratio)
        u_K, noise = self._start(process, torch.arange(n), seed, same_start, same_noise)
        for k, u in trajectory(process, inference(self.network, precision), u_K, noise):
            yield k, u.clamp(0, 1).cpu()

    def _process(self, delta_ratio: float | None) -> InverseHeat:
        if delta_ratio is None:
            return self.process
        return replace(self.process, delta=delta_ratio * self.process.sigma)

    def _start(
        self, process: InverseHeat, numbers: Tensor, seed: int, same_start: bool, same_noise: bool
    ) -> tuple[Tensor, SeededNoise]:
        """u_K, and the noise of the steps that follow."""
        numbers = numbers.to(next(self.network.parameters()).device)
        start = SeededNoise(seed, numbers * (not same_start), self.config.shape)
        noise = SeededNoise(seed, numbers * (not same_noise), self.config.shape)
        return self.prior.sample(start, start(process.K + 1), process.delta), noise

    @staticmethod
    def _bar(n: int, progress: bool) -> tqdm[Any]:
        return tqdm(total=n, desc="sampling", unit="image", disable=not progress, leave=False)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a model folder, replacing the files of one that is there."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {NETWORK + name: tensor for name, tensor in self.network.state_dict().items()}
        if isinstance(self.process.skip, LinearSkip):
            tensors |= {SPECTRUM + name: tensor for name, tensor in vars(self.process.skip.spectrum).items()}
        save_file({name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS)
        save_file({"coefficients": self.prior.coefficients.cpu().contiguous()}, folder / PRIOR)
        config = self.config
        tree: dict[str, Any] = {"process": as_tree(config.process), "network": as_tree(config.network)}
        tree |= {"shape": list(config.shape), "data": config.data, "steps": config.steps}
        (folder / CONFIG).write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")
        (folder / CARD).write_text(_card(self), encoding="utf-8")

    @classmethod
    def from_pretrained(cls, name: str | Path) -> Model:
        """Read a model folder, or download one from the Hugging Face hub by its name, owner/model."""
        folder = _local_folder(name)
        config = _read_config(folder)
        laplacian = GridLaplacian(config.shape[1:])
        network = build_network(config)
        expected = {NETWORK + name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
        if config.process.skip == "linear":
            expected |= {SPECTRUM + name: shape for name, shape in _spectrum_shapes(config.shape).items()}
        tensors = _read_tensors(folder / WEIGHTS, expected)
        network.load_state_dict(_with_prefix(tensors, NETWORK))
        spectrum = Spectrum(**_with_prefix(tensors, SPECTRUM)) if config.process.skip == "linear" else None
        process = build_process(config.process, laplacian, spectrum)
        return cls(config, process, network.eval(), _read_prior(folder, config, process))


def build_process(config: ProcessConfig, laplacian: GridLaplacian, spectrum: Spectrum | None) -> InverseHeat:
    """The process on a grid; `spectrum` is that of the training set, for the linear skip."""
    schedule = build_schedule(config, laplacian.grid)
    skip = IdentitySkip() if spectrum is None else LinearSkip(laplacian, schedule, config.sigma, spectrum)
    return InverseHeat(laplacian, schedule, config.sigma, config.delta_ratio * config.sigma, skip)


def build_schedule(config: ProcessConfig, grid: Sequence[int]) -> Schedule:
    """The schedule on a grid; without a largest blur width, three quarters of the longer side."""
    sigma_B_max = config.sigma_B_max or 0.75 * max(grid)
    if sigma_B_max <= config.sigma_B_min:
        raise UsageError(
            f"process.sigma_B_max is {sigma_B_max:g} for images of {tuple(grid)}, which must be larger than "
            f"process.sigma_B_min ({config.sigma_B_min:g})"
        )
    return Schedule(config.K, sigma_B_max, config.sigma_B_min)


def build_network(config: ModelConfig) -> UNet:
    """The untrained network."""
    channels = config.shape[0]
    return UNet(channels, channels, **vars(config.network))


def _local_folder(name: str | Path) -> Path:
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists() or len(folder.parts) != 2 or str(name).startswith((".", "/", "~")):
        raise IhdmError(f"there is no model folder {name}; train one with `ihdm train`, or give owner/name on the hub")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(name), allow_patterns=[CONFIG, WEIGHTS, PRIOR, CARD]))
    except Exception as error:  # the hub's client raises many kinds; each is a failed download
        raise IhdmError(
            f"there is no folder {name}, and no such model could be downloaded from the hub ({type(error).__name__})"
        ) from error


def _shown(images: Tensor, doing: str) -> Iterable[Tensor]:
    """Batches in [0, 1], with a progress bar if they take a while."""
    batches = unit_batches(images, BATCH)
    return tqdm(batches, total=-(-len(images) // BATCH), desc=doing, unit="batch", delay=2, leave=False)


def _read_config(folder: Path) -> ModelConfig:
    path = folder / CONFIG
    if not path.exists():
        raise IhdmError(f"{folder} is not a model folder: {CONFIG} is missing")
    try:
        tree = json.loads(read_text(path))
        process = _section(ProcessConfig(), tree["process"], "process.")
        network = _section(NetworkConfig(), tree["network"], "network.")
        check_together(process, network)
        channels, height, width = (_count(n, 1) for n in tree["shape"])
        return ModelConfig(process, network, (channels, height, width), str(tree["data"]), _count(tree["steps"], 0))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise IhdmError(f"{path} is not the config of a model ({type(error).__name__}: {error})") from error


def _section(default: SectionType, tree: Any, place: str) -> SectionType:
    """A section of the config, in which nothing may be left out."""
    missing = [name for name in as_tree(default) if name not in tree]
    if missing:
        raise ValueError(f"{place}{missing[0]} is missing")
    return updated(default, tree, place)


def _count(number: Any, least: int) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number < 2**40:
        raise ValueError(f"{number!r} is not a possible number of pixels, channels or steps")
    return number


def _read_tensors(path: Path, expected: dict[str, tuple[int, ...]] | None = None) -> dict[str, Tensor]:
    """The tensors of a file, which must be exactly the floating point tensors `expected`, if given."""
    if not path.exists():
        raise IhdmError(f"{path.parent} is not a complete model folder: {path.name} is missing")
    try:
        tensors = load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise IhdmError(f"{path} is damaged ({error}); copy or train the model again") from error
    if expected is None:
        return tensors
    misfits = [
        *(f"{name} is missing" for name in expected if name not in tensors),
        *(f"{name} is not expected" for name in tensors if name not in expected),
        *(
            f"{name} is {tensors[name].dtype} of shape {tuple(tensors[name].shape)}, not of shape {shape}"
            for name, shape in expected.items()
            if name in tensors and (tensors[name].shape != shape or not tensors[name].is_floating_point())
        ),
    ]
    if misfits:
        more = f" and {len(misfits) - 3} more" if len(misfits) > 3 else ""
        raise IhdmError(f"{path} does not fit {CONFIG}: {'; '.join(misfits[:3])}{more}")
    return tensors


def _read_prior(folder: Path, config: ModelConfig, process: InverseHeat) -> Prior:
    coefficients = _read_tensors(folder / PRIOR).get("coefficients", torch.empty(0))
    try:
        prior = Prior(process.laplacian, float(process.schedule.t[-1]), coefficients)
        if coefficients.shape[1] != config.shape[0]:
            raise ValueError(f"it is for {coefficients.shape[1]} channels, not {config.shape[0]}")
        return prior
    except ValueError as error:
        raise IhdmError(f"{folder / PRIOR} does not belong to {folder / CONFIG}: {error}") from error


def _spectrum_shapes(shape: tuple[int, int, int]) -> dict[str, tuple[int, ...]]:
    return {"mean": shape, "axes": (shape[0], shape[0]), "power": shape}


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _card(model: Model) -> str:
    config, process = model.config, model.process
    channels, height, width = config.shape
    parameters = sum(p.numel() for p in model.network.parameters())
    return f"""---
library_name: ihdm
tags: [inverse-heat-dissipation, unconditional-image-generation]
---
# An inverse heat dissipation model

Images of {height}x{width} pixels, {channels} channel{"s" * (channels != 1)}, grown from blur in {process.K} steps.
Trained with ihdm on `{config.data}` for {config.steps:,} steps.

| | |
|---|---|
| network | U-Net, {parameters:,} parameters (averaged weights) |
| blur | sigma_B {process.schedule.sigma_B_min:g} to {process.schedule.sigma_B_max:g} pixels |
| noise | sigma {process.sigma:g} in training, delta {process.delta:g} in sampling |
| skip | {config.process.skip} |
| prior | {len(model.prior):,} blurred training images, {model.prior.coefficients[0].numel()} coefficients each |

```python
from ihdm import Model

images = Model.from_pretrained("this folder").sample(16, seed=0)
```

Method: Rissanen, Heinonen, Solin, *Generative Modelling with Inverse Heat Dissipation*, ICLR 2023.
The prior holds blurred copies of the training images: share the folder only where you may share those.
"""
