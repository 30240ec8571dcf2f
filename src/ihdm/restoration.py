"""Restoring a blurred image: the reverse process, started at the level whose blur the image has.

The image is y = A u_0 + noise, where A blurs along each axis, A = left diag(S) right^T (blurs.py). In these bases and
along the data's colour axes, each coefficient is treated separately: y_hat = T u_hat_0 + error, T the product of all S.
The same holds for sounds and all else that has a Laplacian; there A is the heat equation's, diagonal in its eigenbasis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ihdm.basis import Laplacian
from ihdm.blurs import HEAT, Axes, Bases, blur, blurred, kinds, lefts, rights, strength, turned
from ihdm.constant import Constant
from ihdm.domains.domain import NOISES, Domain
from ihdm.errors import UsageError
from ihdm.heat import GridLaplacian
from ihdm.pixels import ROUNDING
from ihdm.processes import Restoring
from ihdm.processes.spectrum import Spectrum, rotate

NARROWEST = 0.2  # the least of the blur widths to compare, in pixels
RATIOS = 1.1, 1.03, 1.01  # between neighbouring widths, from coarse to fine
HOPELESS = 100.0  # nats by which a kind of blur is less likely than the best, for it to be given up
ENOUGH = 2**13  # coefficients for the first comparison of widths
DOUBT = 0.03  # the relative error of an estimated width (docs/studies/restore.md)
FAINT = 1e-3  # if a level leaves less of a coefficient, its prediction says little
LIFTED = 1.4  # the blur width of a small image after it is brought to the grid, in units of its own pixels


@dataclass(frozen=True)
class Observation:
    """A blurred image (C, H, W), and what it says about each coefficient of the sharp one, along colour axes.

    width: of the blur, in pixels; level: of the process, the nearest to it, where the reverse process starts; kind: the
    blur that explains the image best; noise: a standard deviation; axes: the blur along each axis; interval: the widths
    that would do as well, if known.
    y_hat, T, N: the image's coefficients in the blur's left bases, what the blur leaves of those in its right bases,
    and the power of the error. All float64.
    """

    laplacian: Laplacian = field(repr=False)
    spectrum: Spectrum = field(repr=False)
    image: Tensor = field(repr=False)
    width: float
    level: int
    kind: str
    noise: float
    axes: Axes = field(repr=False)
    y_hat: Tensor = field(repr=False)
    T: Tensor = field(repr=False)
    N: Tensor = field(repr=False)
    interval: tuple[float, float] | None = None

    @property
    def width_words(self) -> str:
        """The interval of widths, if one is known, else the width."""
        return "{:.2f} to {:.2f}".format(*self.interval) if self.interval else f"{self.width:.2f}"

    def predict(self, t: float) -> tuple[Tensor, Tensor]:
        """The best linear (Wiener) estimate of the coefficients of F(t) u_0, and its mean squared error."""
        right = rights(self.axes)
        mean, power = turned(self._mean, right), _powers(self.spectrum.power, right)
        decay = self.laplacian.left(t)
        total = power * self.T.square() + self.N
        estimate = wiener(self.y_hat, self.T, self.N, mean, power)
        back = [basis.mT for basis in right]
        return decay * turned(estimate, back), decay.square() * _powers(power * self.N / total, back)

    @property
    def _mean(self) -> Tensor:
        return rotate(self.spectrum.mean[None], self.spectrum.axes)[0]

    def deconvolved(self) -> Tensor:
        """The best linear estimate of the sharp image, (C, H, W)."""
        return self._image(self.predict(0.0)[0][None])[0]

    def start(self, process: Restoring, eps: Tensor) -> Tensor:
        """States of the level, one for each row of eps: the estimate, with noise added up to that of the process.

        An 8-bit image has less noise than the process expects: a ninth of sigma = 0.01.
        """
        estimate, error = self.predict(float(process.schedule.t[self.level]))
        noise = process.start_noise if self.level else 0.0
        lacking = (noise**2 - error).clamp_min(0).sqrt()
        return self._image(estimate + lacking * eps.cpu().double()).to(eps)

    def blurred(self, u_0: Tensor) -> Tensor:
        """Sharp images (B, C, H, W) under the blur that was found."""
        return self.laplacian.from_spectrum(blurred(self.laplacian.to_spectrum(u_0.cpu().double()), self.axes))

    def residual(self, u_0: Tensor) -> float:
        """Root mean square difference between sharp images, blurred again, and the observed one."""
        return float((self.blurred(u_0) - self.image).square().mean().sqrt())

    def _image(self, u_hat: Tensor) -> Tensor:
        return self.laplacian.from_spectrum(rotate(u_hat, self.spectrum.axes.mT))


@dataclass(frozen=True)
class Restored:
    """images: (n, C, H, W) in [0, 1], on the CPU; seen: the observation that they were made from."""

    images: Tensor
    seen: Observation

    def __repr__(self) -> str:
        return f"Restored(images of shape {tuple(self.images.shape)}, {self.seen})"

    @property
    def mean(self) -> Tensor:
        """The mean of the samples, (C, H, W)."""
        return self.images.mean(0)

    @property
    def spread(self) -> Tensor:
        """Their standard deviation in each pixel, (C, H, W): how unsure the model is."""
        return self.images.std(0, correction=min(1, len(self.images) - 1))


Hold = Callable[[Tensor, Tensor, Tensor], Tensor]  # corrects coefficients predicted from level k for j; takes k, j too


class Guided:
    """Holds predictions of the process to an observation.

    From level k the process knows coefficients of u_0 with about the variance of the best linear predictor,
    v = P sigma^2 / (P E_k^2 + sigma^2) (see `LinearPredictor`). The observation gives them as y_hat / T in the blur's
    own basis, with variance N / T^2. The prediction becomes the average of both, weighted by precision:
    m + v / (v + N / T^2) (y_hat / T - m) in that basis, and E_j times that at level j. Noise is added after that, so
    that states have the noise that they should. Blurred again, the final image differs from the observation by no more
    than the observation's error, if the blur was found correctly, and before values are clamped to [0, 1].
    """

    def __init__(self, process: Restoring, *seen: Observation):
        """seen: one observation for all states, or one for each; all along the same colour axes."""
        self.laplacian, self.variance, spectrum = process.laplacian, max(process.sigma, ROUNDING) ** 2, seen[0].spectrum
        bases = [torch.stack(of_axis)[:, None] for of_axis in zip(*(rights(s.axes) for s in seen))]
        told = [torch.stack([getattr(s, name).expand(s.y_hat.shape) for s in seen]) for name in ("y_hat", "T", "N")]
        constants = process.schedule.t, spectrum.axes, spectrum.power, rotate(spectrum.mean[None], spectrum.axes)
        self._constants = [Constant(value) for value in (*constants, *told, *bases)]

    def __call__(self, m: Tensor, k: Tensor, j: Tensor) -> Tensor:
        t, axes, power, mean, y_hat, T, N, *right = (constant.like(m) for constant in self._constants)
        coarse, fine = self.laplacian.decay(t[k], m), self.laplacian.decay(t[j], m)
        deviation = (rotate(m, axes) - fine * mean) * torch.minimum(1 / fine, fine / FAINT**2)  # of u_0, where known
        v = _powers(power * self.variance / (power * coarse.square() + self.variance), right)
        pull = v * T * (y_hat - T * turned(mean + deviation, right)) / (v * T.square() + N)
        return m + rotate(fine * turned(pull, [basis.mT for basis in right]), axes.mT)


def observe(
    process: Restoring, image: Tensor, width: float | None = None, domain: Domain | type[Domain] = Domain
) -> Observation:
    """Find the blur of an image (C, H, W) in [0, 1]: its kind, its noise and, unless given, its width in pixels.

    It is the most likely one if the sharp image's coefficients are independent and normal with one of the spectra.
    domain: needed for data other than images.
    """
    widest = process.schedule.sigma_B_max
    if width is not None and not 0 <= width <= widest:
        raise UsageError(
            f"a blur width must be from 0 to {widest:g} {domain.unit}s, the widest blur of this model, not {width:g}"
        )
    if not bool((image.abs() <= 2).all()):  # noise may go a little beyond [0, 1]
        raise UsageError("the image has values that are not numbers or lie far outside of [0, 1]")
    image = image.cpu().double()
    return observation(
        process, image, likely(process, image, width, domain.noises)[0], 0.0 if width is not None else DOUBT
    )


def observation(process: Restoring, image: Tensor, guess: Guess, doubt: float = 0.0) -> Observation:
    """The observation of an image (C, H, W), float64, if its blur is as guessed; doubt: relative error of the width."""
    laplacian, spectrum = process.laplacian, process.spectra[guess.spectrum]
    axes, wider = (blur(laplacian, guess.kind, guess.width * (1 + more)) for more in (0.0, doubt))
    y_hat = turned(rotate(laplacian.to_spectrum(image[None]), spectrum.axes)[0], lefts(axes))
    T, off = strength(axes), strength(wider)
    power = _powers(spectrum.power, rights(axes))
    N, level = guess.noise**2 + power * (off - T).square(), nearest_level(process.schedule.sigma_B, guess.width)
    found = guess.width, level, guess.kind, guess.noise
    return Observation(laplacian, spectrum, image, *found, axes, y_hat, T, N)


def within(process: Restoring, width: float) -> float:
    """The width, limited to the range that can be restored."""
    return min(max(width, NARROWEST), process.schedule.sigma_B_max)


def nearest_level(sigma_B: Tensor, width: float) -> int:
    """The level whose blur width is nearest on a logarithmic scale; 0 below half of the smallest width."""
    if width < float(sigma_B[1]) / 2:
        return 0
    return 1 + int((sigma_B[1:].log() - math.log(width)).abs().argmin())


def lift(image: Tensor, grid: Sequence[int]) -> tuple[Tensor, float]:
    """A small image (C, h, w), made by averaging areas, on a grid (H, W) of the same proportions; and its blur width.

    If a pixel is the mean of f x f pixels, sin(pi j / 2h) / (f sin(pi j / 2H)) is left of the cosine coefficient j
    along each axis; this is undone. Nothing is known about frequencies from h on, so a blur of LIFTED f pixels removes
    them. What they mixed into the others stays, about half of 1/255 (rms). Less blur leaves more of that, more blur
    gives away what is known: both make digits of 7 and 14 pixels worse.
    """
    small, large = GridLaplacian(image.shape[1:]), GridLaplacian(grid)
    factor = max(H / h for H, h in zip(large.grid, small.grid))
    u_hat = torch.zeros(1, len(image), *large.grid, dtype=torch.float64)
    rows, columns = (_kept_by_averaging(n, N) for n, N in zip(small.grid, large.grid))
    u_hat[..., : small.grid[0], : small.grid[1]] = small.to_spectrum(image.cpu().double()[None]) / (
        rows[:, None] * columns
    )
    width = LIFTED * factor
    lifted = large.dissipate(large.from_spectrum(u_hat), width**2 / 2)[0]
    return lifted.clamp(0, 1).to(image), width


def _kept_by_averaging(n: int, N: int) -> Tensor:
    """What averaging N pixels of an axis to n leaves of each coefficient, in the orthonormal bases of both."""
    j = torch.arange(n).double()
    kept = torch.sin(math.pi * j / (2 * n)) / torch.sin(math.pi * j / (2 * N)) * (n / N)
    kept[0] = 1
    return kept * math.sqrt(n / N)


@dataclass(frozen=True, order=True)
class Guess:
    """A blur that an image may have. log_likelihood: of the image with it, up to a constant; spectrum: by its index."""

    log_likelihood: float
    width: float
    kind: str
    noise: float
    spectrum: int


def likely(
    process: Restoring, image: Tensor, width: float | None = None, noises: Sequence[float] = NOISES
) -> list[Guess]:
    """For each kind of blur the most likely one of an image (C, H, W), float64, best first; width: if it is known.

    The sharp image's coefficients are assumed to be independent and normal, with one of the spectra.
    """
    widest, image_hat = process.schedule.sigma_B_max, process.laplacian.to_spectrum(image[None])
    seen: dict[tuple[str, float], Guess] = {}

    def guess(kind: str, width: float) -> Guess:
        if (kind, width) not in seen:
            seen[kind, width] = max(_guesses(process, image_hat, kind, width, noises))
        return seen[kind, width]

    if width is not None:
        return sorted((guess(kind, width) for kind in kinds(process.laplacian)), reverse=True)
    coarse = max(_coarsely(process, image_hat, _widths(NARROWEST, widest, RATIOS[0]), noises)).width
    best = {kind: guess(kind, coarse) for kind in kinds(process.laplacian)}
    for ratio in RATIOS:
        least = max(best.values()).log_likelihood - HOPELESS if ratio < RATIOS[0] else -math.inf
        for kind, found in best.items():
            if found.log_likelihood > least:
                best[kind] = _climb(partial(guess, kind), found, ratio, widest)
    return sorted(best.values(), reverse=True)


def _climb(guess: Callable[[float], Guess], best: Guess, ratio: float, widest: float) -> Guess:
    """Where steps of a ratio in width lead from a guess, for as long as each is more likely than the last."""
    for factor in (ratio, 1 / ratio):
        better = best
        while NARROWEST <= better.width * factor <= widest and (further := guess(better.width * factor)) > better:
            better = further
        if better is not best:
            return better
    return best


def _coarsely(process: Restoring, image_hat: Tensor, widths: list[float], noises: Sequence[float]) -> Iterator[Guess]:
    """How likely an image is for each blur width of the heat equation, judged by some of its coefficients."""
    count = len(process.laplacian.grid)
    skip = max(1, math.floor((math.prod(image_hat.shape) // ENOUGH) ** (1 / count)))
    some: Any = (..., *[slice(None, None, skip)] * count)
    squares = torch.tensor(widths).double().square().view(-1, 1, *[1] * count)
    T = torch.exp(squares / 2 * process.laplacian.eigenvalues[some])
    for number, spectrum in enumerate(process.spectra):
        y_hat, mean = (rotate(u, spectrum.axes)[some] for u in (image_hat, spectrum.mean[None]))
        for noise in noises:
            likely = _log_likelihood(y_hat - T * mean, T.square() * spectrum.power[some] + noise**2)
            yield from (Guess(value, w, HEAT, noise, number) for value, w in zip(likely.tolist(), widths))


def _guesses(
    process: Restoring, image_hat: Tensor, kind: str, width: float, noises: Sequence[float]
) -> Iterator[Guess]:
    """How likely an image is for a blur, with each noise and spectrum."""
    axes = blur(process.laplacian, kind, width)
    T, right = strength(axes), rights(axes)
    for number, spectrum in enumerate(process.spectra):
        y_hat, mean = (rotate(u_hat, spectrum.axes)[0] for u_hat in (image_hat, spectrum.mean[None]))
        deviation = turned(y_hat, lefts(axes)) - T * turned(mean, right)
        power = T.square() * _powers(spectrum.power, right)
        for noise in noises:
            yield Guess(float(_log_likelihood(deviation[None], power[None] + noise**2)), width, kind, noise, number)


def _log_likelihood(deviation: Tensor, power: Tensor) -> Tensor:
    """The log likelihood of independent normal coefficients, up to a constant, for each index of the first axis."""
    return -(power.log() + deviation.square() / power).flatten(1).sum(1) / 2


def wiener(y_hat: Tensor, T: Tensor, N: Tensor | float, mean: Tensor, power: Tensor) -> Tensor:
    """The best linear estimate of coefficients with a mean and a power from y_hat = T u_hat_0 + error of power N."""
    return mean + power * T / (power * T.square() + N) * (y_hat - T * mean)


def _powers(power: Tensor, bases: Bases) -> Tensor:
    """The variances of independent coefficients in other bases, where they are assumed to be independent again."""
    return turned(power, [basis.square() for basis in bases])


def _widths(narrowest: float, widest: float, ratio: float) -> list[float]:
    """Blur widths to compare: 0, and a range in steps of about a ratio."""
    steps = max(1, math.ceil(math.log(widest / narrowest) / math.log(ratio)))
    return [0.0, *(widest * (narrowest / widest) ** (i / steps) for i in range(steps + 1))]
