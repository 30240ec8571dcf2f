"""p(u_K): a Gaussian kernel density over blurred training images (section 2.1, "Prior").

At level K an image is a handful of low cosine coefficients. The prior keeps those and drops the rest, which the
blur has pushed below float32 rounding: a few megabytes stand for the whole blurred training set.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from ihdm.basis import Laplacian, checked_data
from ihdm.heat import GaussianFilter

ROUNDING = 2.0**-24  # half a unit in the last place of a float32 near 1


class Prior:
    """p(u_K) = mean over training images of N(F(t_K) u_0, delta^2 I).

    coefficients: the kept entries of V^T F(t_K) u_0, shape (images, C, kept), float32.
    blur: an F other than the heat equation's; then nothing is known about small coefficients, and all are kept.
    """

    def __init__(self, laplacian: Laplacian, t_K: float, coefficients: Tensor, blur: GaussianFilter | None = None):
        self.laplacian, self.t_K, self.blur = laplacian, t_K, blur
        self.kept = kept_modes(laplacian, t_K) if blur is None else torch.ones(laplacian.grid, dtype=torch.bool)
        wrong_shape = coefficients.ndim != 3 or coefficients.shape[-1] != int(self.kept.sum()) or len(coefficients) == 0
        if wrong_shape or coefficients.dtype != torch.float32:
            raise ValueError(
                f"prior coefficients of shape {tuple(coefficients.shape)}, {coefficients.dtype}, do not fit a grid "
                f"{laplacian.grid} with {int(self.kept.sum())} coefficients at t_K = {t_K:g}, float32"
            )
        self.coefficients = coefficients
        self._places = torch.where(self.kept, self.kept.flatten().cumsum(0).view(laplacian.grid) - 1, self.kept.sum())

    @classmethod
    def from_images(
        cls, laplacian: Laplacian, t_K: float, batches: Iterable[Tensor], blur: GaussianFilter | None = None
    ) -> Prior:
        """Blur images in [0, 1], given in batches (B, C, *grid), to level K."""
        coefficients = [_blurred(laplacian, t_K, u_0, blur).float().cpu() for u_0 in batches]
        return cls(laplacian, t_K, torch.cat(coefficients), blur)

    def __len__(self) -> int:
        return len(self.coefficients)

    @property
    def words(self) -> str:
        """What it is made of."""
        return f"{len(self):,} of the training set, blurred, {self.coefficients[0].numel()} coefficients each"

    def means(self, index: Tensor) -> Tensor:
        """The blurred training images F(t_K) u_0 with the given numbers."""
        kept_hat = self.coefficients[index.to(self.coefficients.device)].to(index.device)
        with_zero = F.pad(kept_hat, (0, 1))  # the zero stands for all that were dropped
        return self.laplacian.from_spectrum(with_zero[..., self._places.to(index.device)])

    def colours(self) -> Tensor:
        """The average of each training image, (images, C), which no blur changes: the coefficient of frequency 0."""
        return self.coefficients[..., 0] / math.prod(self.laplacian.grid) ** 0.5

    def place(self, u_0: Tensor) -> Tensor:
        """Where images from any source are at level K: the kept entries of V^T F(t_K) u_0, (B, C, kept), float64."""
        return _blurred(self.laplacian, self.t_K, u_0, self.blur)

    def near(self, index: Tensor, eps: Tensor, delta: float) -> Tensor:
        """u_K = F(t_K) u_0 + delta eps, with u_0 the training images of the given numbers."""
        return self.means(index) + delta * eps


def kept_modes(laplacian: Laplacian, t_K: float) -> Tensor:
    """Which coefficients matter at time t_K, as a mask over the grid.

    An image in [0, 1] on N pixels has |u_hat| <= sqrt(N), and a mode has squares of at most p / N, so by
    Cauchy-Schwarz the dropped modes change a pixel by at most sqrt(p sum exp(2 t_K eigenvalue)); p is 2^d in d
    dimensions.
    """
    decay = laplacian.left(t_K).flatten()
    smallest_first = decay.argsort()
    change = (laplacian.peak * decay[smallest_first].square().cumsum(0)).sqrt()
    kept = torch.ones_like(decay, dtype=torch.bool)
    kept[smallest_first[change <= ROUNDING]] = False
    return kept.view(laplacian.grid)


def _blurred(laplacian: Laplacian, t_K: float, u_0: Tensor, blur: GaussianFilter | None) -> Tensor:
    """The kept entries of V^T F(t_K) u_0, float64, computed from as few coefficients as hold them."""
    u_0 = checked_data(u_0, laplacian.grid).double()
    if blur is not None:
        return laplacian.to_spectrum(blur.dissipate(u_0, t_K)).flatten(2)
    kept = kept_modes(laplacian, t_K)
    lowest = (kept.nonzero().max(0).values + 1).tolist()
    low_kept = kept[tuple(slice(count) for count in lowest)].to(u_0.device)
    decay = laplacian.left(t_K)[kept].to(u_0.device)
    return laplacian.to_spectrum(u_0, lowest)[..., low_kept] * decay
