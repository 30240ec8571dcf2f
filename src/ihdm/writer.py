"""Writing to the disk while other work goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


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
