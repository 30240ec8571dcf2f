"""Writing to the disk while other work goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any


class Writer:
    """Does one thing at a time in the background; what goes wrong there is raised at the next call."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._pending: Future[Any] | None = None

    def start(self, work: Callable[[], Any]) -> None:
        """Begin once what was begun before is done."""
        self.wait()
        self._pending = self._thread.submit(work)

    def check(self) -> None:
        """Raise what has gone wrong, without waiting for what has not."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Until everything is written."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()
