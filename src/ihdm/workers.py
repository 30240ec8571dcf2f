"""The processes that torchrun has started, or this one alone: dividing work among them, and joining the results."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta

import torch
from torch import Tensor, distributed

from ihdm.errors import UsageError

PATIENCE = timedelta(hours=12)  # one process may have to wait for another's share of a long job


class Workers:
    """This process (`rank`) among `count`. Work on n things is divided into ranges, so that results stay in order."""

    def __init__(self, rank: int = 0, count: int = 1):
        self.rank, self.count = rank, count

    @property
    def main(self) -> bool:
        """Whether this process is the one that prints and writes."""
        return self.rank == 0

    def device(self, device: torch.device) -> torch.device:
        """The device for this process: if there are several GPUs, its own."""
        if device.type != "cuda" or self.count == 1:
            return device
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())

    def share(self, n: int) -> range:
        """Which of the things 0..n-1 this process works on."""
        return range(n * self.rank // self.count, n * (self.rank + 1) // self.count)

    def join(self, part: Tensor) -> Tensor:
        """The parts of all processes, which may differ in length, concatenated, on the CPU."""
        if self.count == 1:
            return part.cpu()
        sizes = [torch.empty(1, dtype=torch.long) for _ in range(self.count)]
        distributed.all_gather(sizes, torch.tensor([len(part)]))
        padded = part.new_zeros(max(map(int, sizes)), *part.shape[1:], device="cpu")
        padded[: len(part)] = part
        parts = [torch.empty_like(padded) for _ in sizes]
        distributed.all_gather(parts, padded)
        return torch.cat([one[: int(size)] for one, size in zip(parts, sizes)])

    def agree(self, value: bool) -> bool:
        """Whether `value` is true in all processes."""
        return bool(self.join(torch.tensor([value])).all())


def count() -> int:
    """How many processes this job has, from the environment that torchrun gives each of them."""
    told = {name: os.environ.get(name, "") for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT")}
    if told["WORLD_SIZE"] in ("", "1"):
        return 1
    numbers = [told[name] for name in told if name != "MASTER_ADDR"]
    if not all(number.isdecimal() for number in numbers) or not told["MASTER_ADDR"]:
        raise UsageError(
            f"WORLD_SIZE is {told['WORLD_SIZE']!r}, as if torchrun had started several processes, but not all of "
            f"{', '.join(told)} are set as it sets them; start ihdm with torchrun, or unset WORLD_SIZE"
        )
    return int(told["WORLD_SIZE"])


def meet(backend: str, timeout: timedelta | None = None) -> None:
    """Form the group of all processes of this job, if there are several and it is not formed yet.

    When torchrun restarts the processes of one machine, it hands them the store of the attempt before (torch 2.13),
    where each may find the others' old addresses and wait there for ever. So every attempt has its own part of the
    store. Not so on several machines: each counts its own attempts, so they could not agree on one.
    """
    processes, local = count(), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if processes == 1 or distributed.is_initialized():
        return
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or local != processes:
        distributed.init_process_group(backend, timeout=timeout)
        return
    rank, attempt = int(os.environ["RANK"]), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = distributed.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), processes, is_master=False)
    own = distributed.PrefixStore(f"attempt-{attempt}", store)
    distributed.init_process_group(backend, store=own, rank=rank, world_size=processes, timeout=timeout)


@contextlib.contextmanager
def together() -> Iterator[Workers]:
    """All processes of this job, as torchrun describes them in the environment."""
    if count() == 1:
        yield Workers()
        return
    meet("gloo", PATIENCE)
    try:
        yield Workers(distributed.get_rank(), count())
    finally:
        distributed.destroy_process_group()
