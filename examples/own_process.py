"""A process and a network of your own, and all of ihdm with them (docs/your-own-process.md):

python examples/own_process.py train digits --run runs/faded --set process.kind=fading network.kind=mixer
python examples/own_process.py sample runs/faded --steps 5
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ihdm.cli import main
from ihdm.constant import Constant
from ihdm.domains import Domain
from ihdm.noise import InterpolatedNoise, SeededNoise
from ihdm.processes import Network, Process, Steps
from ihdm.processes.process import Batches, fitting
from ihdm.registry import NETWORKS, PROCESSES
from ihdm.settings import setting


@PROCESSES.register("fading")
class Fading(Process):
    """u_k = (1 - s) u_0 + s (mean + noise eps), s = k / K: images fade into noise around their mean."""

    title, grown = "fading", "faded in from noise"

    @dataclass(frozen=True)
    class Settings:
        K: int = setting(100, "number of levels", least=1, most=100_000)
        noise: float = setting(0.5, "standard deviation of the noise that images fade into", above=0, most=10)

    def __init__(self, settings: Settings, sampling: Steps, mean: Tensor):
        self.K, self.noise, self.sampling, self.mean = settings.K, settings.noise, sampling, Constant(mean)

    @classmethod
    def from_images(cls, settings: Settings, sampling: Steps, domain: Domain, batches: Batches) -> Fading:
        return cls(settings, sampling, torch.cat([*batches(1000, "averaging images")]).double().mean(0))

    @classmethod
    def from_state(cls, settings: Settings, sampling: Steps, domain: Domain, state: Mapping[str, Tensor]) -> Fading:
        fitting(state, {"mean": domain.shape})
        return cls(settings, sampling, state["mean"])

    def state(self) -> dict[str, Tensor]:
        return {"mean": self.mean.value}

    def noised(self, u_0: Tensor, k: Tensor, eps: Tensor | float) -> Tensor:
        return torch.lerp(u_0, self.mean.like(u_0) + self.noise * eps, (k.to(u_0) / self.K).view(-1, 1, 1, 1))

    def loss(self, network: Network, u_0: Tensor, k: Tensor, eps: Tensor) -> Tensor:
        return (network(self.noised(u_0, k, eps), k) - u_0).square().flatten(1).mean(1)

    def step(self, network: Network, u_k: Tensor, k: Tensor, j: Tensor, eps: Tensor) -> Tensor:
        u_0, (s_k, s_j) = network(u_k, k.expand(u_k.shape[0])), ((n.to(u_k) / self.K).view(-1, 1, 1, 1) for n in (k, j))
        seen = (u_k - self.noised(u_0, k, 0.0)) / (s_k * self.noise)  # the noise in u_k, if the network is right
        kept = s_j * (1 - s_k) / (s_k * (1 - s_j))  # how much of it u_j had, if images fade step by step
        return self.noised(u_0, j, kept * seen + (1 - kept**2).sqrt() * eps)

    def start(self, noise: SeededNoise | InterpolatedNoise) -> Tensor:
        eps = noise(self.K + 1)
        return self.mean.like(eps) + self.noise * eps


@NETWORKS.register("mixer")
class Mixer(nn.Module):
    """Blocks that mix neighbouring pixels, then the numbers of each pixel; every pixel is told level and kind."""

    @dataclass(frozen=True)
    class Settings:
        width: int = setting(32, "how many numbers represent each pixel", least=2, most=65_536)
        depth: int = setting(4, "number of blocks, each of which looks three pixels further", least=1, most=1000)
        kinds: int = setting(0, "number of kinds of images that a condition can name", least=0, most=1_000_000)

    def __init__(self, channels: int, width: int, depth: int, kinds: int):
        super().__init__()
        self.enter, self.leave = nn.Conv2d(channels, width, 3, padding=1), nn.Conv2d(width, channels, 1)
        self.level = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.kind = nn.Embedding(1 + kinds, width)  # the first stands for no condition
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))

    @classmethod
    def from_settings(cls, settings: Settings, domain: Domain) -> Mixer:
        return cls(domain.shape[0], settings.width, settings.depth, settings.kinds)

    def forward(self, u: Tensor, k: Tensor, condition: Tensor | None = None) -> Tensor:
        kind = torch.zeros_like(k) if condition is None else 1 + condition
        known = self.level(waves(k, self.enter.out_channels).to(u)) + self.kind(kind)
        h = self.enter(u)
        for block in self.blocks:
            h = block(h, known)
        return self.leave(h)


class Block(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.pixels = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.known = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, h: Tensor, known: Tensor) -> Tensor:
        near = self.pixels(h).movedim(1, -1) + self.known(known)[:, None, None]
        return h + self.mix(self.norm(near)).movedim(-1, 1)


def waves(k: Tensor, width: int) -> Tensor:
    """Each number as cosines and sines of many frequencies."""
    frequencies = torch.exp(-math.log(10_000) * torch.arange(width // 2, device=k.device) * 2 / width)
    angles = k[:, None] * frequencies
    return nn.functional.pad(torch.cat([angles.cos(), angles.sin()], dim=1), (0, width % 2))


if __name__ == "__main__":
    main()
