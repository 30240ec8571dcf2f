"""The reverse chain (Alg. 2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import Tensor

from ihdm.noise import Noise

if TYPE_CHECKING:
    from ihdm.processes import Network, Process


def trajectory(process: Process, network: Network, u_K: Tensor, noise: Noise) -> Iterator[tuple[int, Tensor]]:
    """Yield (k, u_k) from the coarsest state u_K down to the image u_0.

    Each step takes mu and adds the sampling noise; the last adds none, which cannot help an image (App. B.1).
    """
    u = u_K
    yield process.K, u
    for k in range(process.K, 0, -1):
        u = process.step(network, u, k, noise(k) if k > 1 else None)
        yield k - 1, u


def sample(process: Process, network: Network, u_K: Tensor, noise: Noise) -> Tensor:
    """The image at the end of the reverse chain that starts in u_K (Alg. 2)."""
    u_0 = u_K
    for _, u in trajectory(process, network, u_K, noise):
        u_0 = u
    return u_0
