"""Blurs of an image's two axes, as in common programs: what each does in the cosine basis, and in its own bases.

Along an axis, A = left diag(S) right^T: each coefficient of the blurred image in `left` is S times that of the sharp
image in `right`. For the heat equation both are the cosine basis. Other blurs differ from it near the border. On other
domains there is only the heat equation's blur, which acts on each coefficient of their Laplacian.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor

from ihdm.basis import Laplacian
from ihdm.heat import GridLaplacian

BOXES = 3  # that stand in for a Gaussian
TRUNCATED = 4  # widths from its centre where a sampled Gaussian is cut off
KEPT = 64  # blurs of an axis that are remembered


@dataclass(frozen=True)
class AxisBlur:
    """A blur along an axis of n pixels: left, right (n, n), orthogonal, in cosine coefficients; S (n,). float64.

    Without bases of its own it is a blur of all axes at once, and S has the shape of the grid.
    """

    left: Tensor | None
    S: Tensor
    right: Tensor | None

    @property
    def matrix(self) -> Tensor:
        """A, from cosine coefficients to cosine coefficients."""
        if self.left is None or self.right is None:
            return torch.diag(self.S.flatten())
        return self.left * self.S @ self.right.mT


Axes = tuple[AxisBlur, ...]  # one blur for each axis, or one for all
Bases = Sequence[Tensor]  # of each axis, in columns; if empty, the Laplacian's own


def kinds(laplacian: Laplacian) -> list[str]:
    """The kinds of blur that data on a domain may have."""
    return list(KINDS) if isinstance(laplacian, GridLaplacian) and len(laplacian.grid) == 2 else [HEAT]


def blur(laplacian: Laplacian, kind: str, width: float) -> Axes:
    """A kind of blur with a width, in pixels, on a domain."""
    if len(kinds(laplacian)) > 1:
        return tuple(axis_blur(kind, n, width) for n in laplacian.grid)
    return (AxisBlur(None, laplacian.left(width**2 / 2), None),)


def strength(axes: Axes) -> Tensor:
    """What is left of each coefficient, (*grid)."""
    first, *others = (axis.S for axis in axes)
    for S in others:
        first = first[..., None] * S
    return first


def lefts(axes: Axes) -> Bases:
    """The bases of blurred data."""
    return [axis.left for axis in axes if axis.left is not None]


def rights(axes: Axes) -> Bases:
    """The bases of sharp data."""
    return [axis.right for axis in axes if axis.right is not None]


def turned(u_hat: Tensor, bases: Bases) -> Tensor:
    """Coefficients (..., *grid), converted to other bases of each axis."""
    if not bases:
        return u_hat
    rows, columns = bases
    return rows.mT @ u_hat @ columns


def blurred(u_hat: Tensor, axes: Axes) -> Tensor:
    """A u_hat, the coefficients of the blurred data."""
    if not lefts(axes):
        return strength(axes) * u_hat
    rows, columns = (axis.matrix for axis in axes)
    return rows @ u_hat @ columns.mT


@lru_cache(KEPT)
def axis_blur(kind: str, n: int, width: float) -> AxisBlur:
    """A kind of blur with a width, in pixels, along an axis of n pixels."""
    blur = KINDS[kind]
    if blur is None or not width:
        S = GridLaplacian((n,)).left(width**2 / 2)
        return AxisBlur(torch.eye(n, dtype=torch.float64), S, torch.eye(n, dtype=torch.float64))
    left, S, right = torch.linalg.svd(in_cosines(blur(n, width)))
    return AxisBlur(left, S, right.mT)


def in_cosines(blur: Tensor) -> Tensor:
    """A matrix (n, n) from pixels to pixels, as one from cosine coefficients to cosine coefficients."""
    axis = GridLaplacian(blur.shape[:1])
    return axis.to_spectrum(axis.to_spectrum(blur[None])[0].mT[None])[0].mT


def boxes(n: int, width: float) -> Tensor:
    """Boxes one after another with a Gaussian's variance, border pixels repeated: the blur of Pillow and many others.

    Each is 2 l + 1 pixels wide, with a part of one more on either side (Gwosdek et al. 2011).
    """
    variance = width**2 / BOXES
    l = math.floor((math.sqrt(12 * variance + 1) - 1) / 2)  # noqa: E741
    part = (2 * l + 1) * (l * (l + 1) - 3 * variance) / (6 * (variance - (l + 1) ** 2))
    offset = torch.arange(-l - 1, l + 2)
    weight = torch.where(offset.abs() <= l, 1.0, part).double() / (2 * l + 1 + 2 * part)
    return torch.linalg.matrix_power(_convolution(n, offset, weight, "nearest"), BOXES)


def sampled(n: int, width: float, border: str) -> Tensor:
    """A Gaussian at whole pixels, cut off at four widths, as in scipy.ndimage.gaussian_filter, with its borders."""
    reach = int(TRUNCATED * width + 0.5)
    offset = torch.arange(-reach, reach + 1)
    weight = torch.exp(-offset.double().square() / (2 * width**2))
    return _convolution(n, offset, weight / weight.sum(), border)


def _convolution(n: int, offset: Tensor, weight: Tensor, border: str) -> Tensor:
    """The weighted sum over pixels at offsets, as a matrix (n, n); border: what is beyond it, in scipy's words."""
    place = torch.arange(n)[:, None] + offset
    taken = BORDERS[border](place, n)
    inside = (place == taken) | (border != "constant")
    return torch.zeros(n, n, dtype=torch.float64).scatter_add_(1, taken, weight * inside)


def _mirrored(place: Tensor, n: int) -> Tensor:
    """d c b | a b c d | c b a."""
    turn = max(1, 2 * n - 2)
    return (n - 1) - ((place % turn) - (n - 1)).abs()


BORDERS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "reflect": lambda place, n: torch.minimum(place % (2 * n), 2 * n - 1 - place % (2 * n)),  # d c b a | a b c d
    "nearest": lambda place, n: place.clamp(0, n - 1),
    "constant": lambda place, n: place.clamp(0, n - 1),  # and counted as zero
    "mirror": _mirrored,
    "wrap": lambda place, n: place % n,
}
HEAT, THREE_BOXES = "Gaussian", "three boxes"
KINDS: dict[str, Callable[[int, float], Tensor] | None] = {
    HEAT: None,  # the heat equation's; with the border "reflect", a sampled one is the same up to rounding
    THREE_BOXES: boxes,
    "Gaussian, border repeated": partial(sampled, border="nearest"),
    "Gaussian, black beyond": partial(sampled, border="constant"),
    "Gaussian, mirrored": partial(sampled, border="mirror"),
    "Gaussian, wrapped": partial(sampled, border="wrap"),
}
COMMONEST = (HEAT, THREE_BOXES)
