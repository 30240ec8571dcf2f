"""The heat equation on a grid, solved exactly in its cosine eigenbasis (Eq. 1-2, App. A.1).

`GridLaplacian` is the paper's operator. `GaussianFilter` and `FiniteDifferences` are the two alternatives that
App. C.6 discusses; all three blur with `dissipate(u, t)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from ihdm.basis import Laplacian, Times, checked_data, checked_times
from ihdm.constant import Constant, everywhere
from ihdm.settings import whole

# Beyond this length a matrix per sample costs more memory than a fast transform and, on a CPU, time (docs/design.md).
LONGEST_MATRIX_AXIS = 512

Operator = Callable[[Tensor], Tensor]


class GridLaplacian(Laplacian):
    """Laplace = V diag(eigenvalues) V^T on a grid with Neumann boundaries, V^T the orthonormal DCT-II (App. A.1).

    For a grid (H, W) the eigenvalues are -pi^2 (m^2 / H^2 + n^2 / W^2). Tensors have shape (B, C, *grid).
    """

    def __init__(self, grid: Sequence[int]):
        self.grid = _checked_grid(grid)
        self._axes = [_axis(n) for n in self.grid]
        self._dims = range(-len(self.grid), 0)
        self._eigenvalues = Constant(_outer_sum([axis.eigenvalues.value for axis in self._axes]))
        self.peak = 2.0 ** len(self.grid)

    def __repr__(self) -> str:
        return f"GridLaplacian({self.grid})"

    @property
    def side(self) -> float:
        return float(max(self.grid))

    def to_spectrum(self, u: Tensor, lowest: Sequence[int] | None = None) -> Tensor:
        """u_hat = V^T u (Eq. 2), or only its `lowest` frequencies along each axis, which is quicker."""
        u_hat = checked_data(u, self.grid)
        for dim, axis, count in zip(self._dims, self._axes, lowest or self.grid):
            u_hat = axis.to_spectrum(u_hat, dim, count)
        return u_hat.to(u.dtype)

    def from_spectrum(self, u_hat: Tensor) -> Tensor:
        """u = V u_hat (Eq. 2)."""
        u = checked_data(u_hat, self.grid)
        for dim, axis in zip(self._dims, self._axes):
            u = axis.from_spectrum(u, dim)
        return u.to(u_hat.dtype)

    def dissipate(self, u: Tensor, t: Times) -> Tensor:
        """F(t) u = V exp(t eigenvalues) V^T u (Eq. 2).

        exp separates over the axes, so each is blurred by itself; axes of the same length share their operator.
        A single axis has too few rows for a matrix to pay off.
        """
        data, times = checked_data(u, self.grid), checked_times(u, t)
        columns, alone = _columns(times), len(self.grid) == 1
        operators = {
            n: _by_coefficients(axis, columns) if alone else axis.operator(columns)
            for n, axis in zip(self.grid, self._axes)
        }
        return _in_turns(operators, data, times).to(u.dtype)


class _MatrixAxis:
    """One short axis: products with V, and with V exp(t eigenvalues) V^T."""

    def __init__(self, n: int):
        self.eigenvalues = _axis_eigenvalues(n)
        self._basis = Constant(cosine_basis(n))

    def to_spectrum(self, u: Tensor, dim: int, count: int) -> Tensor:
        return along(self._basis.like(u)[:, :count].mT, u, dim)

    def from_spectrum(self, u_hat: Tensor, dim: int) -> Tensor:
        return along(self._basis.like(u_hat), u_hat, dim)

    def operator(self, t: Tensor) -> Operator:
        """The blur of durations t, (B, L), along the last axis, which becomes the first."""
        basis = self._basis.like(t)
        decay = torch.exp(t[..., None, None] * self.eigenvalues.like(t))
        return partial(_last_to_first, (basis * decay) @ basis.mT)


class _FourierAxis:
    """One long axis: the DCT-II as a real Fourier transform of the even entries followed by the odd ones, reversed.

    With z its output times exp(-i pi j / 2n), coefficient j is Re z_j, and coefficient n - j is -Im z_j (Makhoul 1980).
    """

    def __init__(self, n: int):
        self.n = n
        self.eigenvalues = _axis_eigenvalues(n)
        angle = -math.pi * torch.arange(n // 2 + 1).double() / (2 * n)
        scale = torch.full_like(angle, math.sqrt(2 / n))
        scale[0] = math.sqrt(1 / n)
        self._forward = Constant(scale * angle.cos()), Constant(scale * angle.sin())
        self._backward = Constant(angle.cos() / scale), Constant(angle.sin() / scale)

    def to_spectrum(self, u: Tensor, dim: int, count: int) -> Tensor:
        u = u.movedim(dim, -1)
        z = torch.fft.rfft(torch.cat([u[..., ::2], u[..., 1::2].flip(-1)], -1))
        cosine, sine = (part.like(u) for part in self._forward)
        low = z.real * cosine - z.imag * sine
        high = -(z.real * sine + z.imag * cosine)[..., 1 : (self.n + 1) // 2].flip(-1)
        return torch.cat([low, high], -1)[..., :count].movedim(-1, dim)

    def from_spectrum(self, u_hat: Tensor, dim: int) -> Tensor:
        u_hat = u_hat.movedim(dim, -1)
        half = self.n // 2
        low = u_hat[..., : half + 1]
        high = torch.cat([torch.zeros_like(u_hat[..., :1]), -u_hat[..., self.n - half :].flip(-1)], -1)
        cosine, sine = (part.like(u_hat) for part in self._backward)
        z = torch.complex(low * cosine + high * sine, high * cosine - low * sine)
        even, odd = torch.fft.irfft(z, n=self.n).split([self.n - half, half], -1)
        u = torch.empty_like(u_hat)
        u[..., ::2], u[..., 1::2] = even, odd.flip(-1)
        return u.movedim(-1, dim)

    def operator(self, t: Tensor) -> Operator:
        """The blur of durations t, (B, L), along the last axis, which becomes the first."""
        return _by_coefficients(self, t)


def _axis(n: int) -> _MatrixAxis | _FourierAxis:
    return _MatrixAxis(n) if n <= LONGEST_MATRIX_AXIS else _FourierAxis(n)


def _by_coefficients(axis: _MatrixAxis | _FourierAxis, t: Tensor) -> Operator:
    """The blur by way of the coefficients, without a matrix for each time."""

    def dissipate(u: Tensor) -> Tensor:
        decay = torch.exp(everywhere(t, u) * axis.eigenvalues.like(u))
        return axis.from_spectrum(axis.to_spectrum(u, -1, u.shape[-1]) * decay, -1).movedim(-1, 2)

    return dissipate


class GaussianFilter:
    """Convolution with a sampled Gaussian of size 2N - 1 per axis, sigma_B^2 = 2t, zeros outside the image (App. C.6).

    Restricted to the image it is a product with a Toeplitz matrix per axis.
    """

    def __init__(self, grid: Sequence[int]):
        self.grid = _checked_grid(grid)

    def dissipate(self, u: Tensor, t: Times) -> Tensor:
        """Blur to the width sqrt(2t); t as for the Laplacian."""
        data, times = checked_data(u, self.grid), checked_times(u, t)
        columns = _columns(times).clamp_min(torch.finfo(times.dtype).tiny)[..., None]
        operators: dict[int, Operator] = {}
        for n in self.grid:
            offset = torch.arange(1 - n, n, device=u.device, dtype=times.dtype)
            kernel = torch.exp(-offset.square() / (4 * columns))
            kernel = kernel / kernel.sum(-1, keepdim=True)
            position = torch.arange(n, device=u.device)
            toeplitz = kernel[..., position[:, None] - position + n - 1]
            operators[n] = partial(_last_to_first, toeplitz)
        return _in_turns(operators, data, times).to(u.dtype)


class FiniteDifferences:
    """Forward Euler steps with the kernel of Eq. (11), mirrored at the boundary (App. C.6).

    Every sample takes the same number of steps, as few as stability allows: dt <= 1 / (2 d) in d dimensions.
    """

    def __init__(self, grid: Sequence[int]):
        self.grid = _checked_grid(grid)

    def dissipate(self, u: Tensor, t: Times) -> Tensor:
        """Integrate the heat equation to time t; t as for the Laplacian."""
        blurred, times = checked_data(u, self.grid)[:, None], checked_times(u, t)
        steps = math.ceil(float(times.max()) * 2 * len(self.grid))
        dt = everywhere(_columns(times) / max(steps, 1), blurred)
        for _ in range(steps):
            blurred = blurred + dt * self._laplacian(blurred)
        return _without_times(blurred, times).to(u.dtype)

    def _laplacian(self, u: Tensor) -> Tensor:
        total = torch.zeros_like(u)
        for dim, n in zip(range(-len(self.grid), 0), self.grid):
            first, last = u.narrow(dim, 0, 1), u.narrow(dim, n - 1, 1)
            flux = torch.cat([first, u, last], dim).diff(dim=dim)
            total = total + flux.diff(dim=dim)
        return total


def smaller(grid: Sequence[int], halvings: int) -> tuple[int, ...]:
    """The grid with each axis halved `halvings` times, rounded up."""
    return tuple(-(-n // 2**halvings) for n in grid)


def resized(u: Tensor, grid: Sequence[int], grey: bool = True) -> Tensor:
    """Data (B, C, *axes) on another grid, by the lowest coefficients, which both grids have.

    grey: scale these so that an even grey stays the same; otherwise they stay as they are.
    """
    for dim, (n, count) in enumerate(zip(u.shape[2:], grid), start=2):
        if n == count:
            continue
        scale = math.sqrt(count / n) if grey else 1.0
        if max(n, count) <= LONGEST_MATRIX_AXIS:
            u = along(scale * between_axes(n, count).like(u), u, dim)
        else:
            kept = _axis(n).to_spectrum(u, dim, min(n, count)).movedim(dim, -1) * scale
            u = _axis(count).from_spectrum(F.pad(kept, (0, max(0, count - n))).movedim(-1, dim), dim)
    return u


@cache
def between_axes(n: int, count: int) -> Constant:
    """From n pixels of an axis to `count` with the same coefficients, as far as both have them; others are 0."""
    least = min(n, count)
    return Constant(cosine_basis(count)[:, :least] @ cosine_basis(n)[:, :least].mT)


def cosine_basis(n: int) -> Tensor:
    """V with V[i, j] = cos(pi j (i + 1/2) / n), columns of unit length (App. A.1)."""
    i = torch.arange(n, device="cpu").double()
    basis = torch.cos(math.pi * (i[:, None] + 0.5) * i / n) * math.sqrt(2 / n)
    basis[:, 0] /= math.sqrt(2)
    return basis


def _axis_eigenvalues(n: int) -> Constant:
    return Constant(-((math.pi * torch.arange(n).double() / n) ** 2))


def _outer_sum(axes: list[Tensor]) -> Tensor:
    total = torch.zeros(())
    for axis in axes:
        total = total[..., None] + axis
    return total.double()


def _columns(times: Tensor) -> Tensor:
    """Times as (B, L), or (1, 1) for one time."""
    return torch.atleast_2d(times).T


def _in_turns(operators: dict[int, Operator], u: Tensor, times: Tensor) -> Tensor:
    """Blur each axis of u, (B, C, *grid), by the operator for its length: always the last, which becomes the first."""
    shared = times.ndim == 0  # then all samples are blurred as if they were channels of one
    blurred = u.flatten(0, 1)[None, None] if shared else u[:, None]
    for n in reversed(u.shape[2:]):
        blurred = operators[n](blurred)
    blurred = blurred.movedim(-1, 2)
    return (blurred[0, 0].unflatten(0, u.shape[:2]) if shared else _without_times(blurred, times)).contiguous()


def _without_times(blurred: Tensor, times: Tensor) -> Tensor:
    """(B, L, C, *grid) as the user wants it: (L, B, C, *grid) for several times, (B, C, *grid) for one."""
    return blurred.movedim(1, 0) if times.ndim == 2 else blurred[:, 0]


def _last_to_first(matrices: Tensor, u: Tensor) -> Tensor:
    """Multiply the last axis of u, (B, L, ..., n) or (B, 1, ..., n), by matrices (B, L, n, n), and put it third.

    Products with the transposed operand need no copy of it, and all L read it only once.
    """
    rows = u.flatten(2, -2).mT
    if rows.shape[1] == matrices.shape[1]:
        product = matrices @ rows
    else:
        product = (matrices.flatten(1, 2) @ rows[:, 0]).unflatten(1, matrices.shape[1:3])
    return product.unflatten(3, u.shape[2:-1])


def along(matrix: Tensor, u: Tensor, dim: int) -> Tensor:
    """Multiply along one dimension by a matrix."""
    return (u.movedim(dim, -1) @ matrix.mT).movedim(-1, dim)


def _checked_grid(grid: Sequence[int]) -> tuple[int, ...]:
    grid = tuple(whole("each axis of a grid", n) for n in grid)
    if not 1 <= len(grid) <= 3 or min(grid) < 1:
        raise ValueError(f"a grid has 1, 2 or 3 axes of at least one pixel, not {grid}")
    return grid
