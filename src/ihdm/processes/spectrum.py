"""Second-order statistics of a data set: all that a linear predictor can know about it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ihdm.basis import Laplacian, checked_data
from ihdm.prior import Prior

LEAST_DECAY = 1e-3  # coefficients of which less is left cannot be recovered from the prior's float32
OF_SPECTRUM = "spectrum."  # with which the names of its tensors begin in the state of a process
SPECTRUM_MOST = 20_000  # images to measure it on, which give its power to one percent
FACTORS = tuple(4.0**-i for i in range(5))  # guesses of the power, in units of 1 / frequency^2, in radians per pixel


@dataclass(frozen=True)
class Spectrum:
    """Mean and power of cosine coefficients, along principal colour axes.

    mean: the mean image's cosine coefficients (C, *grid); axes: principal colour axes, in columns (C, C);
    power: variance of each coefficient along each axis (C, *grid). All float64.
    """

    mean: Tensor
    axes: Tensor
    power: Tensor

    @classmethod
    def from_images(cls, laplacian: Laplacian, batches: Iterable[Tensor]) -> Spectrum:
        """Measure images in [0, 1], given in batches (B, C, *grid), in one pass."""
        count, total, squares = 0, torch.zeros(()), torch.zeros(())
        for u_0 in batches:
            u_hat = laplacian.to_spectrum(checked_data(u_0, laplacian.grid).double())
            count += len(u_hat)
            total = total + u_hat.sum(0).cpu()
            squares = squares + torch.stack([(u_hat * u_hat[:, c, None]).sum(0) for c in range(u_hat.shape[1])]).cpu()
        mean = total / count
        covariance = squares / count - mean[:, None] * mean[None]
        _, axes = torch.linalg.eigh(covariance.flatten(2).sum(-1))
        power = torch.einsum("ce,cd...,de->e...", axes, covariance, axes).clamp_min(0)
        return cls(mean, axes, power)

    @classmethod
    def shapes(cls, shape: tuple[int, ...]) -> dict[str, tuple[int | None, ...]]:
        """The shapes of the tensors in its state, for images of a shape (C, *grid)."""
        return {f"{OF_SPECTRUM}mean": shape, f"{OF_SPECTRUM}axes": shape[:1] * 2, f"{OF_SPECTRUM}power": shape}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor]) -> Spectrum:
        """From what `state` returned."""
        return cls(*(state[OF_SPECTRUM + name].double() for name in ("mean", "axes", "power")))

    def signal_to_noise(self, alpha: Tensor, sigma: float) -> Tensor:
        """alpha^2 P / sigma^2 of each coefficient, (*grid), along the axis where it is largest."""
        return alpha.square() * self.power.amax(0) / sigma**2 if sigma else torch.full_like(alpha, math.inf)

    def state(self) -> dict[str, Tensor]:
        return {OF_SPECTRUM + name: tensor for name, tensor in vars(self).items()}


def guesses(prior: Prior) -> list[Spectrum]:
    """Several guesses of the spectrum of a data set of which only the prior is known.

    The prior holds the lowest coefficients of the blurred training images. All others are assumed to have mean 0 and a
    power that falls with the square of the frequency, as in natural images (App. A.5), times one of several factors.
    """
    laplacian, channels = prior.laplacian, prior.coefficients.shape[1]
    decay = laplacian.left(prior.t_K)
    known = prior.kept & (decay > LEAST_DECAY)
    u_hat = prior.coefficients.cpu().double()[..., known[prior.kept]] / decay[known]
    mean, power = torch.zeros(2, channels, *laplacian.grid, dtype=torch.float64)
    power -= 1 / laplacian.eigenvalues.clamp_max(-((math.pi / laplacian.side) ** 2))  # brightness: that of the lowest
    mean[:, known], axes = u_hat.mean(0), torch.eye(channels, dtype=torch.float64)
    variance = u_hat.var(0, correction=0)
    return [Spectrum(mean, axes, (factor * power).masked_scatter(known, variance)) for factor in FACTORS]


def rotate(u_hat: Tensor, axes: Tensor) -> Tensor:
    """Coordinates along the columns of `axes` instead of the colour channels."""
    return torch.einsum("nc...,cd->nd...", u_hat, axes)
