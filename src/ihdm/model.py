"""Model = process + network: what a user loads, samples from and saves."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ihdm.card import card
from ihdm.data import Images, evenly_spaced, spread, unit_batches
from ihdm.disk import identity
from ihdm.errors import IhdmError, UsageError
from ihdm.execution import USUAL, Execution, Runner
from ihdm.familiar import Familiar
from ihdm.guide import check_same_data, check_weaker
from ihdm.labels import Given, LabelledNoise
from ihdm.model_folder import (
    CARD,
    CONFIG,
    DOMAIN,
    FAMILIAR,
    GUIDE,
    OF_PRIOR,
    PRIOR,
    READER,
    WEIGHTS,
    ModelConfig,
    check_kept,
    locate,
    read_calibrated,
    read_config,
    read_guide,
    read_weights,
    weights_of,
    with_prefix,
    write_config,
    write_tensors,
    write_weights,
)
from ihdm.networks import build_network
from ihdm.networks.guidance import beyond, guided
from ihdm.noise import Noise, SeededNoise
from ihdm.processes import FromImages, Process
from ihdm.progress import progress_bar
from ihdm.registry import PROCESSES
from ihdm.restoration import Restored
from ihdm.restorer import Picture, Restorer
from ihdm.sampler import States, chain, last, reverse_step
from ihdm.settings import whole
from ihdm.width_reader import WidthReader

OUTSIDE_MOST = 50_000  # images that a process is shown if they are not in memory
BATCH = 512
MOST_GUIDANCE = 100  # more than is of any use


class Model(nn.Module):
    """A model that can be sampled, saved and loaded.

    Methods with `**sampling` take the sampling settings of the model's process: for inverse heat dissipation sampler,
    steps, eta, order, corrected and delta_ratio; for diffusion steps, eta, order, corrected and clip.
    """

    def __init__(self, config: ModelConfig, process: Process, network: nn.Module, start_labels: Tensor | None = None):
        """start_labels: labels (N,) of the training images in the prior, if there are both labels and such a prior."""
        super().__init__()
        self.config, self.process, self.network, self.start_labels = config, process, network, start_labels
        self.guide: nn.Module | None = None  # a weaker network of the same process: samples are guided away from it
        self.familiar: Familiar | None = None  # tells familiar images from others (ihdm calibrate)
        self.reader: WidthReader | None = None  # reads the width of a blur (ihdm calibrate)

    @classmethod
    def from_images(cls, config: ModelConfig, images: Images, labels: Tensor | None = None) -> Model:
        """An untrained model for training images (N, C, H, W), uint8. labels: the numbers of their labels, if any."""

        def batches(most: int | None, doing: str) -> Iterable[Tensor]:
            most = most or len(images)
            if not isinstance(images, Tensor):  # decoding all of them takes as long as an epoch
                most = min(most, OUTSIDE_MOST)
            some = spread(images, most)
            count = -(-len(some) // BATCH)
            return progress_bar(unit_batches(some, BATCH), total=count, desc=doing, unit="batch", delay=2)

        network = build_network(config)  # first: it refuses data that it is not for, before all images are read
        kind = PROCESSES.of(config.process)
        process = kind.from_images(config.process, config.sampling, config.domain, batches)
        check_kept(process, config)
        of_starts = None
        if labels is not None and isinstance(process, FromImages):
            of_starts = labels[evenly_spaced(len(images), len(process.prior))]
        return cls(config, process, network, of_starts)

    def sampled(self, **sampling: Any) -> Model:
        """The same model with other sampling settings of its own."""
        process = self.process.with_sampling(**sampling)
        model = Model(replace(self.config, sampling=process.sampling), process, self.network, self.start_labels)
        model.guide, model.familiar, model.reader = self.guide, self.familiar, self.reader
        return model

    @property
    def device(self) -> torch.device:
        return next(self.network.parameters()).device

    def sample(self, n: int, seed: int = 0, **options: Any) -> Tensor:
        """n images (n, C, H, W) in [0, 1], on the CPU. Up to rounding, image i depends on the seed and i alone.

        same_start: all images grow from one blurred image. same_noise: all share their noise, step by step.
        first: the number i of the first image. labels: a name or number for all images, or one for each. If the model
        knows labels and none are given, they are drawn (by the seed and i) in the proportions of the training set.
        guidance: 1 is the network's own answer; more makes images more like their label, and 0 ignores labels. If the
        model has a weaker network, more leads farther away from that one's answer (`guided_by`). condition: instead of
        labels, what your own network is told about each image, (n, ...). execution: how it is computed.
        All other options are sampling settings of the process, such as steps and eta.
        """
        batches = self._batches(n, seed, **options)
        return torch.cat([torch.empty(0, *self.config.shape, dtype=torch.float32), *(batch.cpu() for batch in batches)])

    def sample_batches(self, n: int, seed: int = 0, **options: Any) -> Iterator[Tensor]:
        """The images of `sample`, with its options, as uint8 batches on the CPU: any number in little memory.

        Other data than images come in the form in which their domain keeps them.
        """
        for batch in self._batches(n, seed, **options):
            yield self.config.domain.kept(batch).cpu()

    def _batches(
        self,
        n: int,
        seed: int,
        *,
        same_start: bool = False,
        same_noise: bool = False,
        first: int = 0,
        labels: Given | None = None,
        guidance: float | None = None,
        condition: Tensor | None = None,
        execution: Execution = USUAL,
        **sampling: Any,
    ) -> Iterator[Tensor]:
        """The images in [0, 1], on the model's device. All batches have one size, so one recorded step serves all."""
        n, first = whole("n", n, 0), whole("first", first, 0)
        condition = self._condition(condition, torch.arange(first, first + n), seed, labels)
        process, runner = self.process.with_sampling(**sampling), self.runner(execution)
        size = runner.size(n)
        numbers = torch.arange(first, first + size, device=self.device)
        noise = SeededNoise(seed, numbers * 0 if same_noise else numbers, self.config.shape)
        step = runner.recorded(reverse_step(process, self._guided(runner, guidance), noise), size)
        with progress_bar(
            total=n, desc="sampling", unit=self.config.domain.noun, disable=not execution.progress
        ) as bar:
            for done in range(0, n, size):
                count = min(size, n - done)
                told = None if condition is None else _padded(condition[done : done + size], size).to(self.device)
                with runner.advice(size):
                    starts = self.noise(numbers * 0, seed) if same_start else self.noise(numbers, seed, told)
                    images = last(chain(process, step, process.start(starts), process.levels(), told))
                yield images[:count].clamp(0, 1)
                bar.update(count)
                numbers += size  # in place: the recorded step reads these very numbers

    def told(self, numbers: Tensor, seed: int = 0, labels: Given | None = None) -> Tensor | None:
        """The labels of the images with the given numbers, as in `sample`; None if the model knows none."""
        known = self.config.labels
        if labels is None:
            return known.drawn(SeededNoise(seed, numbers, self.config.shape)) if known else None
        if not known:
            raise UsageError("the model knows no labels, so none can be asked for; train one with data.labels=true")
        return known.numbers(labels, len(numbers))

    def _condition(
        self, given: Tensor | None, numbers: Tensor, seed: int = 0, labels: Given | None = None
    ) -> Tensor | None:
        """What the network is told about the images with the given numbers: a condition, checked, or else `told`."""
        if given is None:
            return self.told(numbers, seed, labels)
        if labels is not None:
            raise UsageError("give labels or a condition, not both: a condition takes the place of labels")
        if given.shape[:1] != numbers.shape:
            raise UsageError(
                f"a condition has one row for each of the {len(numbers)} images, and this one has the shape "
                f"{tuple(given.shape)}"
            )
        return self.config.labels.numbers(given, len(numbers)) if self.config.labels else given

    def guidance(self, given: float | None = None) -> float:
        """The strength of guidance, by default the model's own. One that is invalid or has no effect is refused."""
        guidance = self.config.guidance if given is None else given
        if not isinstance(guidance, Real) or isinstance(guidance, bool) or not 0 <= guidance <= MOST_GUIDANCE:
            raise UsageError(
                f"guidance is a number from 0 to {MOST_GUIDANCE}, where 1 is the network's own answer; not {guidance}"
            )
        if guidance != 1 and not self.config.labels and self.guide is None:
            raise UsageError(
                "guidance needs labels to guide towards (data.labels=true in training) or a weaker network to guide "
                "away from (ihdm guide), and the model has neither"
            )
        return float(guidance)

    def _guided(self, runner: Runner, given: float | None) -> Any:
        guidance = self.guidance(given)
        if self.guide is None or guidance == 1:
            return guided(runner.network, guidance, self.config.labels.none)
        return beyond(runner.network, runner.beside(self.guide), guidance)

    def guided_by(self, weaker: Model, guidance: float) -> Model:
        """The same model, with samples guided away from what the network of a weaker model answers.

        Both must have the same process and the same training data, as far as the process remembers them.
        """
        check_weaker(self.config, weaker.config)
        check_same_data(self.process, weaker.process)
        model = self.sampled()
        model.config = replace(self.config, guide=weaker.config.network, guidance=guidance)
        model.guide = copy.deepcopy(weaker.network).to(next(self.network.parameters()))
        model.config = replace(model.config, guidance=model.guidance())
        return model

    def guided_like(self, folder: Path) -> Model:
        """The same model, with the weaker network and the guidance of the model in a folder, if that has any."""
        config = read_config(folder)
        model = self.sampled()
        model.config = replace(self.config, guide=config.guide, guidance=config.guidance)
        model.guide = read_guide(folder, config)
        return model

    def runner(self, execution: Execution = USUAL) -> Runner:
        """The network as it is now, ready to compute."""
        return Runner(self.network, self.config, execution)

    def trajectory(
        self,
        n: int,
        seed: int = 0,
        *,
        same_start: bool = False,
        same_noise: bool = False,
        labels: Given | None = None,
        guidance: float | None = None,
        condition: Tensor | None = None,
        execution: Execution = USUAL,
        **sampling: Any,
    ) -> States:
        """(k, u_k), k from K to 0: the path to the images that `sample` returns, in one batch, on the CPU."""
        n = whole("n", n, 0)
        condition = self._condition(condition, torch.arange(n), seed, labels)
        numbers = torch.arange(n, device=self.device)
        noise = SeededNoise(seed, numbers * 0 if same_noise else numbers, self.config.shape)
        u_K = self.start(numbers * 0 if same_start else numbers, seed, None if same_start else condition, **sampling)
        options: dict[str, Any] = {"guidance": guidance, "condition": condition, "execution": execution}
        for k, u in self.path(u_K, noise, **options, **sampling):
            yield k, u.clamp(0, 1).cpu()

    def start(self, numbers: Tensor, seed: int = 0, told: Tensor | None = None, **sampling: Any) -> Tensor:
        """u_K of the images with the given numbers, drawn from the prior. Equal numbers give equal starts.

        told: their labels. Then starts are drawn from training images with the same labels.
        """
        told = None if told is None else self._condition(told, numbers)
        return self.process.with_sampling(**sampling).start(self.noise(numbers, seed, told))

    def noise(self, numbers: Tensor, seed: int = 0, told: Tensor | None = None) -> SeededNoise:
        """The noise of the images with the given numbers. told: their labels, by which starts are chosen."""
        if told is None or self.start_labels is None:
            return SeededNoise(seed, numbers, self.config.shape)
        return LabelledNoise(
            seed, numbers, self.config.shape, told.to(numbers.device), self.start_labels.to(numbers.device)
        )

    def path(
        self,
        start: Tensor,
        noise: Noise,
        *,
        level: int | None = None,
        labels: Given | None = None,
        guidance: float | None = None,
        condition: Tensor | None = None,
        execution: Execution = USUAL,
        **sampling: Any,
    ) -> States:
        """(k, u_k), k from a level (by default K) to 0, from any state and with any noise, on the model's device.

        Without labels none are drawn, because the numbers of the images are not known here.
        """
        process, runner = self.process.with_sampling(**sampling), self.runner(execution)
        if condition is not None or labels is not None:
            condition = self._condition(condition, torch.arange(len(start)), labels=labels)
        told = None if condition is None else condition.to(self.device)
        step = runner.recorded(reverse_step(process, self._guided(runner, guidance), noise), len(start))
        return chain(process, step, start, process.levels(level), told)

    def restorer(self, execution: Execution = USUAL) -> Restorer:
        """The model, put to work on blurred images."""
        return Restorer(self, execution)

    def restore(
        self,
        image: Picture,
        n: int = 8,
        seed: int = 0,
        *,
        blur_width: float | None = None,
        consistent: bool = True,
        execution: Execution = USUAL,
        **sampling: Any,
    ) -> Restored:
        """n sharp images that a blurred one (C, H, W) in [0, 1], a tensor or a NumPy array, may come from.

        Sample i depends on the seed and i alone. blur_width: in pixels; None: estimated. consistent: hold the samples
        to the image, so that they look like it when they are blurred again; otherwise they only start from it. Unless
        `sampling` says otherwise, samples are made as the process restores best, however the model samples.
        """
        options: dict[str, Any] = {"blur_width": blur_width, "consistent": consistent} | sampling
        return self.restorer(execution).restore(image, n, seed, **options)

    def save_pretrained(self, folder: str | Path, dtype: torch.dtype = torch.float32) -> None:
        """Write a model folder, replacing the files of an earlier one. dtype: of the network's weights."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_weights(folder, self.network, self.process, self.start_labels, dtype)
        write_tensors(folder / GUIDE, {} if self.guide is None else weights_of(self.guide, dtype))
        write_tensors(folder / FAMILIAR, {} if self.familiar is None else self.familiar.tensors())
        write_tensors(folder / READER, {} if self.reader is None else self.reader.tensors())
        write_config(folder, self.config)
        (folder / CARD).write_text(card(self.config, self.facts()), encoding="utf-8")

    def file_names(self) -> list[str]:
        """The files that the model's folder must have."""
        prior = [PRIOR] if with_prefix(self.process.state(), OF_PRIOR) else []
        domain, guide = self.config.domain.state(), self.guide is not None
        return [CONFIG, WEIGHTS, *prior, *([DOMAIN] if domain else []), *([GUIDE] if guide else [])]

    def facts(self) -> dict[str, str]:
        """What the model is, as rows of words."""
        config = self.config
        return {
            "network": f"{_size(self.network)} parameters (averaged weights)",
            "process": self.process.summary(config.process, config.sampling, config.domain),
            "sampling": self.process.sampling_words(),
            **({"guidance": self.guidance_words()} if self.guide is not None else {}),
            **({"labels": config.labels.words} if config.labels else {}),
        } | self.process.facts()

    def guidance_words(self) -> str:
        return f"{self.config.guidance:g}, away from a weaker network of {_size(self.guide)} parameters"

    @classmethod
    def from_pretrained(cls, name: str | Path, revision: str | None = None, guided: bool = True) -> Model:
        """Read a model folder, or download a model from the Hugging Face hub by its name, owner/model.

        revision: of the model on the hub. guided: load its weaker network too, if it has one.
        """
        folder = locate(name, revision)
        while True:
            found = identity(folder)
            try:
                return cls._read(folder, guided)
            except IhdmError:
                if identity(folder) == found:
                    raise  # else training has just replaced it

    @classmethod
    def _read(cls, folder: Path, guided: bool) -> Model:
        config = read_config(folder, guided)
        with torch.random.fork_rng(devices=[]):  # networks draw their weights before they are read
            network, process, labels = read_weights(folder, config)
            model = cls(config, process, network, labels)
            model.guide = read_guide(folder, config)
            model.familiar = read_calibrated(folder / FAMILIAR, Familiar.of)
            model.reader = read_calibrated(folder / READER, partial(WidthReader.of, shape=config.shape))
        return model


def _size(network: nn.Module | None) -> str:
    return f"{sum(weights.numel() for weights in network.parameters()):,}" if network else "no"


def _padded(condition: Tensor, size: int) -> Tensor:
    """A condition for a whole batch. Its last row is repeated for images that are computed but not wanted."""
    return condition[torch.arange(size).clamp_max(len(condition) - 1)]
