"""Plots, if matplotlib is installed, all in one style."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ihdm.errors import IhdmError
from ihdm.extras import needs

if TYPE_CHECKING:
    from torch import Tensor

STYLE: dict[Any, Any] = {
    "figure.dpi": 120,
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    # Okabe and Ito's colours, which most colour-blind people can tell apart
    "axes.prop_cycle": "cycler('color', ['#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000'])",
}

LONG = 50.0  # an axis whose ends have a larger ratio would have too many powers of two


def check_available() -> None:
    """Refuse before any work if nothing could be drawn at its end."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise IhdmError(needs("drawing plots", "plots", "matplotlib")) from error


@contextlib.contextmanager
def figure(
    path: Path, columns: int = 1, size: tuple[float, float] = (5.2, 3.6), widths: Sequence[float] | None = None
) -> Iterator[list[Any]]:
    """Axes side by side, each `size` inches large, saved as `path` at the end. widths: relative to each other."""
    check_available()
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        page = Figure(figsize=(size[0] * columns, size[1]))
        FigureCanvasAgg(page)
        axes = page.subplots(1, columns, squeeze=False, width_ratios=widths)[0]
        yield list(axes)
        page.savefig(path)


def octaves(axis: Any, times: Sequence[float] = (1,)) -> None:
    """Label a logarithmic axis of about a decade with powers of two, times each of `times`, as plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(base=2, subs=times))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def plain_numbers(axis: Any, values: Any) -> None:
    """Label a logarithmic axis with plain numbers: powers of two or, if it is long, 1, 2 and 5 times powers of ten."""
    from matplotlib.ticker import LogLocator

    octaves(axis)
    if max(values) > LONG * min(values):
        axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))


def coloured(image: Tensor) -> Any:
    """An image (C, H, W) as an array (H, W, 3) in [0, 1]: its first three channels, or its first if it has only two."""
    shown = image[: 3 if len(image) > 2 else 1].detach().float().clamp(0, 1).cpu()
    return shown.expand(3, -1, -1).permute(1, 2, 0).numpy()


def tiles_size(rows: Sequence[Sequence[Tensor] | Tensor], width: float = 9.0) -> tuple[float, float]:
    """The size, in inches, of a figure that rows of pictures (C, H, W) fill."""
    height_of_one, width_of_one = rows[0][0].shape[1:]
    return width, width * len(rows) * height_of_one / (max(map(len, rows)) * width_of_one)


def tiles(
    axis: Any,
    rows: Sequence[Sequence[Tensor] | Tensor],
    row_labels: Sequence[str] = (),
    column_labels: Sequence[str] = (),
    gap: int = 1,
) -> None:
    """Rows of images (C, H, W) in [0, 1], pixel for pixel, with a label for each row and each column."""
    import numpy as np

    height, width = rows[0][0].shape[1:]
    page = np.ones((len(rows) * (height + gap) - gap, max(map(len, rows)) * (width + gap) - gap, 3))
    for top, left, image in _places(rows, height + gap, width + gap):
        page[top : top + height, left : left + width] = coloured(image)
    axis.imshow(page, interpolation="nearest", aspect="equal")
    _label(axis, row_labels, column_labels, (height, width), gap)


def signed_tiles(
    axis: Any,
    rows: Sequence[Sequence[Tensor]],
    row_labels: Sequence[str] = (),
    column_labels: Sequence[str] = (),
    gap: int = 1,
    decades: int = 3,
) -> None:
    """Rows of signed maps (H, W), each scaled by its largest absolute value: linear near 0, then logarithmic."""
    import numpy as np

    height, width = rows[0][0].shape
    page = np.full((len(rows) * (height + gap) - gap, max(map(len, rows)) * (width + gap) - gap), np.nan)
    for top, left, values in _places(rows, height + gap, width + gap):
        relative = values / values.abs().max().clamp_min(1e-30)
        logarithm = relative.sign() * (1 + relative.abs() * 10**decades).log10() / np.log10(1 + 10**decades)
        page[top : top + height, left : left + width] = logarithm.numpy()
    axis.imshow(page, interpolation="nearest", aspect="equal", cmap="RdBu_r", vmin=-1, vmax=1)
    _label(axis, row_labels, column_labels, (height, width), gap)


def _places(rows: Sequence[Sequence[Tensor] | Tensor], down: int, right: int) -> Iterator[tuple[int, int, Tensor]]:
    return ((i * down, j * right, image) for i, row in enumerate(rows) for j, image in enumerate(row))


def _label(axis: Any, rows: Sequence[str], columns: Sequence[str], size: tuple[int, int], gap: int) -> None:
    """Label the rows and columns of tiles, and hide the rest of the axes."""
    height, width = size
    axis.grid(False)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0, labeltop=True, labelbottom=False)
    axis.set_yticks([i * (height + gap) + (height - 1) / 2 for i in range(len(rows))], rows)
    axis.set_xticks([j * (width + gap) + (width - 1) / 2 for j in range(len(columns))], columns)
