"""What a process is: how images are destroyed, and how a network is used to make them again.

A process is one file: a subclass of `Process` with its settings beside it, and a line in the registry
(docs/your-own-process.md). Each ability that not every process has is a protocol.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from ihdm.errors import UsageError
from ihdm.noise import InterpolatedNoise, SeededNoise
from ihdm.settings import setting, updated, words

if TYPE_CHECKING:
    from typing_extensions import Self

    from ihdm.basis import Laplacian
    from ihdm.domains import Domain
    from ihdm.likelihood import Bounding
    from ihdm.prior import Prior
    from ihdm.processes.spectrum import Spectrum
    from ihdm.restoration import Hold
    from ihdm.schedule import Schedule

Network = Callable[[Tensor, Tensor], Tensor]  # takes states and their levels; a condition has already been given to it
Batches = Callable[[int | None, str], Iterable[Tensor]]  # at most so many training images in [0, 1]; what for, in words


@dataclass(frozen=True)
class Steps:
    """How to sample, for processes in which only the number of steps can be chosen."""

    steps: int | None = setting(
        None, "steps from blank to sharp, at most one per level; auto: one per level", least=1, most=100_000
    )


class Process(ABC):
    """Levels 0..K, from the image (0) to the blank (K); q(u_k | u_0), and steps from level k to any level j < k.

    States are (B, C, *grid), with images in [0, 1]. Levels are (B,), one per sample; `noised` and `step` also
    take one for all.
    """

    Settings: ClassVar[type]
    Sampling: ClassVar[type] = Steps
    title: ClassVar[str] = "a process"  # in the middle of a sentence
    grown: ClassVar[str] = "made step by step"  # said of its images
    method: ClassVar[str] = ""  # what to cite
    samplers: ClassVar[Mapping[str, tuple[str, ...]]] = {}  # those to choose from, each with the settings only it has

    K: int
    sampling: Any

    @classmethod  # noqa: B027 -- there may be nothing to refuse
    def check(cls, settings: Any, sampling: Any) -> None:
        """Refuse settings that are valid one by one but not together."""

    @classmethod
    def from_images(cls, settings: Any, sampling: Any, domain: Domain, batches: Batches) -> Self:
        """The process for training images, from which it may learn something that it keeps in its state."""
        return cls.from_state(settings, sampling, domain, {})

    @classmethod
    def from_state(cls, settings: Any, sampling: Any, domain: Domain, state: Mapping[str, Tensor]) -> Self:
        """The process as it was saved; ValueError if the state does not belong to it."""
        fitting(state, {})
        return cls(settings, sampling, domain)  # type: ignore[call-arg]

    def state(self) -> dict[str, Tensor]:
        """What is saved with the weights. Names that begin with "prior." have a file of their own."""
        return {}

    @classmethod
    def summary(cls, settings: Any, sampling: Any, domain: Domain) -> str:
        """The process in a line, for the card and `ihdm info`."""
        return ", ".join([cls.title, *words(settings)])

    @classmethod
    def remarks(cls, settings: Any, domain: Domain) -> list[str]:
        """Notes and warnings to show before training on such data."""
        return []

    @classmethod
    def predicts_alone(cls, settings: Any) -> bool:
        """Whether, without the network, it predicts coefficients that are only noise as well as is possible."""
        return getattr(settings, "skip", None) == "linear"

    def signal_to_noise(self, k: int) -> Tensor | None:
        """alpha_k^2 P / sigma_k^2 of each coefficient, (*grid), the largest over the channels; None if unknown."""
        return None

    @property
    def noisy(self) -> bool:
        """Whether noise is added on the way; otherwise the start decides everything."""
        return True

    def facts(self) -> dict[str, str]:
        """What it has learned from the training images, for the card and `ihdm info`."""
        return {}

    def with_sampling(self, **changes: Any) -> Self:
        """The same process, sampled in another way; settings that it does not have are refused."""
        if not changes:
            return self
        changes = self.with_sampler(self.sampling, changes)
        sampling = updated(self.sampling, changes, "sampling.", f"sampling by {self.title}")
        if "steps" in changes and (sampling.steps or 0) > self.K:
            raise UsageError(f"sampling takes at most {self.K} steps, one for each level, not {sampling.steps}")
        other = copy.copy(self)
        object.__setattr__(other, "sampling", sampling)
        other.levels()  # refuses impossible settings
        return other

    @classmethod
    def with_sampler(cls, sampling: Any, changes: dict[str, Any]) -> dict[str, Any]:
        """The changes with the sampler that they imply: a setting that only one sampler has chooses that sampler."""
        if not cls.samplers or not changes:
            return changes
        implied = [sampler for sampler, own in cls.samplers.items() if set(own) & set(changes)]
        sampler = changes.get("sampler", implied[0] if implied else sampling.sampler)
        for other in implied:
            if other != sampler:
                names = ", ".join(name for name in cls.samplers[other] if name in changes)
                raise UsageError(f"{names} is for the sampler {other!r}, not for {sampler!r}")
        return changes | {"sampler": sampler}

    def levels(self, top: int | None = None) -> list[int]:
        """The levels of a chain from `top` (default K) to 0, both included, as evenly spaced as possible."""
        top, steps = self.K if top is None else top, self.sampling.steps
        if not 0 <= top <= self.K:
            raise UsageError(f"the model has levels 0 to {self.K}, not {top}")
        return evenly(top, 0, top if steps is None else min(steps, top))

    def draw(self, shape: Sequence[int], generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """A level, (B,), and standard normal noise eps for each image of a batch of shape (B, C, *grid).

        Each level is uniform on 1..K; within a batch they are evenly spread, which makes the mean loss less noisy.
        """
        start = torch.rand((), generator=generator, device=generator.device)
        spread = torch.arange(shape[0], device=generator.device) / shape[0]
        k = 1 + ((start + spread) % 1 * self.K).long().clamp_max(self.K - 1)
        return k, torch.randn(tuple(shape), generator=generator, device=generator.device)

    @abstractmethod
    def noised(self, u_0: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        """The state at level k of each image, made from the noise eps."""

    @abstractmethod
    def loss(self, network: Network, u_0: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        """What training minimises, one number for each image."""

    def losses(self, network: Network, u_0: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        """The same, for which a process that gives anything else is refused: sums would hide it."""
        found = self.loss(network, u_0, k, eps)
        if found.shape != k.shape:
            raise UsageError(
                f"the loss of {type(self).__name__} is one number for each image, (B,), and for {len(k)} images it has "
                f"the shape {tuple(found.shape)}"
            )
        return found

    @abstractmethod
    def step(self, network: Network, u_k: Tensor, k: Tensor, j: Tensor, eps: Tensor) -> Tensor:
        """From level k to level j < k, with noise eps."""

    @abstractmethod
    def start(self, noise: SeededNoise | InterpolatedNoise) -> Tensor:
        """u_K, drawn from the prior: `noise.choice` picks whatever is to be picked, `noise(K + 1)` is its noise."""

    def between(self, one: SeededNoise, other: SeededNoise, weight: Tensor) -> Tensor:
        """u_K from one start (weight 0) to another (weight 1)."""
        return self.start(InterpolatedNoise(one, other, weight))

    def begin(self, u: Tensor) -> Tensor:
        """What is passed along a chain that starts at u: u alone, unless steps use the one before."""
        return u

    def advance(self, network: Network, state: Tensor, k: Tensor, j: Tensor, i: Tensor, eps: Tensor) -> Tensor:
        """One step of a chain. i: the level before k, or k itself in the first step."""
        return self.step(network, state, k, j, eps)

    def shown(self, state: Tensor) -> Tensor:
        """u, from what is passed along a chain."""
        return state

    def level_words(self, k: int) -> str:
        """What a state of level k looks like."""
        return f"level {k} of {self.K}"

    def sampling_words(self) -> str:
        """How samples are made, in words."""
        others = (word for word in words(self.sampling) if not word.startswith("steps "))
        return ", ".join([f"{len(self.levels()) - 1} steps", *others])


@runtime_checkable
class Bounded(Protocol):
    """A process that bounds the likelihood of images."""

    def bounding(self, **options: Any) -> Bounding: ...


@runtime_checkable
class Restoring(Protocol):
    """A process of blur that can start from a blurred image and be held to it."""

    laplacian: Laplacian
    schedule: Schedule
    sigma: float
    spectra: tuple[Spectrum, ...]

    restored_by: dict[str, Any]  # how to sample when restoring, unless told otherwise
    judged_by: dict[str, Any]  # how to restore quickly, to judge a blur by the result

    @property
    def start_noise(self) -> float: ...

    def guided(self, hold: Hold) -> Process: ...

    def surprise(self, network: Network, u_0: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        """How badly the network predicts each image from level k: the term of that level in the image's bound."""
        ...


