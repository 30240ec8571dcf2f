"""The heat equation on a grid, solved exactly in its cosine eigenbasis (Eq. 1-2, App. A.1).

`GridLaplacian` is the paper's operator. `GaussianFilter` and `FiniteDifferences` are the two alternatives that
App. C.6 discusses; all three blur with `dissipate(u, t)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

# Beyond this length a matrix per sample costs more memory than a fast transform and, on a CPU, time (docs/design.md).
LONGEST_MATRIX_AXIS = 512


class Constant:
    """A float64 tensor and its copies, one for each device and precision that has asked for it."""

    def __init__(self, value: Tensor):
        self.value = value.detach().to("cpu", torch.float64)
        self._copies: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def like(self, u: Tensor) -> Tensor:
        """The constant on the device and in the precision of `u`."""
        key = (u.device, u.dtype)
        if key not in self._copies:
            self._copies[key] = self.value.to(u.device, u.dtype)
        return self._copies[key]


class GridLaplacian:
    """Laplace = V diag(eigenvalues) V^T on a grid with Neumann boundaries, V^T the orthonormal DCT-II (App. A.1).

    For a grid (H, W) the eigenvalues are -pi^2 (m^2 / H^2 + n^2 / W^2). Tensors have shape (B, C, *grid).
    """

    def __init__(self, grid: Sequence[int]):
        self.grid = _checked_grid(grid)
        self._axes = [_MatrixAxis(n) if n <= LONGEST_MATRIX_AXIS else _FourierAxis(n) for n in self.grid]
        self._eigenvalues = Constant(_outer_sum([axis.eigenvalues.value for axis in self._axes]))

    def __repr__(self) -> str:
        return f"GridLaplacian({self.grid})"

    @property
    def eigenvalues(self) -> Tensor:
        """All eigenvalues, float64, shape `grid`; none is positive."""
        return self._eigenvalues.value

    def decay(self, t: Tensor, like: Tensor) -> Tensor:
        """exp(t eigenvalues), shape (B, 1, *grid) for `t` of shape (B,): what F(t) does to each coefficient (Eq. 2)."""
        eigenvalues = self._eigenvalues.like(like)
        return torch.exp(t.to(like).view(-1, 1, *[1] * len(self.grid)) * eigenvalues)

    def to_spectrum(self, u: Tensor, lowest: Sequence[int] | None = None) -> Tensor:
        """u_hat = V^T u (Eq. 2), or only its `lowest` frequencies along each axis, which takes little time."""
        u_hat = _checked_image(u, self.grid)
        for dim, (axis, count) in enumerate(zip(self._axes, lowest or self.grid), start=2):
            u_hat = axis.to_spectrum(u_hat, dim, count)
        return u_hat.to(u.dtype)

    def from_spectrum(self, u_hat: Tensor) -> Tensor:
        """u = V u_hat (Eq. 2)."""
        u = _checked_image(u_hat, self.grid)
        for dim, axis in enumerate(self._axes, start=2):
            u = axis.from_spectrum(u, dim)
        return u.to(u_hat.dtype)

    def dissipate(self, u: Tensor, t: Tensor | float) -> Tensor:
        """F(t) u = V exp(t eigenvalues) V^T u (Eq. 2), with one time for all samples or one per sample.

        exp separates over the axes, so each is blurred by itself.
        """
        blurred = _checked_image(u, self.grid)
        times = _times(blurred, t)
        for dim, axis in enumerate(self._axes, start=2):
            blurred = axis.dissipate(blurred, times, dim)
        return blurred.to(u.dtype)


class _MatrixAxis:
    """One short axis: products with V, and with V exp(t eigenvalues) V^T."""

    def __init__(self, n: int):
        self.eigenvalues = _axis_eigenvalues(n)
        self._basis = Constant(_cosine_basis(n))

    def to_spectrum(self, u: Tensor, dim: int, count: int) -> Tensor:
        return _along(u, self._basis.like(u)[:, :count].mT, dim)

    def from_spectrum(self, u_hat: Tensor, dim: int) -> Tensor:
        return _along(u_hat, self._basis.like(u_hat), dim)

    def dissipate(self, u: Tensor, t: Tensor, dim: int) -> Tensor:
        basis = self._basis.like(u)
        decay = torch.exp(t[..., None, None] * self.eigenvalues.like(u))
        return _along(u, (basis * decay) @ basis.mT, dim)


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

    def dissipate(self, u: Tensor, t: Tensor, dim: int) -> Tensor:
        decay = torch.exp(t[..., None] * self.eigenvalues.like(u))
        decay = decay.view(-1, *[self.n if d == dim else 1 for d in range(1, u.ndim)])
        return self.from_spectrum(self.to_spectrum(u, dim, self.n) * decay, dim)


class GaussianFilter:
    """Convolution with a sampled Gaussian of size 2N - 1 per axis, sigma_B^2 = 2t, zeros outside the image (App. C.6).

    Restricted to the image it is a product with a Toeplitz matrix per axis.
    """

    def __init__(self, grid: Sequence[int]):
        self.grid = _checked_grid(grid)

    def dissipate(self, u: Tensor, t: Tensor | float) -> Tensor:
        """Blur to the width sqrt(2t), with one time for all samples or one per sample."""
        blurred = _checked_image(u, self.grid)
        times = _times(blurred, t).clamp_min(torch.finfo(blurred.dtype).tiny)[..., None]
        for dim, n in enumerate(self.grid, start=2):
            offset = torch.arange(1 - n, n, device=u.device, dtype=blurred.dtype)
            kernel = torch.exp(-offset.square() / (4 * times))
            kernel = kernel / kernel.sum(-1, keepdim=True)
            position = torch.arange(n, device=u.device)
            toeplitz = kernel[..., position[:, None] - position + n - 1]
            blurred = _along(blurred, toeplitz, dim)
        return blurred.to(u.dtype)


class FiniteDifferences:
    """Forward Euler steps with the kernel of Eq. (11), mirrored at the boundary (App. C.6).

    Every sample takes the same number of steps, as few as stability allows: dt <= 1 / (2 d) in d dimensions.
    """

    def __init__(self, grid: Sequence[int]):
        self.grid = _checked_grid(grid)

    def dissipate(self, u: Tensor, t: Tensor | float) -> Tensor:
        """Integrate the heat equation to time t, with one time for all samples or one per sample."""
        blurred = _checked_image(u, self.grid)
        times = _times(blurred, t)
        steps = math.ceil(float(times.max()) * 2 * len(self.grid))
        dt = (times / max(steps, 1)).view(-1, *[1] * (u.ndim - 1))
        for _ in range(steps):
            blurred = blurred + dt * self._laplacian(blurred)
        return blurred.to(u.dtype)

    def _laplacian(self, u: Tensor) -> Tensor:
        total = torch.zeros_like(u)
        for dim, n in enumerate(self.grid, start=2):
            first, last = u.narrow(dim, 0, 1), u.narrow(dim, n - 1, 1)
            flux = torch.cat([first, u, last], dim).diff(dim=dim)
            total = total + flux.diff(dim=dim)
        return total


def _cosine_basis(n: int) -> Tensor:
    """V with V[i, j] = cos(pi j (i + 1/2) / n), columns of unit length (App. A.1)."""
    i = torch.arange(n).double()
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


def _along(u: Tensor, matrix: Tensor, dim: int) -> Tensor:
    """Multiply along one dimension by a matrix, shared (n, n) or one per sample (B, n, n)."""
    if matrix.ndim == 3:
        matrix = matrix.view(len(matrix), *[1] * (u.ndim - 3), *matrix.shape[1:])
    if dim == u.ndim - 1:
        return u @ matrix.mT
    if dim == u.ndim - 2:
        return matrix @ u
    return (u.movedim(dim, -1) @ matrix.mT).movedim(-1, dim)


def _times(u: Tensor, t: Tensor | float) -> Tensor:
    times = torch.as_tensor(t, device=u.device, dtype=u.dtype)
    if times.ndim > 1 or (times.ndim == 1 and len(times) != len(u)):
        raise ValueError(f"t has shape {tuple(times.shape)}; expected one time, or one for each of {len(u)} samples")
    return times


def _checked_grid(grid: Sequence[int]) -> tuple[int, ...]:
    grid = tuple(int(n) for n in grid)
    if not 1 <= len(grid) <= 3 or min(grid) < 1:
        raise ValueError(f"a grid has 1, 2 or 3 axes of at least one pixel, not {grid}")
    return grid


def _checked_image(u: Tensor, grid: tuple[int, ...]) -> Tensor:
    if u.ndim != 2 + len(grid) or tuple(u.shape[2:]) != grid:
        raise ValueError(f"expected a tensor of shape (B, C, {', '.join(map(str, grid))}), got {tuple(u.shape)}")
    if not u.is_floating_point():
        raise TypeError(f"expected floating point values, got {u.dtype}; scale images to [0, 1] first")
    return u if u.dtype in (torch.float32, torch.float64) else u.float()
