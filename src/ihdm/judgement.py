"""What a trained network adds to restoring: which of several blurs gives plausible images, and whether it knows them.

A blur is judged by how much the restored images surprise the network: by the terms of their exact bound
(docs/exact-steps.md). An image restored with too narrow a width stays blurred, which surprises it; one with too large a
width leaves [0, 1], and once clamped and blurred again it is no longer the image that was given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ihdm.blurs import COMMONEST
from ihdm.domains import Domain
from ihdm.engine import Frozen
from ihdm.errors import IhdmError
from ihdm.familiar import UNUSUAL, Familiar, Verdict, overheard
from ihdm.noise import SeededNoise
from ihdm.processes import Process, Restoring, restoring
from ihdm.restoration import DOUBT, HOPELESS, Guess, Guided, Observation, likely, observation, within
from ihdm.sampler import chain, last, reverse_step
from ihdm.width_reader import WidthReader

TRIED = 3  # kinds of blur to restore with, if they are likely enough
VERSIONS = 2  # restored for each width, once the search is close
NEAR, NEARER = 0.03, 0.01  # relative distances between neighbouring widths, at first and at last
ALIKE = 0.5  # nats between two kinds of blur that are the same in effect
UNEXPLAINED = 0.5  # the weight, beside surprise, of what a width leaves unexplained; found on digits
UNLIKELY = 0.006  # added to the score of a kind of blur for each nat that the spectrum finds it less likely
FAR = 0.1  # added to the score of a width that is DOUBT, the spectrum's usual error, off the spectrum's estimate
READABLE = 2  # times the least noise: images with more do not have their width read
ROUNDS = 4  # in which a search may continue from the edge of what it has tried
LEVELS = 5  # at which surprise is measured, from the second to that of the blur
WIDE = 0.03  # the most, relatively, that an interval of widths extends to either side
ALLOWED = 0.11  # how much worse than the best the score of a width in the interval may be (docs/studies/restore.md)
SHARES = (0.3, 0.4, 0.5, 0.6)  # levels, as shares of K, at which features are taken
GROUPS = 12  # levels of blur to calibrate at
BLURRED = 0.7  # the share of the levels to calibrate at; beyond, too little is left of images


@dataclass(frozen=True)
class Judge:
    """A process that restores, its network and domain, how many images it computes at a time, a reader of widths."""

    process: Process
    network: Frozen
    domain: Domain
    device: torch.device
    at_a_time: int
    reader: WidthReader | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.domain.shape

    @property
    def blurs(self) -> Restoring:
        return restoring(self.process)

    @torch.no_grad()
    def restored(self, seen: Sequence[Observation], versions: int = 1) -> Tensor:
        """Restored versions of each, (observations, versions, C, H, W), by few steps from the level of the first."""
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
        """How implausible each observation's blur is: log of surprise, plus part of the log of what stays unexplained.

        Larger widths make images sharper, which surprises the network less, but leave more unexplained.
        """
        images, top = self.restored(seen, versions), max(2, seen[0].level)
        levels = sorted({min(self.process.K, round(2 + i * (top - 2) / (LEVELS - 1))) for i in range(LEVELS)})
        surprise = self.surprise(images.flatten(0, 1), levels).sum(1).log().unflatten(0, (len(seen), versions))
        rest = [
            [max(one.residual(image[None]), self.domain.noises[0]) for image in some] for one, some in zip(seen, images)
        ]
        return (surprise + UNEXPLAINED * torch.tensor(rest).double().log()).mean(1)

    def observe(self, image: Tensor) -> Observation:
        """The observation of a blurred image (C, H, W), float64, with its likeliest blur and an interval of widths."""
        guesses = likely(self.blurs, image, noises=self.domain.noises)
        best = guesses[0]
        start = observation(self.blurs, image, best)
        if not start.level:
            return start
        if read := self._read(image, guesses):
            return read
        tried = [self._searched(image, replace(g, spectrum=best.spectrum), start.level) for g in hopeful(guesses)]
        guess, at, _ = min(tried, key=lambda found: found[2] - UNLIKELY * found[0].log_likelihood)
        for _ in range(ROUNDS):
            step, half, _ = vertex(*self._around(image, guess, at, start.level, NEARER, 2, VERSIONS))
            at += step
            if abs(step) < 2 * NEARER:
                break
        half = max(half, self.domain.width_error)
        low, width, high = (within(self.blurs, guess.width * math.exp(at + side)) for side in (-half, 0.0, half))
        return replace(observation(self.blurs, image, replace(guess, width=width)), interval=(low, high))

    def _read(self, image: Tensor, guesses: Sequence[Guess]) -> Observation | None:
        """The same, with the blur that the reader reads off the image; None without a reader, or if it is unsure."""
        if self.reader is None or guesses[0].noise > READABLE * self.domain.noises[0]:
            return None
        reading = self.reader.read(self.blurs, image, [guess.width for guess in hopeful(guesses)])
        if reading is None or reading.error > WIDE:
            return None
        width = within(self.blurs, reading.width)
        guess = next(g for g in likely(self.blurs, image, width, self.domain.noises) if reading.is_of(g.kind))
        low, high = (within(self.blurs, width * math.exp(side * reading.error)) for side in (-1, 1))
        return replace(observation(self.blurs, image, guess), interval=(low, high))

    def _searched(self, image: Tensor, guess: Guess, level: int) -> tuple[Guess, float, float]:
        """A guess, the logarithm of the ratio of the best width to the guessed one, and the score there."""
        at = 0.0
        for _ in range(ROUNDS):
            x, scores = self._around(image, guess, at, level, NEAR, 2, 1)
            i = int(scores.argmin())
            at += float(x[i])
            if 0 < i < len(x) - 1:
                break
        step, _, score = vertex(*self._around(image, guess, at, level, NEAR / 2, 1, VERSIONS))
        return guess, at + step, score

    def _around(
        self, image: Tensor, guess: Guess, at: float, level: int, step: float, count: int, versions: int
    ) -> tuple[Tensor, Tensor]:
        """Steps from a width, `count` on either side, and their scores; widths are ratios to a guess, in logarithms.

        Images are restored with doubt, without which a width that is only nearly right would give scribbles.
        """
        x = step * torch.arange(-count, count + 1).double()
        widths = [within(self.blurs, guess.width * math.exp(at + ratio)) for ratio in x.tolist()]
        seen = [observation(self.blurs, image, replace(guess, width=width), DOUBT) for width in widths]
        far = FAR * ((at + x) / DOUBT).square()
        return x, self.scores([replace(one, level=level) for one in seen], versions) + far

    def dissipated(self, image: Tensor, width: float) -> Tensor:
        """Data of any domain (C, *grid), in [0, 1], blurred by a width."""
        return self.blurs.laplacian.dissipate(image[None].double(), width**2 / 2)[0]

    def known(self, image: Tensor, width: float) -> Observation:
        """The observation of a blurred image (C, H, W), float64, if its width is known."""
        return observation(self.blurs, image, likely(self.blurs, image, width, self.domain.noises)[0])

    def verdict(self, familiar: Familiar, seen: Observation, negative: bool = True) -> Verdict:
        """Whether an image, once restored, is like those that the model was calibrated on, or else its negative is."""
        share = self.share(familiar, seen)
        if share >= UNUSUAL or not (negative and self.domain.negatives):
            return Verdict(share, noun=self.domain.noun)
        image = 1 - seen.image
        told = None if seen.interval else self.known(image, seen.width)
        return Verdict(share, self.share(familiar, told or self.observe(image)) >= UNUSUAL, self.domain.noun)

    def share(self, familiar: Familiar, seen: Observation) -> float:
        """The share of the images held out from training that are as unusual."""
        features = self.features(seen)
        if features.shape[1] != len(familiar.spread):
            raise IhdmError("the model was calibrated with another network; run ihdm calibrate again")
        return float(familiar.shares(features, torch.tensor([seen.level / self.process.K]).double()))

    @torch.no_grad()
    def features(self, *seen: Observation) -> Tensor:
        """The network's features of the restored images, (observations, F); all observations are of one level."""
        given = torch.stack([one.image for one in seen])
        images = self.restored(seen, VERSIONS) if seen[0].level else given.float()[:, None]
        columns = []
        for share in SHARES:
            with overheard(self.network.module) as heard:
                self.surprise(images.flatten(0, 1), [max(1, round(share * self.process.K))])
            columns.append(torch.cat(heard).unflatten(0, (len(seen), -1)).mean(1))
        return torch.cat(columns, 1)


