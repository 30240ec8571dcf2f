"""Writing to the disk while other work goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from ihdm.disk import FULL
from ihdm.errors import IhdmError


class Writer:
    """Does one job at a time in the background; if it fails, the next call raises its error."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._pending: Future[Any] | None = None

    def start(self, work: Callable[[], Any]) -> None:
        """Start a job once the one before it is done."""
        self.wait()
        self._pending = self._thread.submit(work)

    def check(self) -> None:
        """Raise the error of a job that has failed, without waiting for one that is still running."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Wait until everything is written."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()


@contextlib.contextmanager
def advice_on_room(run: Path) -> Iterator[None]:
    """If something cannot be written, say so and what to do."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        full = getattr(error, "errno", None) in FULL or "No space left" in str(error)
        raise IhdmError(
            f"{run} could not be written to ({error}); what was saved before is intact. "
            f"{'Free some space' if full else 'Fix that'} and run the same command to continue from there"
        ) from error
