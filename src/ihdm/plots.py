"""Curves, for those who have matplotlib: one look for all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ihdm.errors import IhdmError

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
    "axes.prop_cycle": "cycler('color', ['#1b4965', '#d1495b', '#edae49', '#66a182', '#8d6a9f', '#7a7a7a'])",
}


def check_available() -> None:
    """Refuse early what cannot be drawn later."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise IhdmError(
            "figures are drawn with matplotlib, which is not installed: pip install 'ihdm[plots]'"
        ) from error


@contextlib.contextmanager
def figure(path: Path, columns: int = 1, size: tuple[float, float] = (5.2, 3.6)) -> Iterator[list[Any]]:
    """Axes side by side, saved as `path` at the end."""
    check_available()
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        page = Figure(figsize=(size[0] * columns, size[1]))
        FigureCanvasAgg(page)
        axes = page.subplots(1, columns, squeeze=False)[0]
        yield list(axes)
        page.savefig(path)
