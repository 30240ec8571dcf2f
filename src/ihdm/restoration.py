"""Bringing back one's own blurred image: the reverse process, begun at the level whose blur the image has.

What is seen is y = A u_0 + noise, with A a blur along each axis. In the cosine basis, along the data's colour axes,
each coefficient is taken by itself, y_hat = T u_hat_0 + error: T is the diagonal of A; what A mixes in from other
coefficients, since another program's blur is not quite diagonal in this basis, is estimated and taken off.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ihdm.constant import Constant
from ihdm.errors import UsageError
from ihdm.heat import GridLaplacian
from ihdm.likelihood import ROUNDING
from ihdm.processes import Restoring
from ihdm.processes.spectrum import Spectrum, rotate

NOISES = tuple(ROUNDING * factor for factor in (1, 2, 4, 8))  # what an image may have besides its blur
NARROWEST, COARSE, FINE = 0.2, 1.1, 1.02  # blur widths to compare: the smallest in pixels, ratios of neighbours
TURNS, MIXED = 4, 0.6  # to find what a blur mixes in; the share of it that is taken to be wrong
DOUBT = 0.03  # the relative error of an estimated width (docs/studies/restore.md)
BOXES = 3  # in place of a Gaussian
LIFTED = 1.4  # the blur width of a small image brought to the grid, in units of its own pixels


@dataclass(frozen=True)
class Observation:
    """A blurred image (C, H, W), and what it says about each cosine coefficient of the sharp one, along colour axes.

    width: of the blur in pixels; level: of the process, the nearest to it, where the way back begins; kind: which blur
    explains the image best; noise: a standard deviation.
    y_hat, T, N: the image's coefficients, what the blur leaves of each, and the power of the error. All float64.
    """

    laplacian: GridLaplacian
    spectrum: Spectrum
    image: Tensor
    width: float
    level: int
    kind: str
    noise: float
    y_hat: Tensor
    T: Tensor
    N: Tensor

    def predict(self, t: float) -> tuple[Tensor, Tensor]:
        """The best linear estimate of the coefficients of F(t) u_0 (Wiener's), and its mean squared error."""
        mean, power = rotate(self.spectrum.mean[None], self.spectrum.axes)[0], self.spectrum.power
        decay = torch.exp(t * self.laplacian.eigenvalues)
        total = power * self.T.square() + self.N
        estimate = mean + power * self.T / total * (self.y_hat - self.T * mean)
        return decay * estimate, decay.square() * power * self.N / total

    def deconvolved(self) -> Tensor:
        """The best linear estimate of the sharp image, (C, H, W)."""
        return self._image(self.predict(0.0)[0][None])[0]

    def start(self, process: Restoring, eps: Tensor) -> Tensor:
        """States of the level, one for each row of eps: the estimate, its error brought up to the process's own noise.

        An 8-bit image has less noise than the process expects: a ninth of sigma = 0.01.
        """
        estimate, error = self.predict(float(process.schedule.t[self.level]))
        noise = process.start_noise if self.level else 0.0
        lacking = (noise**2 - error).clamp_min(0).sqrt()
        return self._image(estimate + lacking * eps.cpu().double()).to(eps)

    def blurred(self, u_0: Tensor) -> Tensor:
        """Sharp images (B, C, H, W) under the blur that was found."""
        rows, columns = (KINDS[self.kind](n, self.width) for n in self.laplacian.grid)
        return self.laplacian.from_spectrum(rows @ self.laplacian.to_spectrum(u_0.cpu().double()) @ columns.mT)

    def residual(self, u_0: Tensor) -> float:
        """Root mean square difference between sharp images, blurred again, and the one seen."""
        return float((self.blurred(u_0) - self.image).square().mean().sqrt())

    def _image(self, u_hat: Tensor) -> Tensor:
        return self.laplacian.from_spectrum(rotate(u_hat, self.spectrum.axes.mT))


@dataclass(frozen=True)
class Restored:
    """images: (n, C, H, W) in [0, 1], on the CPU; seen: what they were made from, with its blur width and level."""

    images: Tensor
    seen: Observation

    @property
    def mean(self) -> Tensor:
        """The mean of the samples, (C, H, W)."""
        return self.images.mean(0)

    @property
    def spread(self) -> Tensor:
        """Their standard deviation in each pixel, (C, H, W): how unsure the model is."""
        return self.images.std(0, correction=min(1, len(self.images) - 1))


Hold = Callable[[Tensor, Tensor, Tensor], Tensor]  # coefficients of level j predicted from level k, k, j: corrected


class Guided:
    """Predictions of the process held to an observation.

    From level k the process knows coefficients of F(t_j) u_0 up to about the error of the best linear predictor,
    v = P E_j^2 sigma^2 / (P E_k^2 + sigma^2) (see `LinearPredictor`); the observation implies them to be y_hat E_j / T,
    up to r = N E_j^2 / T^2. The prediction becomes the average of both, weighted by precision:
    m + v / (v + r) (y_hat E_j / T - m). Noise is added after that, so that states have what they should.
    At the end an image that is blurred again differs from the observation by no more than the error of the latter, if
    the blur was found rightly, and before values are clamped to [0, 1].
    """

    def __init__(self, process: Restoring, seen: Observation):
        self.laplacian, self.variance = seen.laplacian, max(process.sigma, ROUNDING) ** 2
        constants = process.schedule.t, seen.spectrum.axes, seen.spectrum.power, seen.y_hat, seen.T, seen.N
        self._constants = [Constant(value) for value in constants]

    def __call__(self, m: Tensor, k: Tensor, j: Tensor) -> Tensor:
        t, axes, power, y_hat, T, N = (constant.like(m) for constant in self._constants)
        coarse, fine = self.laplacian.decay(t[k], m), self.laplacian.decay(t[j], m)
        ours = power * self.variance * T
        pull = ours * (fine * y_hat - T * rotate(m, axes)) / (ours * T + N * (power * coarse.square() + self.variance))
        return m + rotate(pull, axes.mT)


def observe(process: Restoring, image: Tensor, width: float | None = None) -> Observation:
    """Find the blur of an image (C, H, W) in [0, 1]: its kind, its noise and, unless given, its width in pixels.

    It is the most likely one if the sharp image's coefficients are independent and normal with one of the spectra.
    """
    laplacian, spectra, widest = process.laplacian, process.spectra, process.schedule.sigma_B_max
    if width is not None and not 0 <= width <= widest:
        raise UsageError(
            f"a blur width is from 0 to {widest:g} pixels, the widest that this model knows, not {width:g}"
        )
    if not bool((image.abs() <= 2).all()):  # a little beyond [0, 1] is noise
        raise UsageError("the image has values far outside of [0, 1], or that are not numbers")
    image = image.cpu().double()
    image_hat = laplacian.to_spectrum(image[None])
    if width is None:
        coarse = max(_guesses(laplacian, spectra, image_hat, _widths(NARROWEST, widest, COARSE)))[1]
        near = max(coarse / COARSE, NARROWEST), min(coarse * COARSE, widest)
        widths = _widths(*near, FINE) if coarse else [0.0]
    else:
        widths = [width]
    _, found, kind, noise, chosen = max(_guesses(laplacian, spectra, image_hat, widths))
    spectrum = spectra[chosen]
    y_hat = rotate(image_hat, spectrum.axes)[0]
    T, mixed_in = _effect(laplacian, spectrum, y_hat, kind, found)
    doubt = 0.0 if width is not None else _effect(laplacian, spectrum, y_hat, kind, found * (1 + DOUBT))[0] - T
    N = noise**2 + (MIXED * mixed_in).square() + spectrum.power * doubt**2
    level = nearest_level(process.schedule.sigma_B, found)
    return Observation(laplacian, spectrum, image, found, level, kind, noise, y_hat - mixed_in, T, N)


def nearest_level(sigma_B: Tensor, width: float) -> int:
    """The level whose blur width is nearest on a logarithmic scale; 0 below half of the smallest width."""
    if width < float(sigma_B[1]) / 2:
        return 0
    return 1 + int((sigma_B[1:].log() - math.log(width)).abs().argmin())


def lift(image: Tensor, grid: Sequence[int]) -> tuple[Tensor, float]:
    """A small image (C, h, w), averaged over areas, on a grid (H, W) of the same shape; and the blur width it has then.

    A pixel that is the mean over f x f ones leaves sin(pi j / 2h) / (f sin(pi j / 2H)) of the cosine coefficient j
    along each axis, which is undone. Of frequencies from h on nothing is known: a blur of LIFTED f pixels is applied,
    which leaves nothing of them. What they mix into the others stays, and is about half of 1/255 (rms). Less blur
    leaves more of that, more blur gives away what is known: both make digits of 7 and 14 pixels worse.
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


def _widths(narrowest: float, widest: float, ratio: float) -> list[float]:
    """Blur widths to compare: none, and those of a range in steps of about a ratio."""
    steps = math.ceil(math.log(widest / narrowest) / math.log(ratio))
    return [0.0, *(widest * (narrowest / widest) ** (i / steps) for i in range(steps + 1))]


def _guesses(
    laplacian: GridLaplacian, spectra: Sequence[Spectrum], image_hat: Tensor, widths: list[float]
) -> Iterator[tuple[float, float, str, float, int]]:
    """How likely an image is, up to a constant, with each width, kind of blur, noise and spectrum."""
    for (number, spectrum), kind, width in itertools.product(enumerate(spectra), KINDS, widths):
        y_hat, mean = (rotate(u_hat, spectrum.axes)[0] for u_hat in (image_hat, spectrum.mean[None]))
        T, mixed_in = _effect(laplacian, spectrum, y_hat, kind, width)
        for noise in NOISES:
            power = T.square() * spectrum.power + (MIXED * mixed_in).square() + noise**2
            deviation = y_hat - mixed_in - T * mean
            yield -float((power.log() + deviation.square() / power).sum()), width, kind, noise, number


def _effect(
    laplacian: GridLaplacian, spectrum: Spectrum, y_hat: Tensor, kind: str, width: float
) -> tuple[Tensor, Tensor]:
    """What a blur leaves of each coefficient, and what it mixes into each from others, judged by the image itself.

    The sharp image is first taken to be the mean one, then in turns estimated without what that mixes in.
    """
    rows, columns = (KINDS[kind](n, width) for n in laplacian.grid)
    T, mean = rows.diagonal()[:, None] * columns.diagonal(), rotate(spectrum.mean[None], spectrum.axes)[0]
    u_hat, mixed_in = mean, torch.zeros_like(mean)
    for _ in range(TURNS):
        mixed_in = rows @ u_hat @ columns.mT - T * u_hat
        error = ROUNDING**2 + (MIXED * mixed_in).square()
        gain = spectrum.power * T / (spectrum.power * T.square() + error)
        u_hat = mean + gain * (y_hat - mixed_in - T * mean)
    return T, mixed_in


def _reflecting(n: int, width: float) -> Tensor:
    """The heat equation's blur along an axis, in the cosine basis."""
    return torch.exp(width**2 / 2 * GridLaplacian((n,)).eigenvalues).diag()


def _boxes(n: int, width: float) -> Tensor:
    """Boxes one after another with a Gaussian's variance, border pixels repeated: what Pillow and many others do.

    Each is 2 l + 1 pixels and a part of one more on both sides (Gwosdek et al. 2011).
    """
    variance = width**2 / BOXES
    l = math.floor((math.sqrt(12 * variance + 1) - 1) / 2)  # noqa: E741
    part = (2 * l + 1) * (l * (l + 1) - 3 * variance) / (6 * (variance - (l + 1) ** 2))
    offset, position = torch.arange(-l - 1, l + 2), torch.arange(n)
    weight = torch.where(offset.abs() <= l, 1.0, part).double() / (2 * l + 1 + 2 * part)
    taken = (position[:, None] + offset).clamp(0, n - 1)
    box = torch.zeros(n, n, dtype=torch.float64).scatter_add_(1, taken, weight.expand(n, -1))
    axis, blur = GridLaplacian((n,)), torch.linalg.matrix_power(box, BOXES)
    return axis.to_spectrum(axis.to_spectrum(blur[None])[0].mT[None])[0].mT


KINDS: dict[str, Callable[[int, float], Tensor]] = {"Gaussian": _reflecting, "three boxes": _boxes}
