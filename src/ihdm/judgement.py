"""What a trained network adds to restoring: which of several blurs gives plausible images, and whether it knows such.

Both rest on the terms of the exact bound (docs/exact-steps.md) of restored images: how much the network is surprised.
An image restored with too narrow a width stays blurred, which surprises it; one with too large a width leaves [0, 1],
and clamped and blurred again it is no longer the image that was given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ihdm.blurs import COMMONEST
from ihdm.likelihood import ROUNDING
from ihdm.noise import SeededNoise
from ihdm.processes import Network, Process, Restoring, restoring
from ihdm.restoration import HOPELESS, Guess, Guided, Observation, likely, observation, within
from ihdm.sampler import chain, last, reverse_step

TRIED = 3  # kinds of blur that are restored, if they are likely enough
VERSIONS = 2  # restored of each width, at last
NEAR, NEARER = 0.03, 0.01  # relative distances of neighbouring widths, at first and at last
ALIKE = 0.5  # nats between two kinds of blur that are the same in effect
ROUNDS = 4  # as often a search may go on from the edge of what it has tried
LEVELS = 5  # to be surprised at, from the second to that of the blur
WIDE = 0.02  # an interval of widths is taken to be no wider than this, relatively, on either side
ALLOWED = 0.05  # how much worse than the best the score of a width in the interval may be (docs/studies/restore.md)
SHARES = (0.08, 0.16, 0.28, 0.4, 0.52, 0.64, 0.76, 0.92)  # levels, as shares of K, at which images are to be known
UNUSUAL = 0.05  # of images held out from training, called unlike what the model knows
LEAST_SURPRISE, LEAST_VARIANCE = 1e-9, 1e-5
GROUPS = 12  # levels of blur to calibrate at
BLURRED = 0.7  # of the levels are for images that can be restored; beyond, too little is left of them
ALMOST_NONE = "less than 1% of the images held out from training are as unusual"


@dataclass(frozen=True)
class Judge:
    """A process that restores, its network, and how many images it computes at a time."""

    process: Process
    network: Network
    shape: tuple[int, int, int]
    device: torch.device
    at_a_time: int

    @property
    def blurs(self) -> Restoring:
        return restoring(self.process)

    @torch.no_grad()
    def restored(self, seen: Sequence[Observation], versions: int = 1) -> Tensor:
        """Versions of each, (observations, versions, C, H, W), by a few exact steps from the level of the first."""
        found = []
        jobs = [(one, number) for one in seen for number in range(versions)]
        for first in range(0, len(jobs), self.at_a_time):
            some = jobs[first : first + self.at_a_time]
            numbers = torch.tensor([number for _, number in some], device=self.device)
            noise = SeededNoise(0, numbers, self.shape)
            eps = noise(self.process.K + 1)
            start = torch.cat([one.start(self.blurs, e[None]) for (one, _), e in zip(some, eps)])
            guided = self.blurs.guided(Guided(self.blurs, *(one for one, _ in some)))
            levels = guided.levels(seen[0].level)
            found.append(last(chain(guided, reverse_step(guided, self.network, noise), start, levels)).clamp(0, 1))
        return torch.cat(found).unflatten(0, (len(seen), versions))

    @torch.no_grad()
    def surprise(self, u_0: Tensor, levels: Sequence[int]) -> Tensor:
        """Terms of the bound of sharp images (B, C, H, W) at some levels, (B, levels), on the CPU."""
        columns = []
        for k in levels:
            parts = []
            for some in u_0.split(self.at_a_time):
                alike = torch.zeros(len(some), dtype=torch.long, device=self.device)
                noise = SeededNoise(1, alike, self.shape)(alike + k)
                parts.append(self.blurs.surprise(self.network, some.to(self.device), alike + k, noise).double().cpu())
            columns.append(torch.cat(parts))
        return torch.stack(columns, 1)

    def scores(self, seen: Sequence[Observation], versions: int) -> Tensor:
        """How implausible each observation's blur is: log of surprise, and half the log of what it leaves unexplained.

        Larger widths make images sharper, which surprises less, and leave more unexplained. The weight of the two was
        found on digits; with it the best width is the true one, without bias.
        """
        images, top = self.restored(seen, versions), max(2, seen[0].level)
        levels = sorted({round(2 + i * (top - 2) / (LEVELS - 1)) for i in range(LEVELS)})
        surprise = self.surprise(images.flatten(0, 1), levels).sum(1).log().unflatten(0, (len(seen), versions))
        rest = [[max(one.residual(image[None]), ROUNDING) for image in some] for one, some in zip(seen, images)]
        return (surprise + torch.tensor(rest).double().log() / 2).mean(1)

    def observe(self, image: Tensor) -> Observation:
        """What a blurred image (C, H, W), float64, says with the most plausible blur; its interval of widths."""
        guesses = likely(self.blurs, image)
        best = guesses[0]
        start = observation(self.blurs, image, best)
        if not start.level:
            return start
        tried = [self._searched(image, replace(g, spectrum=best.spectrum), start.level) for g in hopeful(guesses)]
        guess = min(tried, key=lambda pair: pair[0])[1]
        for _ in range(ROUNDS):
            x, half, _ = vertex(*self._around(image, guess, start.level, NEARER, 2, VERSIONS))
            guess = replace(guess, width=within(self.blurs, guess.width * math.exp(x)))
            if abs(x) < 2 * NEARER:
                break
        low, high = (within(self.blurs, guess.width * math.exp(sign * half)) for sign in (-1, 1))
        return replace(observation(self.blurs, image, guess, half / 2), interval=(low, high))

    def _searched(self, image: Tensor, guess: Guess, level: int) -> tuple[float, Guess]:
        """The best score of widths around a guess, and that width."""
        for _ in range(ROUNDS):
            x, scores = self._around(image, guess, level, NEAR, 2, 1)
            i = int(scores.argmin())
            guess = replace(guess, width=within(self.blurs, guess.width * math.exp(float(x[i]))))
            if 0 < i < len(x) - 1:
                break
        x, scores = self._around(image, guess, level, NEAR / 2, 1, VERSIONS)
        at, _, score = vertex(x, scores)
        return score, replace(guess, width=within(self.blurs, guess.width * math.exp(at)))

    def _around(
        self, image: Tensor, guess: Guess, level: int, step: float, count: int, versions: int
    ) -> tuple[Tensor, Tensor]:
        """Logarithms of ratios of widths around a guess, a count on either side, and their scores."""
        x = step * torch.arange(-count, count + 1).double()
        widths = [within(self.blurs, guess.width * math.exp(ratio)) for ratio in x.tolist()]
        seen = [observation(self.blurs, image, replace(guess, width=width)) for width in widths]
        return x, self.scores([replace(one, level=level) for one in seen], versions)

    def verdict(self, familiar: Familiar | None, seen: Observation, negative: bool = True) -> Verdict:
        """Whether an image, as it is restored, is like those that the model was calibrated on, or its negative is."""
        if familiar is None:
            return Verdict(None)
        share = familiar.share(self.features(seen)[0], seen.level / self.process.K)
        if share >= UNUSUAL or not negative:
            return Verdict(share)
        image = 1 - seen.image
        told = None if seen.interval else observation(self.blurs, image, likely(self.blurs, image, seen.width)[0])
        other = told or self.observe(image)
        fits = familiar.share(self.features(other)[0], other.level / self.process.K) >= UNUSUAL
        return Verdict(share, fits)

    def features(self, *seen: Observation) -> Tensor:
        """What is to be compared with images that the model knows, of observations of one level, (observations, F).

        The log of surprise at several levels, the mean over restored versions; contrast and brightness of what is seen.
        """
        given = torch.stack([one.image for one in seen])
        images = self.restored(seen, VERSIONS) if seen[0].level else given.float()[:, None]
        levels = sorted({max(1, round(share * self.process.K)) for share in SHARES})
        surprise = self.surprise(images.flatten(0, 1), levels).clamp_min(LEAST_SURPRISE)
        light = given.flatten(1)
        contrast = (light.std(1) + ROUNDING).log()
        return torch.cat(
            [surprise.log().unflatten(0, (len(seen), -1)).mean(1), torch.stack([contrast, light.mean(1)], 1)], 1
        )


def hopeful(guesses: Sequence[Guess]) -> list[Guess]:
    """The likeliest few, the likeliest first, and the two commonest kinds of blur however unlikely they are.

    Without those that are the same in effect, such as two borders around a black margin.
    """
    found: list[Guess] = []
    for guess in guesses:
        likely_enough = guess.log_likelihood > guesses[0].log_likelihood - HOPELESS and len(found) < TRIED
        alike = any(abs(guess.log_likelihood - other.log_likelihood) < ALIKE for other in found)
        if (likely_enough or guess.kind in COMMONEST) and not alike:
            found.append(guess)
    return found


def vertex(x: Tensor, scores: Tensor) -> tuple[float, float, float]:
    """Where a parabola through scores is lowest, how far from there it is higher by ALLOWED, and how low it is."""
    columns = torch.stack([torch.ones_like(x), x, x.square()], 1)
    level, slope, curvature = torch.linalg.lstsq(columns, scores[:, None]).solution[:, 0].tolist()
    edge = 1.5 * float(x.abs().max())
    if curvature <= 0:  # no valley here: on to the better side
        return (edge if slope < 0 else -edge), WIDE, float(scores.min())
    at = max(-edge, min(edge, -slope / (2 * curvature)))
    return at, min(WIDE, math.sqrt(ALLOWED / curvature)), level + slope * at + curvature * at**2


@dataclass(frozen=True)
class Familiar:
    """What restored images look like to the model, as calibrated on images held out from training.

    mean: rows of features, their mean at level 0 of the blur and its change up to level K; precision: the inverse of
    their covariance; quantiles: of squared distances of other held-out images, evenly spaced.
    """

    mean: list[list[float]]
    precision: list[list[float]]
    quantiles: list[float]

    @classmethod
    def calibrated(cls, features: Tensor, levels: Tensor) -> Familiar:
        """From features (N, F), and the levels of the images as shares of K. Half of them give the quantiles."""
        design = torch.stack([torch.ones_like(levels), levels], 1)
        fit, rest = slice(0, None, 2), slice(1, None, 2)
        mean = torch.linalg.lstsq(design[fit], features[fit]).solution
        deviation = features[fit] - design[fit] @ mean
        covariance = deviation.mT @ deviation / len(deviation) + LEAST_VARIANCE * torch.eye(len(mean[0])).double()
        found = cls(mean.tolist(), torch.linalg.inv(covariance).tolist(), [])
        distances = torch.tensor([found.distance(f, float(level)) for f, level in zip(features[rest], levels[rest])])
        quantiles = distances.double().quantile(torch.linspace(0, 1, 101).double()).tolist()
        return replace(found, quantiles=quantiles)

    def distance(self, features: Tensor, level: float) -> float:
        """Mahalanobis's, squared."""
        mean, precision = torch.tensor(self.mean).double(), torch.tensor(self.precision).double()
        deviation = features - mean[0] - level * mean[1]
        return float(deviation @ precision @ deviation)

    def share(self, features: Tensor, level: float) -> float:
        """The share of held-out images that are as unusual as this one, or more."""
        distance = self.distance(features, level)
        return sum(quantile >= distance for quantile in self.quantiles) / len(self.quantiles)

    def tree(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, tree: Any) -> Familiar:
        """From what `tree` gave; ValueError if it is something else."""
        found = cls(**tree)
        n = len(found.precision)
        rows = [*found.mean, *found.precision]
        fits = len(found.mean) == 2 and len(found.quantiles) > 1 and all(len(row) == n for row in rows)
        if not fits or not all(math.isfinite(number) for row in (*rows, found.quantiles) for number in row):
            raise ValueError("mean, precision and quantiles do not belong together")
        return found


