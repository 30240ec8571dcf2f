"""Plots, if matplotlib is installed, all in one style."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ihdm import extras

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

WIDTH = 9.0  # of a figure of tiles, in inches
DECADES = 3  # of signed maps that are told apart
LONG = 50.0  # an axis whose ends have a larger ratio would have too many powers of two


def check_available() -> None:
    """Refuse before any work if nothing could be drawn at its end."""
    extras.check("drawing plots", "plots", "matplotlib")


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


def tiles_size(rows: Sequence[Sequence[Tensor] | Tensor]) -> tuple[float, float]:
    """The size, in inches, of a figure that rows of pictures (C, H, W) fill."""
    height, width = rows[0][0].shape[1:]
    return WIDTH, WIDTH * len(rows) * height / (max(map(len, rows)) * width)


def tiles(
    axis: Any,
    rows: Sequence[Sequence[Tensor] | Tensor],
    row_labels: Sequence[str] = (),
    column_labels: Sequence[str] = (),
) -> None:
    """Rows of images (C, H, W) in [0, 1], pixel for pixel, with a label for each row and each column."""
    _draw(axis, [[coloured(image) for image in row] for row in rows], 1.0, row_labels, column_labels)


def signed_tiles(
    axis: Any, rows: Sequence[Sequence[Tensor]], row_labels: Sequence[str], column_labels: Sequence[str]
) -> None:
    """Rows of signed maps (H, W), each scaled by its largest absolute value: linear near 0, then logarithmic."""
    drawn = [[_signed_logarithm(values) for values in row] for row in rows]
    _draw(axis, drawn, math.nan, row_labels, column_labels, cmap="RdBu_r", vmin=-1, vmax=1)


def _signed_logarithm(values: Tensor) -> Any:
    relative = values / values.abs().max().clamp_min(1e-30)
    size = (1 + relative.abs() * 10**DECADES).log10() / math.log10(1 + 10**DECADES)
    return (relative.sign() * size).numpy()


def _draw(
    axis: Any, rows: Sequence[Sequence[Any]], empty: float, row_labels: Any, column_labels: Any, **colours: Any
) -> None:
    """Draw rows of arrays, (H, W) or (H, W, 3), a pixel apart, and label them; the rest of the axes is hidden."""
    import numpy as np

    height, width, *channels = rows[0][0].shape
    down, right = height + 1, width + 1
    page = np.full((len(rows) * down - 1, max(map(len, rows)) * right - 1, *channels), empty)
    for i, row in enumerate(rows):
        for j, array in enumerate(row):
            page[i * down : i * down + height, j * right : j * right + width] = array
    axis.imshow(page, interpolation="nearest", aspect="equal", **colours)
    axis.grid(False)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0, labeltop=True, labelbottom=False)
    axis.set_yticks([i * down + (height - 1) / 2 for i in range(len(row_labels))], row_labels)
    axis.set_xticks([j * right + (width - 1) / 2 for j in range(len(column_labels))], column_labels)
