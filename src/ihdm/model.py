"""Model = process + network + prior: what a user loads, samples from and saves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from ihdm import memory
from ihdm.building import build_ddpm, build_network, build_process
from ihdm.data import spread, unit_batches
from ihdm.engine import compile_ahead, inference, recorded
from ihdm.errors import IhdmError, UsageError
from ihdm.heat import GridLaplacian
from ihdm.model_folder import (
    CONFIG,
    PRIOR,
    WEIGHTS,
    ModelConfig,
    locate,
    read_config,
    read_tensors,
    write_card,
    write_config,
    write_tensors,
)
from ihdm.noise import Noise, SeededNoise
from ihdm.pixels import to_bytes
from ihdm.prior import Prior
from ihdm.processes import DDPM, InverseHeat, LinearSkip, Process, Spectrum, StandardNormal
from ihdm.restoration import Guided, Observation, Restored, observe, spectra_of
from ihdm.sampler import Reverse, Step, chain, last, reverse_step

NETWORK, SPECTRUM = "network.", "spectrum."  # prefixes of the tensors in WEIGHTS
SPECTRUM_MOST = 20_000  # images that the spectrum is measured on: its power is then known to one percent
FILTERED_MOST = 5000  # images in the prior of a model that blurs with a filter
OUTSIDE_MOST = 50_000  # images in the prior, if they are not in memory
BATCH = 512
MOST_PIXELS = {"cuda": 2**20, "cpu": 2**16}  # in a batch of samples: more are no faster
MOST_IMAGES = {"cuda": 2**14, "cpu": 256}


class Model(nn.Module):
    """A model that can be sampled, saved and loaded: inverse heat dissipation, or the diffusion it is compared with."""

    process: Any  # InverseHeat or DDPM
    prior: Any  # Prior or StandardNormal, accordingly

    def __init__(self, config: ModelConfig, process: Process, network: nn.Module, prior: Prior | StandardNormal):
        super().__init__()
        self.config, self.process, self.network, self.prior = config, process, network, prior

    @classmethod
    def from_images(cls, config: ModelConfig, images: Tensor) -> Model:
        """An untrained model for training images (N, C, H, W), uint8."""
        if config.process.kind == "ddpm":
            return cls(config, build_ddpm(config.process), build_network(config), StandardNormal())
        laplacian = GridLaplacian(config.shape[1:])
        spectrum = None
        if config.process.skip == "linear":
            measured = spread(images, SPECTRUM_MOST)
            spectrum = Spectrum.from_images(laplacian, _shown(measured, "measuring the spectrum"))
        process = build_process(config.process, laplacian, spectrum)
        if process.filter is not None:  # all coefficients are kept, so of fewer images
            images = spread(images, FILTERED_MOST)
        elif not isinstance(images, Tensor):  # outside of the memory: to decode all takes as long as an epoch
            images = spread(images, OUTSIDE_MOST)
        blurred = _shown(images, "blurring for the prior")
        prior = Prior.from_images(laplacian, float(process.schedule.t[-1]), blurred, process.filter)
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
        batch_size: int | None = None,
        precision: torch.dtype = torch.float32,
        compiled: bool = True,
        progress: bool = False,
        first: int = 0,
    ) -> Tensor:
        """n images (n, C, H, W) in [0, 1], on the CPU; image i depends, up to rounding, on the seed and i alone.

        delta_ratio: sampling noise in units of sigma, instead of the model's own.
        same_start: all images grow from one blurred image; same_noise: all share their noise, step by step.
        batch_size: images computed at a time; None: as many as are computed fast and fit into memory.
        compiled: on a GPU, use compiled kernels and recorded steps, which start some seconds later and are faster.
        first: the number i of the first image.
        """
        options = delta_ratio, same_start, same_noise, batch_size, precision, compiled, progress, first
        batches = self._batches(n, seed, *options)
        return torch.cat([torch.empty(0, *self.config.shape), *(batch.cpu() for batch in batches)])

    @torch.no_grad()
    def sample_batches(self, n: int, seed: int = 0, **options: Any) -> Iterator[Tensor]:
        """The images of `sample`, with its options, in uint8 batches on the CPU: any number in little memory."""
        for batch in self._batches(n, seed, **options):
            yield to_bytes(batch).cpu()

    def _batches(
        self,
        n: int,
        seed: int,
        delta_ratio: float | None = None,
        same_start: bool = False,
        same_noise: bool = False,
        batch_size: int | None = None,
        precision: torch.dtype = torch.float32,
        compiled: bool = True,
        progress: bool = False,
        first: int = 0,
    ) -> Iterator[Tensor]:
        """The images in [0, 1], on the model's device. All batches are alike, so that one recorded step serves all."""
        if n < 0 or first < 0 or (batch_size is not None and batch_size < 1):
            raise ValueError(f"cannot make {n} images from number {first} on in batches of {batch_size}")
        process, device = self._process(delta_ratio), next(self.network.parameters()).device
        size = _even(n, batch_size or self.batch_size(n, precision, compiled))
        numbers = torch.arange(first, first + size, device=device)
        noise = SeededNoise(seed, numbers * 0 if same_noise else numbers, self.config.shape)
        step = self._step(process, noise, size, precision, compiled)
        with tqdm(total=n, desc="sampling", unit="image", disable=not progress, leave=False) as bar:
            for done in range(0, n, size):
                count = min(size, n - done)
                with memory.advice(lambda: self.fewer_images(size, precision, compiled)):
                    u_K = self.start(numbers * 0 if same_start else numbers, seed, delta_ratio)
                    images = last(chain(step, u_K, process.K))
                yield images[:count].clamp(0, 1)
                bar.update(count)
                numbers += size  # in place: the recorded step reads these very numbers

    def batch_size(self, n: int, precision: torch.dtype = torch.float32, compiled: bool = True) -> int:
        """Images to compute at a time, if there are n to make: no more than pays off, and than there is memory for."""
        device = next(self.network.parameters()).device
        kind, pixels = "cuda" if device.type == "cuda" else "cpu", math.prod(self.config.shape[1:])
        most = max(1, min(n, MOST_IMAGES[kind], MOST_PIXELS[kind] // pixels))
        if kind == "cuda":
            needed = self._needed(precision, compiled)
            most = max(1, memory.largest_batch(needed, most, memory.free_bytes(device)))
        return _even(n, most)

    def _needed(self, precision: torch.dtype, fused: bool) -> Callable[[int], int]:
        build = partial(build_network, self.config)
        return lambda batch: memory.to_sample(build, self.config.shape, batch, precision, fused)

    def fewer_images(self, size: int, precision: torch.dtype, compiled: bool) -> str:
        """What to say if the memory does not suffice for batches of a size."""
        device = next(self.network.parameters()).device
        needed = self._needed(precision, compiled and device.type == "cuda")
        fitting = memory.largest_batch(needed, max(1, size // 2), memory.all_bytes(device))
        advice = f"; {fitting} should fit (--batch-size {fitting})" if fitting else ", nor for one"
        return f"not enough memory for {size} images at a time{advice}"

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
        compiled: bool = True,
    ) -> Iterator[tuple[int, Tensor]]:
        """(k, u_k) for k = K..0: the path of the images that `sample` returns, in one batch, on the CPU."""
        numbers = torch.arange(n, device=next(self.network.parameters()).device)
        noise = SeededNoise(seed, numbers * 0 if same_noise else numbers, self.config.shape)
        u_K = self.start(numbers * 0 if same_start else numbers, seed, delta_ratio)
        for k, u in self.path(u_K, noise, delta_ratio=delta_ratio, precision=precision, compiled=compiled):
            yield k, u.clamp(0, 1).cpu()

    def start(self, numbers: Tensor, seed: int = 0, delta_ratio: float | None = None) -> Tensor:
        """u_K of the images with the given numbers, drawn from the prior; equal numbers give equal starts."""
        process, choice = self._process(delta_ratio), SeededNoise(seed, numbers, self.config.shape)
        return self.prior.sample(choice, choice(process.K + 1), process.delta)

    @torch.no_grad()
    def path(
        self,
        start: Tensor,
        noise: Noise,
        *,
        level: int | None = None,
        delta_ratio: float | None = None,
        precision: torch.dtype = torch.float32,
        compiled: bool = True,
    ) -> Iterator[tuple[int, Tensor]]:
        """(k, u_k) for k = level..0, from a state at a level (K unless told) with any noise, on the model's device."""
        process = self._process(delta_ratio)
        level = process.K if level is None else level
        if not 0 <= level <= process.K:
            raise ValueError(f"the model has levels 0 to {process.K}, not {level}")
        return chain(self._step(process, noise, len(start), precision, compiled), start, level)

    def observation(self, image: Tensor, blur_width: float | None = None) -> Observation:
        """What a blurred image (C, H, W) in [0, 1] says; its blur width in pixels is estimated unless given."""
        if not isinstance(self.process, InverseHeat) or self.process.filter is not None:
            raise UsageError("restoring needs a model of the heat equation (process.kind=heat, process.blur=heat)")
        if tuple(image.shape) != tuple(self.config.shape) or not image.is_floating_point():
            raise UsageError(
                f"the model restores images of {'x'.join(map(str, self.config.shape))} (channels x height x width) in "
                f"[0, 1], not {image.dtype} of {'x'.join(map(str, image.shape))}"
            )
        return observe(self.process, spectra_of(self.process, self.prior), image, blur_width)

    @torch.no_grad()
    def restoring(
        self,
        seen: Observation,
        n: int = 8,
        seed: int = 0,
        *,
        consistent: bool = True,
        delta_ratio: float | None = None,
        precision: torch.dtype = torch.float32,
        compiled: bool = True,
        first: int = 0,
    ) -> Iterator[tuple[int, Tensor]]:
        """(k, u_k) for k = level..0, on the model's device: n ways of `restore` back from what is seen."""
        process: Any = self._process(delta_ratio)
        numbers = torch.arange(first, first + n, device=next(self.network.parameters()).device)
        noise = SeededNoise(seed, numbers, self.config.shape)
        u = seen.start(
            float(process.schedule.t[seen.level]), noise(process.K + 1), process.delta if seen.level else 0.0
        )
        guided = Guided(process, seen) if consistent else process
        return chain(self._step(guided, noise, n, precision, compiled), u, seen.level)

    def restore(
        self,
        image: Tensor,
        n: int = 8,
        seed: int = 0,
        *,
        blur_width: float | None = None,
        batch_size: int | None = None,
        precision: torch.dtype = torch.float32,
        compiled: bool = True,
        progress: bool = False,
        **options: Any,
    ) -> Restored:
        """n sharp images that a blurred one (C, H, W) in [0, 1] may come from; sample i depends on the seed and i.

        blur_width: in pixels; None: estimated. consistent (True): hold the samples to the image, so that they look
        like it when they are blurred again; else it is where they start, and no more. Other options as of `sample`.
        """
        if n < 1:
            raise UsageError(f"cannot make {n} images")
        seen = self.observation(image, blur_width)
        size = _even(n, batch_size or self.batch_size(n, precision, compiled))
        options |= {"precision": precision, "compiled": compiled}
        images = []
        with tqdm(total=n, desc="restoring", unit="image", disable=not progress, leave=False) as bar:
            for first in range(0, n, size):
                count = min(size, n - first)
                with memory.advice(lambda: self.fewer_images(size, precision, compiled)):
                    images.append(last(self.restoring(seen, count, seed, first=first, **options)).clamp(0, 1).cpu())
                bar.update(count)
        return Restored(torch.cat(images), seen)

    def _process(self, delta_ratio: float | None) -> Process:
        return self.process if delta_ratio is None else self.process.with_noise(delta_ratio)

    def _step(self, process: Reverse, noise: Noise, size: int, precision: torch.dtype, compiled: bool) -> Step:
        """One reverse step for batches of a size."""
        device = next(self.network.parameters()).device
        step = reverse_step(process, inference(self.network, precision, compiled), noise)
        if not compiled:
            return step
        compile_ahead(self.network, torch.empty(size, *self.config.shape, device=device), precision)
        return recorded(step, device)

    def save_pretrained(self, folder: str | Path, dtype: torch.dtype = torch.float32) -> None:
        """Write a model folder, replacing the files of one that is there. dtype: of the network's weights."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {NETWORK + name: tensor.to(dtype) for name, tensor in self.network.state_dict().items()}
        if self.config.process.kind == "heat" and isinstance(self.process.skip, LinearSkip):
            tensors |= {SPECTRUM + name: tensor for name, tensor in vars(self.process.skip.spectrum).items()}
        write_tensors(folder / WEIGHTS, tensors)
        if isinstance(self.prior, Prior):
            write_tensors(folder / PRIOR, {"coefficients": self.prior.coefficients})
        write_config(folder, self.config)
        write_card(folder, self.config, self._facts())

    def _facts(self) -> dict[str, str]:
        network = f"U-Net, {sum(p.numel() for p in self.network.parameters()):,} parameters (averaged weights)"
        if isinstance(self.process, DDPM):
            return {
                "network": network,
                "noise": f"{self.process.schedule} betas, {self.process.eta:g} x the posterior's",
            }
        process, prior = self.process, self.prior.coefficients
        schedule = process.schedule
        return {
            "network": network,
            "blur": f"sigma_B {schedule.sigma_B_min:g} to {schedule.sigma_B_max:g} pixels",
            "noise": f"sigma {process.sigma:g} in training, delta {process.delta:g} in sampling",
            "skip": self.config.process.skip,
            "prior": f"{len(prior):,} blurred training images, {prior[0].numel()} coefficients each",
        }

    @classmethod
    def from_pretrained(cls, name: str | Path) -> Model:
        """Read a model folder, or download one from the Hugging Face hub by its name, owner/model."""
        folder = locate(name)
        config = read_config(folder)
        network = build_network(config)
        expected = {NETWORK + name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
        linear = config.process.kind == "heat" and config.process.skip == "linear"
        if linear:
            expected |= {SPECTRUM + name: shape for name, shape in _spectrum_shapes(config.shape).items()}
        tensors = read_tensors(folder / WEIGHTS, expected)
        network.load_state_dict(_with_prefix(tensors, NETWORK))
        if config.process.kind == "ddpm":
            return cls(config, build_ddpm(config.process), network.eval(), StandardNormal())
        spectrum = Spectrum(**_with_prefix(tensors, SPECTRUM)) if linear else None
        process = build_process(config.process, GridLaplacian(config.shape[1:]), spectrum)
        return cls(config, process, network.eval(), _read_prior(folder, config, process))


def _even(n: int, most: int) -> int:
    """The size of batches, no larger than `most`, if n things are divided into as few and equal ones as can be."""
    return -(-n // -(-n // most)) if n else 1


def _shown(images: Tensor, doing: str) -> Iterable[Tensor]:
    """Batches in [0, 1], with a progress bar if they take a while."""
    batches = unit_batches(images, BATCH)
    return tqdm(batches, total=-(-len(images) // BATCH), desc=doing, unit="batch", delay=2, leave=False)


def _read_prior(folder: Path, config: ModelConfig, process: InverseHeat) -> Prior:
    coefficients = read_tensors(folder / PRIOR).get("coefficients", torch.empty(0))
    try:
        prior = Prior(process.laplacian, float(process.schedule.t[-1]), coefficients, process.filter)
        if coefficients.shape[1] != config.shape[0]:
            raise ValueError(f"it is for {coefficients.shape[1]} channels, not {config.shape[0]}")
        return prior
    except ValueError as error:
        raise IhdmError(f"{folder / PRIOR} does not belong to {folder / CONFIG}: {error}") from error


def _spectrum_shapes(shape: tuple[int, int, int]) -> dict[str, tuple[int, ...]]:
    return {"mean": shape, "axes": (shape[0], shape[0]), "power": shape}


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
