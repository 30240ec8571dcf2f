"""What the page computes: numbers and files in, paths of images out. Nothing here knows about the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import ExifTags
from torch import Tensor

from ihdm.app.numbers import whole, within
from ihdm.data.images import Unreadable
from ihdm.data.pictures import open_picture
from ihdm.data.single import read_one
from ihdm.domains import ImageDomain
from ihdm.errors import IhdmError, UsageError
from ihdm.execution import Execution
from ihdm.model import Model
from ihdm.noise import InterpolatedNoise, Noise, SeededNoise, mix_seed
from ihdm.processes import FromImages, Process, Restoring, restoring
from ihdm.restoration import Observation
from ihdm.restorer import Restorer
from ihdm.sampler import States

MOST_IMAGES, MOST_SIDE, MOST_STEPS, MOST_GUIDANCE = 64, 6, 32, 5.0
MOST_PIXELS, MOST_BYTES = 50_000_000, 20 * 2**20  # of an upload
NO_PICTURE = "That file is not a picture that can be read. PNG, JPEG and WebP are safe choices."
EASY = 100 * 32 * 32  # steps times pixels of an image that two cores make in less than a second
POOL = 4096  # starts that are searched for colours
EXTREME = 0.02  # this share of them, at either end of brightness, is taken only on request


@dataclass(frozen=True)
class Growth:
    """A chain as it is computed: pairs (k, u_k), where k goes through the levels."""

    levels: list[int]
    states: States

    def __iter__(self) -> States:
        return self.states


@dataclass(frozen=True)
class Upload:
    """A picture as the model takes it, what had to be done to it, and its blur width if that follows from its size."""

    image: Tensor
    note: str
    blur_width: float | None


@dataclass(frozen=True)
class Studio:
    """A model, and how it computes. `sampling` means settings of its process, as `chosen` in ways.py returns them."""

    model: Model
    precision: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        domain = self.model.config.domain
        if not isinstance(domain, ImageDomain):
            raise UsageError(f"the page shows images, but this model makes {domain.noun}s; use ihdm sample instead")

    @property
    def process(self) -> Process:
        return self.model.process

    @property
    def shape(self) -> tuple[int, int, int]:
        channels, height, width = self.model.config.shape
        return channels, height, width

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def execution(self) -> Execution:
        return Execution(self.precision, compiled=False)

    @property
    def in_colour(self) -> bool:
        return self.shape[0] == 3

    @property
    def steps(self) -> int:
        """How many steps lead to a picture by default."""
        return len(self.process.levels()) - 1

    @property
    def usual(self) -> int:
        """How many pictures to make by default: as many as a small computer makes in seconds."""
        work = self.steps * math.prod(self.shape[1:])
        return 16 if self.device.type == "cuda" or work <= EASY else 4

    @property
    def picks(self) -> bool:
        """Whether a visitor can choose what pictures start from."""
        return isinstance(self.process, FromImages)

    @property
    def restores(self) -> bool:
        return isinstance(self.process, Restoring) and bool(self.process.spectra)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels that a visitor can ask for."""
        return self.model.config.labels.names

    @property
    def guided(self) -> bool:
        """Whether there is something that guidance can lead pictures towards, or away from."""
        return bool(self.labels) or self.model.guide is not None

    @property
    def most_guidance(self) -> float:
        """The largest guidance that is offered; never less than the model's own."""
        return max(MOST_GUIDANCE, self.model.guidance())

    def grow(self, n: Any, seed: Any, label: str = "", guidance: Any = None, **sampling: Any) -> Growth:
        """The first n images of a seed. label: what they should show, if the model knows labels; "" for anything."""
        n, seed = whole(n, "The number of pictures", 1, MOST_IMAGES), whole(seed, "The seed")
        guidance = None if guidance is None else within(guidance, "The guidance", 0, self.most_guidance)
        numbers = torch.arange(n, device=self.device)
        told = self.model.told(numbers, seed, label or None)
        start, noise = self.model.start(numbers, seed, told, **sampling), self.model.noise(numbers, seed)
        return self._growth(start, noise, told, guidance=guidance, **sampling)

    def picking(self) -> FromImages:
        """The process, if its starts can be chosen."""
        if not isinstance(self.process, FromImages):
            raise UsageError(f"{self.process.title} has no starts to choose from")
        return self.process

    def starts(self, colour: Sequence[float] | float, count: int) -> Tensor:
        """Indices of starts: the nearest to an average colour or brightness, then others far apart, dark to bright."""
        prior = self.picking().prior
        pool = torch.arange(0, len(prior), -(-len(prior) // POOL))
        colours = prior.colours()[pool].cpu()
        light = colours.mean(1)
        wanted = torch.as_tensor(colour, dtype=torch.float32)
        if not self.in_colour:
            colours, wanted = light[:, None], wanted.view(1)
        chosen = [int((colours - wanted).norm(dim=1).argmin())]
        usual = (light >= light.quantile(EXTREME)) & (light <= light.quantile(1 - EXTREME))
        away = torch.where(usual, torch.inf, -1.0)
        while len(chosen) < count:
            away = torch.minimum(away, (colours - colours[chosen[-1]]).norm(dim=1))
            chosen.append(int(away.argmax()))
        return pool[[chosen[0], *sorted(chosen[1:], key=lambda i: float(light[i]))]]

    def matrix(self, starts: Tensor, seeds: Sequence[int]) -> Growth:
        """One image for each seed of the noise and each start: those of the first seed first."""
        columns = starts.repeat(len(seeds)).to(self.device)
        start = self.picking().near(columns, SeededNoise(0, columns, self.shape)(self.process.K + 1))
        rows = torch.tensor(seeds, device=self.device).repeat_interleave(len(starts))
        return self._growth(start, SeededNoise(0, rows, self.shape), self.model.told(rows))

    def between(self, one: Any, other: Any, steps: Any) -> Growth:
        """Images from the first of one seed to the first of another (Fig. 7b)."""
        one, other = whole(one, "The first seed"), whole(other, "The second seed")
        steps = whole(steps, "The number of steps", 2, MOST_STEPS)
        if one == other:
            raise UsageError(f"Both seeds are {one}: there is nothing in between. Choose two different seeds.")
        weight = torch.linspace(0, 1, steps, device=self.device)
        numbers = torch.zeros(steps, dtype=torch.int64, device=self.device)
        known, others = (self.model.told(numbers, seed) for seed in (one, other))
        start, end = self.model.noise(numbers, one, known), self.model.noise(numbers, other, others)
        told = None if known is None or others is None else torch.where(weight < 0.5, known, others)
        return self._growth(self.process.between(start, end, weight), InterpolatedNoise(start, end, weight), told)

    def futures(self, state: Tensor, level: int, n: int, *seeds: int) -> Growth:
        """Possible futures of one state (1, C, H, W) at a level, on the path of the first image of the first seed."""
        numbers = torch.arange(n, device=self.device)
        start, told = state.to(self.device).expand(n, -1, -1, -1), self.model.told(0 * numbers, seeds[0])
        return self._growth(start, SeededNoise(mix_seed(*seeds, level), numbers, self.shape), told, level)

    def upload(self, file: str | Path | None, negative: bool = False) -> Upload:
        """Read a picture that a visitor gave, or its negative, and bring it to the model's size and colours."""
        if file is None:
            raise UsageError("First choose a picture, or press Blur one for me.")
        path = Path(file)
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"That file is too large; the limit is {MOST_BYTES >> 20} MB.")
        width, height = _size(path)
        if width * height > MOST_PIXELS:
            raise UsageError(
                f"That picture has {width:,} x {height:,} pixels; the limit is {MOST_PIXELS / 1e6:.0f} million. "
                "Make it smaller first."
            )
        try:
            image, blur_width, _ = read_one(path, self.shape, resize=True)
        except Unreadable as error:
            raise Unreadable(NO_PICTURE) from error  # without the name of a temporary file
        except IhdmError as error:
            raise IhdmError(f"{str(error).replace(str(path), 'That picture')}.") from error
        return Upload(
            1 - image if negative else image, _note((width, height), (self.shape[2], self.shape[1])), blur_width
        )

    @property
    def restorer(self) -> Restorer:
        return self.model.restorer(self.execution)

    def restore(self, seen: Observation, n: Any, seed: Any, **sampling: Any) -> Growth:
        """Sharp images that a blurred one may have been; by default sampled in the way that restores best."""
        n, seed = whole(n, "The number of versions", 2, MOST_IMAGES), whole(seed, "The seed")
        states = self.restorer.states(seen, n, seed, **sampling)
        return Growth(self.restorer.process(**sampling).levels(seen.level), states)

    def blurred(self, seed: Any, k: int) -> Tensor:
        """An image that the model made, (C, H, W), blurred to level k: something to restore."""
        blurs = restoring(self.process)
        images = self.model.sample(1, whole(seed, "The seed"), execution=self.execution)
        return blurs.laplacian.dissipate(images, float(blurs.schedule.t[k]))[0].clamp(0, 1)

    def _growth(
        self,
        start: Tensor,
        noise: Noise,
        told: Tensor | None,
        level: int | None = None,
        guidance: float | None = None,
        **sampling: Any,
    ) -> Growth:
        """The chain from a state at a level, by default the coarsest."""
        options: dict[str, Any] = {"condition": told, "guidance": guidance, "execution": self.execution}
        states = self.model.path(start, noise, level=level, **options, **sampling)
        return Growth(self.process.with_sampling(**sampling).levels(level), states)


def _size(path: Path) -> tuple[int, int]:
    """Width and height as displayed, from the file's header alone."""
    try:
        with open_picture(path) as picture:
            turned = picture.getexif().get(ExifTags.Base.Orientation, 1) >= 5  # it lies on its side
            return (picture.height, picture.width) if turned else picture.size
    except Exception as error:  # of many kinds: the file is not a picture, or too large a one
        raise Unreadable(NO_PICTURE) from error


def _note(size: tuple[int, int], grid: tuple[int, int]) -> str:
    """What was done to a picture of one size to bring it to another, both (width, height)."""
    if size == grid:
        return ""
    same_form = size[0] * grid[1] == size[1] * grid[0]
    cut = "" if same_form else "cut to its middle and "
    larger = min(size[0] / grid[0], size[1] / grid[1]) > 1
    text = f"The picture ({size[0]} x {size[1]}) was {cut}{'shrunk' if larger else 'enlarged'} to {grid[0]} x {grid[1]}"
    return text + (
        " pixels, the size that this model knows. Shrinking also makes it sharper." if larger else " pixels."
    )