@dataclass(frozen=True)
class Verdict:
    """Whether a model knows such images; inverted: whether it knows the negative.

    share: of the images held out from training, how many are as unusual; None: that is unknown.
    """

    share: float | None
    inverted: bool = False

    @property
    def unusual(self) -> bool:
        return self.share is not None and self.share < UNUSUAL

    @property
    def words(self) -> str:
        if self.share is None:
            return "whether the model knows such images is not known: it was not calibrated (ihdm calibrate)"
        as_unusual = f"{self.share:.0%} of the images held out from training are as unusual"
        if self.unusual:
            return f"this does not look like what the model knows: {as_unusual if self.share >= 0.01 else ALMOST_NONE}"
        return f"this looks like what the model knows: {as_unusual}"


Progress = Callable[[Sequence[Tensor]], Iterable[Tensor]]
Blur = Callable[[Tensor, float], Tensor]  # a uint8 image (C, H, W) and a width: the image blurred, in [0, 1]


def calibrate(judge: Judge, images: Tensor, blurs: Sequence[Blur], progress: Progress = iter) -> Familiar:
    """From sharp held-out images (N, C, H, W), uint8, blurred to several levels, in turns in several ways.

    The width is known, the kind of blur is not.
    """
    K, features, levels = judge.process.K, [], []
    for i, some in enumerate(progress([images[i::GROUPS] for i in range(min(GROUPS, len(images)))])):
        level = 1 + int(i / GROUPS * BLURRED * K)
        width = float(judge.blurs.schedule.sigma_B[level])
        blurred = [blurs[n % len(blurs)](image, width).double() for n, image in enumerate(some)]
        seen = [observation(judge.blurs, y, likely(judge.blurs, y, width)[0]) for y in blurred]
        features.append(judge.features(*(replace(one, spectrum=seen[0].spectrum) for one in seen)))
        levels += [level / K] * len(some)
    order = torch.randperm(len(levels), generator=torch.Generator().manual_seed(0))  # each half has all levels
    return Familiar.calibrated(torch.cat(features)[order], torch.tensor(levels).double()[order])