def hopeful(guesses: Sequence[Guess]) -> list[Guess]:
    """The few likeliest, likeliest first, and the two commonest kinds of blur however unlikely they are.

    Those that are the same in effect are left out, such as two kinds of border around a black margin.
    """
    found: list[Guess] = []
    for guess in guesses:
        likely_enough = guess.log_likelihood > guesses[0].log_likelihood - HOPELESS and len(found) < TRIED
        alike = any(abs(guess.log_likelihood - other.log_likelihood) < ALIKE for other in found)
        if (likely_enough or guess.kind in COMMONEST) and not alike:
            found.append(guess)
    return found


def vertex(x: Tensor, scores: Tensor) -> tuple[float, float, float]:
    """Where a parabola fitted to scores is lowest, how far from there it is higher by ALLOWED, and how low it is."""
    columns = torch.stack([torch.ones_like(x), x, x.square()], 1)
    level, slope, curvature = torch.linalg.lstsq(columns, scores[:, None]).solution[:, 0].tolist()
    edge = 1.5 * float(x.abs().max())
    if curvature <= 0:  # no minimum here: on to the better side
        return (edge if slope < 0 else -edge), WIDE, float(scores.min())
    at = max(-edge, min(edge, -slope / (2 * curvature)))
    return at, min(WIDE, math.sqrt(ALLOWED / curvature)), level + slope * at + curvature * at**2


Progress = Callable[[Sequence[Tensor]], Iterable[Tensor]]
Blur = Callable[[Tensor, float], Tensor]  # blurs an image (C, H, W), as it is stored, by a width; in [0, 1]


def calibrate(judge: Judge, images: Tensor, blurs: Sequence[Blur], progress: Progress = iter) -> Familiar:
    """From sharp held-out images (N, C, H, W), as they are stored, blurred to several levels by the blurs in turn.

    The judge is told the widths, but not the kinds of blur.
    """
    K, features, levels = judge.process.K, [], []
    for i, some in enumerate(progress([images[i::GROUPS] for i in range(min(GROUPS, len(images)))])):
        level = 1 + int(i / GROUPS * BLURRED * K)
        width = float(judge.blurs.schedule.sigma_B[level])
        blurred = [blurs[n % len(blurs)](image, width).double() for n, image in enumerate(some)]
        seen = [judge.known(y, width) for y in blurred]
        features.append(judge.features(*(replace(one, spectrum=seen[0].spectrum) for one in seen)))
        levels += [level / K] * len(some)
    order = torch.randperm(len(levels), generator=torch.Generator().manual_seed(0))  # both parts have all levels
    return Familiar.calibrated(torch.cat(features)[order], torch.tensor(levels).double()[order])
