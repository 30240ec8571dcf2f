"""The best linear predictor of one level of the heat process from another."""

from __future__ import annotations

import torch
from torch import Tensor

from ihdm.basis import Laplacian
from ihdm.constant import Constant, rows
from ihdm.processes.spectrum import Spectrum, rotate
from ihdm.schedule import Schedule

LEAST_SIGMA = 1e-6  # with less noise, linear prediction, exact steps and bounds would divide by zero in float32
TINY = 1e-12  # least error of prediction: if all images are alike, there is none


class LinearPredictor:
    """E[F(t_j) u_0 | u_k] if the cosine coefficients, along the principal colour axes, are independent and normal.

    With the data set's mean m and power P, and E_k = exp(t_k eigenvalue), each coefficient is predicted as
    E_j m + G (u_hat_k - E_k m), G = P E_j E_k / (P E_k^2 + sigma^2), with the variance
    P E_j^2 sigma^2 / (P E_k^2 + sigma^2).
    """

    def __init__(self, laplacian: Laplacian, schedule: Schedule, sigma: float, spectrum: Spectrum):
        if sigma <= 0:
            raise ValueError("linear prediction needs noise (sigma > 0); without noise, use process.skip=identity")
        self.laplacian, self.sigma, self.spectrum = laplacian, sigma, spectrum
        self._t = Constant(schedule.t)
        self._mean, self._axes, self._power = map(Constant, (spectrum.mean, spectrum.axes, spectrum.power))
        rms = [self._rms_error(*pair) for pair in zip(schedule.t[:-1], schedule.t[1:])]
        self._c = Constant(torch.tensor([0.0, *rms], dtype=torch.float64))
        self._spread = Constant(torch.tensor([self._rms_state(t) for t in schedule.t], dtype=torch.float64))

    def deviation(self, u_hat_k: Tensor, k: Tensor) -> Tensor:
        """How far coefficients are from the mean of their level, along the colour axes."""
        return self.along_axes(u_hat_k - self.decay(k, u_hat_k) * self._mean.like(u_hat_k))

    def predict(self, deviation: Tensor, k: Tensor, j: Tensor) -> Tensor:
        """The deviation to expect at level j, from that at level k; both along the colour axes."""
        coarse, fine, power = self.decay(k, deviation), self.decay(j, deviation), self._power.like(deviation)
        return power * fine * coarse / (power * coarse.square() + self.sigma**2) * deviation

    def variance(self, k: Tensor, j: Tensor, like: Tensor) -> Tensor:
        """The variance of coefficients of level j around their prediction from level k, along the colour axes."""
        power = self._power.like(like)
        return (
            power * (self.decay(j, like) * self.sigma).square() / (power * self.decay(k, like).square() + self.sigma**2)
        )

    def coefficients(self, deviation: Tensor, j: Tensor) -> Tensor:
        """The coefficients at level j with this deviation from the mean: the reverse of `deviation`."""
        return self.decay(j, deviation) * self._mean.like(deviation) + rotate(deviation, self._axes.like(deviation).mT)

    def along_axes(self, u_hat: Tensor) -> Tensor:
        return rotate(u_hat, self._axes.like(u_hat))

    def decay(self, k: Tensor, like: Tensor) -> Tensor:
        """E_k."""
        return self.laplacian.decay(self._t.like(like)[k], like)

    def rms_error(self, k: Tensor, like: Tensor) -> Tensor:
        """c_k, the root mean square error of predicting level k - 1; broadcasts with `like`."""
        return rows(self._c.like(like)[k].clamp_min(TINY), like)

    def scaled(self, u_k: Tensor, k: Tensor) -> Tensor:
        """How far states are from the mean of their level, in units of the usual distance there."""
        u_hat = self.laplacian.to_spectrum(u_k) - self.decay(k, u_k) * self._mean.like(u_k)
        return self.laplacian.from_spectrum(u_hat) / rows(self._spread.like(u_k)[k], u_k)

    def _rms_state(self, t: Tensor) -> float:
        """The usual distance of states from their mean: the square root of the mean of P E^2 + sigma^2."""
        return float((self.spectrum.power * self.laplacian.left(t).square() + self.sigma**2).mean().sqrt())

    def _rms_error(self, t_fine: Tensor, t_coarse: Tensor) -> float:
        fine, coarse = map(self.laplacian.left, (t_fine, t_coarse))
        power, variance = self.spectrum.power, self.sigma**2
        return float((power * fine**2 * variance / (power * coarse**2 + variance)).mean().sqrt())