@runtime_checkable
class FromImages(Protocol):
    """A process that starts from training images of which little is left."""

    prior: Prior

    def near(self, index: Tensor, eps: Tensor) -> Tensor: ...


def bounded(process: Process) -> Bounded:
    """The process, if it bounds likelihoods; otherwise a UsageError."""
    if not isinstance(process, Bounded):
        raise UsageError(f"{process.title} has no likelihood")
    return process


def restoring(process: Process) -> Restoring:
    """The process, if it can restore images; otherwise a UsageError."""
    if not isinstance(process, Restoring):
        raise UsageError(
            f"{process.title} cannot restore what is blurred; inverse heat dissipation can, as in mnist-ready"
        )
    if not process.spectra:
        raise UsageError("restoring needs a model of the heat equation (process.blur=heat)")
    return process


def evenly(top: int, bottom: int, steps: int) -> list[int]:
    """Levels from one to another, both included, as evenly spaced as possible."""
    return [top - round(n * (top - bottom) / steps) for n in range(steps)] + [bottom]


def fitting(state: Mapping[str, Tensor], expected: Mapping[str, tuple[int | None, ...]]) -> None:
    """Refuse a state that does not have exactly the expected floating-point tensors; None in a shape is any number."""
    for name in expected:
        if name not in state:
            raise ValueError(f"{name} is missing")
    for name, tensor in state.items():
        if name not in expected:
            raise ValueError(f"{name} is not expected")
        shape = expected[name]
        wrong = len(shape) != tensor.ndim or any(n is not None and n != m for n, m in zip(shape, tensor.shape))
        if not wrong and tensor.is_floating_point() and not tensor.isfinite().all():
            raise ValueError(f"{name} has values that are not numbers")
        if wrong or not tensor.is_floating_point():
            words = "x".join("any" if n is None else str(n) for n in shape)
            raise ValueError(
                f"{name} is {tensor.dtype} of shape {tuple(tensor.shape)}, not floating point of shape {words}"
            )
