"""A small network that reads the width of a blur off an image of the kind that it has learned from.

It is shown what the best linear filter makes of the image under an assumed width: if that is too wide, rings are left,
if it is too narrow, blur. It answers by how much the assumed width is wrong, and how sure it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ihdm.blurs import THREE_BOXES
from ihdm.data import Images
from ihdm.pixels import ROUNDING
from ihdm.processes import Restoring
from ihdm.processes.spectrum import rotate
from ihdm.restoration import wiener

RANGE = 0.04, 0.18  # widths that it reads, as shares of the longer side
RATIOS = 0.95, 1.0, 1.05  # the widths that images are filtered with, in units of the assumed one
NOISE = 1.5 * ROUNDING  # assumed noise, more than one rounding because some programs round more than once
CHANNELS, WIDER = 64, 96  # of maps at a half and at a quarter of the size
GROUPS = 8  # of channels that are normalised together
HIDDEN = 128
WAVES = 4  # frequencies by which the network is told the width
UNIT = 0.05  # unit of the answer, log(true / assumed)
LEAST_ERROR, MOST_ERROR = 5e-4, 0.5
OFF = (0.01, 0.5), (0.03, 0.35), (0.1, 0.15)  # how wrong assumed widths are in training, and how often
BATCH, ALIKE = 256, 8  # images of a training step, and how many in a row share their blur
RATE, WARM = 2e-3, 200  # the learning rate, which falls to 0 linearly, and the steps of its warm-up
DECAY = 1e-3  # of weights
LONGEST = 1.0  # norm of gradients
AGAIN = 4  # times a width is read, each time from the answer before
APART = -0.03, 0.0, 0.03  # distances, in logarithms, of the widths to start reading from to each likely width
COVERED = 0.9  # the share of images whose width is in the interval

Blur = Callable[[Tensor, float], Tensor]  # takes planes (N, H, W), uint8, and a width; gives them blurred, in [0, 1]


@dataclass(frozen=True)
class Reading:
    """A blur as read: whether it is made of boxes, its width in pixels, and the relative error to expect of it."""

    boxes: bool
    width: float
    error: float

    def is_of(self, kind: str) -> bool:
        """Whether it is of a kind of blur (blurs.py)."""
        return self.boxes == (kind == THREE_BOXES)


def widths_read(grid: Sequence[int]) -> tuple[float, float]:
    """The narrowest and the widest blur that can be read off images of a size, in pixels."""
    return RANGE[0] * max(grid), RANGE[1] * max(grid)


def filtered(process: Restoring, y: Tensor, width: Tensor) -> Tensor:
    """What the network sees of images (B, C, H, W), float64, with assumed widths (B,): (B, 4 C, H, W), float32.

    Best linear estimates of the sharp image for widths around the assumed one, and how far the image is from what is
    expected of it, each coefficient in units of twice its spread.
    """
    laplacian, spectrum = process.laplacian, process.spectra[0]
    mean, power = rotate(spectrum.mean[None], spectrum.axes), spectrum.power
    y_hat, seen = rotate(laplacian.to_spectrum(y), spectrum.axes), []
    for ratio in RATIOS:
        T = laplacian.decay((ratio * width).square() / 2, y_hat)
        seen.append(rotate(wiener(y_hat, T, NOISE**2, mean, power), spectrum.axes.mT))
    T = laplacian.decay(width.square() / 2, y_hat)
    seen.append((y_hat - T * mean) / (power * T.square() + NOISE**2).sqrt() / 2)
    return laplacian.from_spectrum(torch.cat(seen, 1)).float()


class Block(nn.Module):
    """Two normalised convolutions with a residual connection."""

    def __init__(self, channels: int):
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(GROUPS, channels) for _ in range(2))
        self.convs = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for norm, conv in zip(self.norms, self.convs):
            h = conv(F.silu(norm(h)))
        return x + h


class WidthReader(nn.Module):
    """The network, for images of so many channels. `scale` corrects its stated errors to those on other images."""

    scale: Tensor

    def __init__(self, channels: int):
        super().__init__()
        self.fine = nn.Sequential(nn.Conv2d(4 * 4 * channels, CHANNELS, 3, padding=1), Block(CHANNELS))
        self.down = nn.Conv2d(CHANNELS, WIDER, 3, stride=2, padding=1)
        self.told = nn.Linear(2 * WAVES, WIDER)
        self.coarse = nn.Sequential(Block(WIDER), nn.GroupNorm(GROUPS, WIDER), nn.SiLU())
        self.head = nn.Sequential(nn.Linear(2 * WIDER, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, 5))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, seen: Tensor, width: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """log(true / assumed) and the log of its error, (B, 2) for Gaussian and boxes; log odds of boxes, (B,)."""
        seen = F.pad(seen, (0, seen.shape[-1] % 2, 0, seen.shape[-2] % 2), mode="replicate")
        angle = width.log()[:, None] * torch.arange(1, WAVES + 1, device=width.device)
        told = self.told(torch.cat([angle.cos(), angle.sin()], 1).float())
        h = self.coarse(self.down(self.fine(F.pixel_unshuffle(seen, 2))) + told[:, :, None, None])
        pixels = h.float().flatten(2)
        with torch.autocast(h.device.type, enabled=False):
            answer = self.head(torch.cat([pixels.mean(2), pixels.std(2, correction=0)], 1))
        error = answer[:, 2:4].clamp(math.log(LEAST_ERROR / UNIT), math.log(MOST_ERROR / UNIT))
        return UNIT * answer[:, :2], error + math.log(UNIT), answer[:, 4]

    @torch.no_grad()
    def read(self, process: Restoring, y: Tensor, likely: Iterable[float]) -> Reading | None:
        """The blur of an image (C, H, W), float64, from likely widths on; None if these end apart or out of range."""
        narrowest, widest = widths_read(y.shape[1:])
        device = next(self.parameters()).device
        width = torch.tensor([w * math.exp(x) for w in likely for x in APART]).double().clamp(narrowest, widest)
        images = y.expand(len(width), *y.shape)
        for _ in range(AGAIN):
            ratio, error, odds = self(filtered(process, images, width).to(device), width.float().to(device))
            boxes = odds > 0
            chosen = boxes.long()[:, None]
            width = width * ratio.gather(1, chosen)[:, 0].double().exp().cpu()
            width = width.clamp(narrowest, widest)
        logs, agreed = width.log(), bool(boxes.all()) or not bool(boxes.any())
        found, off = float(logs.mean().exp()), float(self.scale * error.gather(1, chosen).exp().mean())
        if not agreed or float(logs.max() - logs.min()) > off or not narrowest < found < widest:
            return None
        return Reading(bool(boxes[0]), found, off)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors to save, in half precision."""
        return {name: tensor.half().contiguous().cpu() for name, tensor in self.state_dict().items()}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], shape: Sequence[int]) -> WidthReader:
        """From what `tensors` returned, for images of a shape (C, H, W); ValueError if it is something else."""
        channels, *axes = shape
        if len(axes) != 2:
            raise ValueError("blur widths can only be read off images")
        with torch.device("meta"):
            expected = {name: tensor.shape for name, tensor in cls(channels).state_dict().items()}
        if {name: tensor.shape for name, tensor in tensors.items()} != expected:
            raise ValueError("its tensors are not those of a reader of blur widths for such images")
        if not all(tensor.isfinite().all() for tensor in tensors.values()):
            raise ValueError("not all of its numbers are finite")
        reader = cls(channels)
        reader.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
        return reader.eval()


