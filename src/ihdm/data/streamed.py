"""Batches from a stream: the same ones however many processes train, and however many read."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from ihdm.data.stream import Lane, Place, Stream, Threads
from ihdm.errors import IhdmError, UsageError

LANES = 16  # that a batch is divided into, if possible
AHEAD = 4  # batches that are read before they are needed
PATIENCE = 1  # seconds that `close` waits for batches that are nearly there
Part = tuple[Tensor, list[Place]]  # images (n, lanes, C, H, W), and where the lanes stand after them


class StreamedBatches:
    """The training images of one step after another, uint8, on `device`.

    Image i of a batch comes from lane i modulo the number of lanes. Each of several processes reads its own lanes.
    workers: how many processes read them; with 0, threads do.
    """

    def __init__(self, stream: Stream, batch_size: int, seed: int, device: torch.device, workers: int = 0):
        self.stream, self.batch_size, self.seed, self.device, self.workers = stream, batch_size, seed, device, workers
        self._places: Tensor | None = None  # (lanes, 5); for lanes of other processes those at the start
        self._step = 0
        self._reading: _Reading | None = None

    def go_on(self, step: int, places: list[list[int]] | None) -> None:
        """Begin with the batch of a step, at the places that its checkpoint records."""
        if step == 0 and places is None:
            return
        if not places or len(places[0]) != len(Place._fields) or self.batch_size % len(places):
            raise IhdmError("the checkpoint does not tell where its stream of images stood, so it cannot be continued")
        self._step, self._places = step, torch.tensor(places)

    def places(self, rank: int = 0, ranks: int = 1) -> Tensor | None:
        """Where each lane of this process stands, as a row like `Place`, (lanes, 5); rows of other lanes are 0."""
        if self._places is None:
            return None
        own = torch.zeros_like(self._places)
        own[rank::ranks] = self._places[rank::ranks]
        return own

    def at(self, step: int, rank: int = 0, ranks: int = 1) -> Tensor:
        """The images of a step, which must be the next one."""
        if step != self._step:
            raise ValueError(f"a stream is read in sequence: its next step is {self._step}, not {step}")
        if self._reading is None:
            self._reading = self._start(rank, ranks)
        images, places = self._reading.next()
        self._step += 1
        assert self._places is not None
        self._places[rank::ranks] = torch.tensor(places)
        return images.to(self.device, non_blocking=True)

    def labels_at(self, step: int, rank: int = 0, ranks: int = 1) -> Tensor | None:
        """None: a stream has no labels."""
        return None

    def close(self) -> None:
        """End the processes and threads that read; they start again when a step is asked for."""
        if self._reading:
            self._reading.close()
        self._reading = None

    def _start(self, rank: int, ranks: int) -> _Reading:
        if self._places is None:
            count = lanes(self.batch_size, ranks, len(self.stream.shards))
            self._places = torch.zeros(count, len(Place._fields), dtype=torch.long)
        count = len(self._places)
        if count % ranks:
            raise UsageError(
                f"the run reads its stream in {count} lanes, which {ranks} processes cannot share evenly; go on with a "
                f"number of processes that divides {count}"
            )
        own = range(rank, count, ranks)
        work = Work(self.stream, self.seed, self.batch_size // count, count, own, self._places.numpy())
        return _Reading(work, max((n for n in range(1, self.workers + 1) if len(own) % n == 0), default=0))


def lanes(batch_size: int, ranks: int, shards: int) -> int:
    """How many lanes a stream is read in: as many for one process as for several, if they can share them evenly.

    There are no more lanes than shards, as several would then read the same shard, unless each process needs one.
    """
    most = math.gcd(batch_size, LANES)
    return next((n for n in range(min(most, shards), 0, -1) if most % n == 0 and n % ranks == 0), ranks)


class Work(IterableDataset[Any]):
    """What one training process reads: `share` images from each of its lanes, again and again."""

    def __init__(self, stream: Stream, seed: int, share: int, count: int, own: Sequence[int], places: np.ndarray):
        self.stream, self.seed, self.share, self.count, self.own = stream, seed, share, count, own
        self.places = places.copy()
        self.threads: Threads | None = None

    def __iter__(self) -> Iterator[Part | IhdmError]:
        worker = get_worker_info()
        mine = self.own[worker.id :: worker.num_workers] if worker else self.own
        self.threads = Threads(self.stream, len(mine))
        try:
            rows = [self._lane(number, self.threads) for number in mine]
            while True:
                images = np.stack([row.take(self.share) for row in rows], 1)
                yield torch.from_numpy(images), [row.place for row in rows]
        except IhdmError as error:
            yield error  # if raised here, it would arrive as the text of a traceback
        finally:
            self.threads.close()

    def _lane(self, number: int, threads: Threads) -> Lane:
        return Lane(self.stream, number, self.count, self.seed, Place(*self.places[number].tolist()), threads)


class _Reading:
    """Work in progress, some batches ahead, in threads of this process or in worker processes."""

    def __init__(self, work: Work, workers: int):
        self._work, self._workers = work, workers
        self._thread = ThreadPoolExecutor(1)
        before = set(multiprocessing.active_children())
        self._parts: Iterator[Part | IhdmError] | None = self._thread.submit(_begun, work, workers).result()
        self._processes = set(multiprocessing.active_children()) - before
        self._ahead: deque[Future[Part]] = deque(self._thread.submit(self._joined) for _ in range(AHEAD))

    def next(self) -> Part:
        """The images of the next batch, (n, C, H, W), and the places after it."""
        self._ahead.append(self._thread.submit(self._joined))
        return self._ahead.popleft().result()

    def close(self) -> None:
        if self._work.threads:
            self._work.threads.close()
        self._thread.shutdown(wait=False, cancel_futures=True)
        wait([future for future in self._ahead if not future.cancelled()], PATIENCE)
        for process in self._processes:
            process.terminate()
        self._thread.shutdown()
        self._parts = None

    def _joined(self) -> Part:
        """The parts of all workers, each of which has every n-th lane, put together."""
        assert self._parts is not None
        parts = []
        for _ in range(max(1, self._workers)):
            try:
                part = next(self._parts)
            except (RuntimeError, OSError, EOFError, multiprocessing.ProcessError) as error:
                raise IhdmError(
                    f"reading the stream failed ({type(error).__name__}: {error}); if a process died for lack of "
                    f"memory, lower data.workers. The same command goes on from the last checkpoint"
                ) from error
            if isinstance(part, IhdmError):
                raise part
            parts.append(part)
        images, places = zip(*parts)
        return torch.stack(images, 2).flatten(0, 2), list(itertools.chain(*zip(*places)))


def _begun(work: Work, workers: int) -> Iterator[Part | IhdmError]:
    if not workers:
        return iter(work)
    loader = DataLoader(
        work,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=AHEAD,
        collate_fn=_as_it_is,
        worker_init_fn=_end_with_the_trainer,
        multiprocessing_context="spawn",  # a fork of a process with threads may hang
        generator=torch.Generator(),  # it draws a number that nobody needs, else from dropout's generator
    )
    if hasattr(signal, "pthread_sigmask"):  # the processes that this thread starts inherit the block
        from multiprocessing import resource_tracker

        resource_tracker.ensure_running()  # started later, it would lift the block
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    return iter(loader)


def _as_it_is(part: Any) -> Any:
    return part


def _end_with_the_trainer(_: int) -> None:
    """Let only the trainer end a worker: after a signal to all processes it may need some more batches."""
    if hasattr(signal, "sigwaitinfo"):
        threading.Thread(target=_wait_for_the_end, args=(os.getppid(),), daemon=True).start()
    elif hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _wait_for_the_end(trainer: int) -> None:
    while signal.sigwaitinfo({signal.SIGTERM}).si_pid != trainer:
        pass
    os._exit(0)
