"""The reverse chain (Alg. 2)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from ihdm.noise import Noise

if TYPE_CHECKING:
    from ihdm.processes import Network, Process

Step = Callable[[Tensor, Tensor], Tensor]


class Reverse(Protocol):
    """What can go from level k to level k - 1 with noise eps."""

    def step(self, network: Network, u_k: Tensor, k: Tensor, eps: Tensor) -> Tensor: ...


def reverse_step(process: Reverse, network: Network, noise: Noise) -> Step:
    """The function from u_k and k (a tensor without dimensions) to u_prev.

    It takes mu and adds the sampling noise; the last step adds none, which cannot help an image (App. B.1).
    """

    def step(u_k: Tensor, k: Tensor) -> Tensor:
        return process.step(network, u_k, k, noise(k) * (k > 1))

    return step


def chain(step: Step, u: Tensor, level: int) -> Iterator[tuple[int, Tensor]]:
    """Yield (k, u_k) from a state of a level, such as the coarsest, u_K, down to the image u_0."""
    yield level, u
    for k in range(level, 0, -1):
        u = step(u, torch.full((), k, device=u.device))
        yield k - 1, u


def trajectory(process: Process, network: Network, u_K: Tensor, noise: Noise) -> Iterator[tuple[int, Tensor]]:
    """Yield (k, u_k), k = K..0, of the reverse chain that starts in u_K."""
    return chain(reverse_step(process, network, noise), u_K, process.K)


def sample(process: Process, network: Network, u_K: Tensor, noise: Noise) -> Tensor:
    """The image at the end of the reverse chain that starts in u_K (Alg. 2)."""
    return last(trajectory(process, network, u_K, noise))


def last(states: Iterator[tuple[int, Tensor]]) -> Tensor:
    """The image at the end of a chain."""
    return deque(states, maxlen=1)[0][1]
