"""The reverse chain (Alg. 2), along any sequence of levels."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from ihdm.networks import told
from ihdm.noise import Noise
from ihdm.processes.process import Process

States = Iterator[tuple[int, Tensor]]
Step = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None], Tensor]


def reverse_step(process: Process, network: Any, noise: Noise) -> Step:
    """A function of the state of a chain, the levels k, j, i (tensors without dimensions) and a condition.

    It steps from level k to level j; i is the level before k. The last step adds no noise, which could not improve an
    image (App. B.1).
    """

    def step(state: Tensor, k: Tensor, j: Tensor, i: Tensor, condition: Tensor | None = None) -> Tensor:
        return process.advance(told(network, condition), state, k, j, i, noise(k) * (j > 0))

    return step


def chain(process: Process, step: Step, u: Tensor, levels: Sequence[int], condition: Tensor | None = None) -> States:
    """Yield (k, u_k) for each of the levels, starting from u, a state of the first, such as the coarsest, u_K."""
    yield levels[0], u
    state = process.begin(u)
    places = torch.tensor([levels[0], *levels], device=u.device)
    for n, level in enumerate(levels[1:]):
        with torch.no_grad():
            state = step(state, places[n + 1], places[n + 2], places[n], condition)
        yield level, process.shown(state)


def trajectory(process: Process, network: Any, u_K: Tensor, noise: Noise, condition: Tensor | None = None) -> States:
    """Yield (k, u_k), k from K to 0, of the reverse chain that starts at u_K."""
    return chain(process, reverse_step(process, network, noise), u_K, process.levels(), condition)


def sample(process: Process, network: Any, u_K: Tensor, noise: Noise, condition: Tensor | None = None) -> Tensor:
    """The image at the end of the reverse chain that starts at u_K (Alg. 2)."""
    return last(trajectory(process, network, u_K, noise, condition))


def last(states: States) -> Tensor:
    """The image at the end of a chain."""
    return deque(states, maxlen=1)[0][1]
