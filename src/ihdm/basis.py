"""Bases in which a process acts on each coefficient by itself: pixels, and the eigenvectors of a Laplacian."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from ihdm.constant import Constant

Times = Any  # a number, or numbers in a tensor, list or NumPy array


class Basis(Protocol):
    """An orthonormal change of coordinates of tensors (B, C, *grid)."""

    def to_spectrum(self, u: Tensor) -> Tensor: ...

    def from_spectrum(self, u_hat: Tensor) -> Tensor: ...


class Pixels:
    """The pixels themselves: the basis of ordinary diffusion."""

    def to_spectrum(self, u: Tensor) -> Tensor:
        return u

    def from_spectrum(self, u_hat: Tensor) -> Tensor:
        return u_hat


class Laplacian(ABC):
    """Laplace = V diag(eigenvalues) V^T, with no positive eigenvalue, so that it has a heat equation (Eq. 1-2).

    grid: the axes of data after the channels: those of a grid, or the one of a graph's nodes. Coefficients have the
    same axes, the lowest frequencies first. peak: the largest square of an entry of V, in units of the mean one.
    """

    grid: tuple[int, ...]
    peak: float
    _eigenvalues: Constant

    @property
    def eigenvalues(self) -> Tensor:
        """All eigenvalues, float64, shape `grid`; none is positive."""
        return self._eigenvalues.value

    @property
    def side(self) -> float:
        """The length of the domain, by its lowest frequency: on a grid, the pixels of its longest axis."""
        slowest = self.eigenvalues[self.eigenvalues < 0]
        return math.pi / math.sqrt(-float(slowest.max())) if len(slowest) else 1.0

    def eigenvalues_like(self, u: Tensor) -> Tensor:
        """The eigenvalues on the device and in the precision of `u`."""
        return self._eigenvalues.like(u)

    def left(self, t: float | Tensor) -> Tensor:
        """exp(t eigenvalues), float64: what F(t) leaves of each coefficient (Eq. 2), (*grid) for each of the times."""
        times = torch.as_tensor(t, dtype=torch.float64)
        return torch.exp(times.view(*times.shape, *[1] * len(self.grid)) * self.eigenvalues)

    def decay(self, t: Tensor, like: Tensor) -> Tensor:
        """The same for times (B,), of shape (B, 1, *grid), on the device and in the precision of `like`."""
        return torch.exp(t.to(like).view(-1, 1, *[1] * len(self.grid)) * self.eigenvalues_like(like))

    @abstractmethod
    def to_spectrum(self, u: Tensor, lowest: Sequence[int] | None = None) -> Tensor:
        """u_hat = V^T u (Eq. 2), or only its `lowest` frequencies along each axis, which is quicker."""

    @abstractmethod
    def from_spectrum(self, u_hat: Tensor) -> Tensor:
        """u = V u_hat (Eq. 2)."""

    @abstractmethod
    def dissipate(self, u: Tensor, t: Times) -> Tensor:
        """F(t) u = V exp(t eigenvalues) V^T u (Eq. 2).

        t: one time for all samples, one for each, (B,), or several for each, (L, B), which give (L, B, C, *grid).
        """


def checked_times(u: Tensor, t: Times) -> Tensor:
    """Times of shape (), (B,) or (L, B), in the precision of u but no lower than float32.

    Times that are negative or not finite are refused, except on an accelerator, where looking would take time.
    """
    times = torch.as_tensor(t, dtype=torch.promote_types(u.dtype, torch.float32))
    if times.ndim > 2 or (times.ndim > 0 and times.shape[-1] != len(u)):
        raise ValueError(f"t has shape {tuple(times.shape)}; expected one time, or one for each of {len(u)} samples")
    if times.device.type == "cpu" and not bool(((times >= 0) & (times < math.inf)).all()):
        raise ValueError(f"times of the heat equation must be finite and not negative, unlike {t}")
    return times.to(u.device)


def checked_data(u: Tensor, grid: tuple[int, ...]) -> Tensor:
    """Data (B, C, *grid) in float32 or float64; other shapes, and values that are not floating point, are refused."""
    if not isinstance(u, Tensor):
        raise TypeError(f"expected a tensor, got {type(u).__name__}; torch.as_tensor makes one of arrays and lists")
    if u.ndim != 2 + len(grid) or tuple(u.shape[2:]) != grid:
        raise ValueError(f"expected a tensor of shape (B, C, {', '.join(map(str, grid))}), got {tuple(u.shape)}")
    if not u.is_floating_point():
        raise TypeError(f"expected floating point values, got {u.dtype}; scale images to [0, 1] first")
    return u if u.dtype in (torch.float32, torch.float64) else u.float()