def nll(answer: tuple[Tensor, Tensor, Tensor], ratio: Tensor, boxes: Tensor) -> Tensor:
    """Minus the log likelihood of log(true / assumed) and of the kind of blur, up to a constant, (B,)."""
    means, errors, odds = answer
    chosen = boxes.long()[:, None]
    mean, error = means.gather(1, chosen)[:, 0], errors.gather(1, chosen)[:, 0]
    told = F.binary_cross_entropy_with_logits(odds, boxes.to(odds), reduction="none")
    return error + ((ratio - mean) / error.exp()).square() / 2 + told


@dataclass(frozen=True)
class Blurred:
    """Images (B, C, H, W), float64, with the widths of their blurs, and whether those are made of boxes."""

    y: Tensor
    width: Tensor
    boxes: Tensor


class Examples:
    """Images blurred in many ways and by many widths; any number of them can be drawn."""

    def __init__(self, images: Images, gaussian: Sequence[Blur], boxes: Sequence[Blur]):
        """images: (N, C, H, W), uint8, sharp."""
        self.images, self.families = images, (gaussian, boxes)

    def draw(self, n: int, generator: torch.Generator) -> Blurred:
        """n examples; a few in a row share their blur."""
        drawn: list[Tensor] = []
        widths: list[float] = []
        by_boxes: list[bool] = []
        while len(drawn) * ALIKE < n:
            some = self.images[torch.randint(len(self.images), (ALIKE,), generator=generator)]
            low, high = (math.log(width) for width in widths_read(some.shape[2:]))
            place, family, way = torch.rand(3, generator=generator).tolist()
            ways, width = self.families[int(2 * family)], math.exp(low + place * (high - low))
            blur = ways[int(way * len(ways))]
            drawn.append(blur(some.flatten(0, 1), width).double().unflatten(0, some.shape[:2]))
            widths += [width] * ALIKE
            by_boxes += [family >= 0.5] * ALIKE
        return Blurred(torch.cat(drawn)[:n], torch.tensor(widths[:n]).double(), torch.tensor(by_boxes[:n]))


def trained(
    process: Restoring,
    examples: Examples,
    channels: int,
    steps: Iterable[int],
    *,
    count: int,
    device: torch.device,
    precision: torch.dtype,
) -> WidthReader:
    """A reader that has learned from examples; steps: the numbers from 0 to count - 1, perhaps with a progress bar."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        reader = WidthReader(channels).to(device)
    optimizer = torch.optim.AdamW(reader.parameters(), RATE, weight_decay=DECAY)
    chances = torch.tensor([often for _, often in OFF])
    for step in steps:
        optimizer.param_groups[0]["lr"] = RATE * min(1.0, (step + 1) / WARM) * (1 - step / count)
        some = examples.draw(BATCH, generator)
        off = torch.tensor([by for by, _ in OFF])[torch.multinomial(chances, BATCH, True, generator=generator)]
        ratio = off * torch.randn(BATCH, generator=generator)
        assumed = some.width * torch.exp(-ratio.double())
        seen = filtered(process, some.y, assumed)
        with torch.autocast(device.type, precision, enabled=precision != torch.float32):
            answer = reader(seen.to(device), assumed.float().to(device))
        optimizer.zero_grad()
        nll(answer, ratio.to(device), some.boxes.to(device)).mean().backward()
        nn.utils.clip_grad_norm_(reader.parameters(), LONGEST)
        optimizer.step()
    return reader.eval()


def scaled(reader: WidthReader, process: Restoring, others: Blurred) -> WidthReader:
    """Correct the errors that a reader states by those on other images: the share COVERED is then within them."""
    off = []
    for y, width, boxes in zip(others.y, others.width.tolist(), others.boxes.tolist()):
        reading = reader.read(process, y, [width])
        if reading and reading.boxes == boxes:
            off.append(abs(math.log(reading.width / width)) / reading.error)
    if off:
        reader.scale.mul_(torch.tensor(off).quantile(COVERED).half().to(reader.scale))
    return reader
