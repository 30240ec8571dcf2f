"""Bases in which a process acts on each coefficient by itself."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


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
