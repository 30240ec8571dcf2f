"""A model put to work on blurred images: what they were blurred by, and which sharp images they may come from."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ihdm.domains.domain import by
from ihdm.errors import UsageError
from ihdm.execution import USUAL, Execution
from ihdm.familiar import Familiar, Verdict
from ihdm.judgement import Judge
from ihdm.noise import SeededNoise
from ihdm.processes import Process, restoring
from ihdm.processes.linear import LEAST_SIGMA
from ihdm.progress import progress_bar
from ihdm.restoration import Guided, Observation, Restored, observe
from ihdm.sampler import States, chain, last, reverse_step
from ihdm.settings import whole

if TYPE_CHECKING:
    from ihdm.model import Model

JUDGED_AT_A_TIME = 512  # images, if memory allows

Picture = Tensor | np.ndarray[Any, Any]  # or other data of the model's domain


@dataclass(frozen=True)
class Restorer:
    """What a model can say about blurred images. A process that cannot restore is refused."""

    model: Model = field(repr=False)
    execution: Execution = USUAL

    def process(self, **sampling: Any) -> Process:
        """The process as it restores best, however the model samples; `sampling` changes that."""
        own = self.model.process
        return own.with_sampling(**restoring(own).restored_by).with_sampling(**sampling)

    def judge(self) -> Judge:
        """The network as a judge of blurs and images, by exact steps, which a model without noise lacks."""
        blurs = restoring(self.model.process)
        if blurs.sigma < LEAST_SIGMA:
            raise UsageError(
                "a model without noise (process.sigma below 1e-6) cannot judge images: restoring needs the width of "
                "the blur (--blur-width, or blur_width in Python), and calibrating needs a model with noise"
            )
        model, runner, quickly = self.model, self.model.runner(self.execution), blurs.judged_by
        few = {"steps": min(quickly["steps"], model.process.K)} if "steps" in quickly else {}
        process = model.process.with_sampling(**quickly | few)
        size = runner.size(JUDGED_AT_A_TIME)
        reader = copy.deepcopy(model.reader).float() if model.reader else None  # whatever its weights are kept in
        return Judge(process, runner.network, model.config.domain, model.device, size, reader)

    def observation(self, image: Picture, blur_width: float | None = None) -> Observation:
        """What a blurred image (C, H, W) in [0, 1] says.

        blur_width: in pixels; None: estimated from the image's spectrum.
        """
        domain = self.model.config.domain
        u = _as_tensor(image)
        if u is None or tuple(u.shape) != tuple(domain.shape):
            raise UsageError(
                f"the model restores {domain.noun}s of {by(domain.shape)} (channels first), floating point in [0, 1], "
                f"as a tensor or a NumPy array, not {_words(image)}"
            )
        return observe(restoring(self.model.process), u, blur_width, domain)

    def settled(self, image: Picture, blur_width: float | None = None) -> Observation:
        """The same, but a width that is not given is read off the image, or chosen by what restoring with it gives."""
        seen = self.observation(image, blur_width)
        return seen if blur_width is not None or not seen.level else self.judge().observe(seen.image)

    def verdict(self, seen: Observation) -> Verdict:
        """Whether a blurred image looks like those that the model knows."""
        if self.familiar is None:
            return Verdict(None, noun=self.model.config.domain.noun, outdated=self.model.familiar is not None)
        return self.judge().verdict(self.familiar, seen)

    @property
    def familiar(self) -> Familiar | None:
        """What the model was calibrated to, unless it was trained further since."""
        found = self.model.familiar
        return found if found is not None and found.is_of(self.model.config.steps) else None

    def states(
        self, seen: Observation, n: int = 8, seed: int = 0, *, consistent: bool = True, first: int = 0, **sampling: Any
    ) -> States:
        """(k, u_k), k from the level of what is seen to 0, on the model's device, for samples `first` to first + n - 1.

        consistent: hold each step to the image, so that samples look like it when they are blurred again. sampling: of
        the process.
        """
        model, process = self.model, self.process(**sampling)
        blurs = restoring(process)
        noise = SeededNoise(seed, torch.arange(first, first + n, device=model.device), model.config.shape)
        start = seen.start(blurs, noise(process.K + 1))
        held = blurs.guided(Guided(blurs, seen)) if consistent else process
        runner = model.runner(self.execution)
        step = runner.recorded(reverse_step(held, runner.network, noise), n)
        return chain(held, step, start, held.levels(seen.level))

    def restore(
        self, image: Picture, n: int = 8, seed: int = 0, *, blur_width: float | None = None, **options: Any
    ) -> Restored:
        """n sharp images that the blurred one may come from, in batches that fit into memory. options: of `states`."""
        n = whole("n", n, 1)
        runner, noun = self.model.runner(self.execution), self.model.config.domain.noun
        seen = self.settled(image, blur_width)
        size, images = runner.size(n), []
        with progress_bar(total=n, desc="restoring", unit=noun, disable=not self.execution.progress) as bar:
            for first in range(0, n, size):
                count = min(size, n - first)
                with runner.advice(size):
                    images.append(last(self.states(seen, count, seed, first=first, **options)).clamp(0, 1).cpu())
                bar.update(count)
        return Restored(torch.cat(images), seen)


def _as_tensor(image: Any) -> Tensor | None:
    """A tensor or an array of floating point numbers as a tensor; None for anything else."""
    if isinstance(image, np.ndarray) and image.dtype.kind == "f":
        return torch.from_numpy(np.array(image, np.float64, order="C"))  # any layout and byte order
    return image if isinstance(image, Tensor) and image.is_floating_point() else None


def _words(image: Any) -> str:
    """What was given instead of an image."""
    if isinstance(image, Tensor | np.ndarray):
        return f"{image.dtype} of {by(image.shape)}"
    return type(image).__name__ + " (ihdm restore reads files)" * isinstance(image, str | Path)
