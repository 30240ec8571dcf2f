"""What every study works with: images, trained models, a way to tell sets apart, and a place for results."""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ihdm.config import Config, EngineConfig, ProcessConfig, as_tree, load_config
from ihdm.data import ImageSet, load_images
from ihdm.data.sources import absolute
from ihdm.engine import choose_device, choose_precision, placed
from ihdm.errors import UsageError
from ihdm.evaluation import images_for
from ihdm.metrics.distances import Reference, frechet_distance
from ihdm.metrics.inception import Inception, features, find_inception
from ihdm.model import Model
from ihdm.pixels import to_unit
from ihdm.trainer import Trainer

QUICK = ("trainer.steps=600", "trainer.checkpoint_every=600", "trainer.sample_every=600")
USUAL = ("mnist-small", "digits")  # presets that are taken unless one is named
DDPM = ("process.kind=ddpm", "process.delta_ratio=1")


@dataclass(frozen=True)
class Findings:
    """numbers: for JSON. look_for, paper, found: what the picture shows, what the paper says, what came out."""

    numbers: dict[str, Any]
    look_for: str
    paper: str
    found: str


@dataclass(frozen=True)
class Lab:
    """out: the folder for results; preset, settings: of models that are trained; model: one to use instead.

    quick: small and fast rather than sharp, on the embedded digits unless something else is named.
    """

    out: Path
    preset: str = "digits"
    settings: tuple[str, ...] = ()
    model_name: str | None = None
    data: str | None = None
    quick: bool = False
    seed: int = 0
    device_name: Any = "auto"
    inception: Path | None = None

    @cached_property
    def config(self) -> Config:
        config = load_config(self.preset, [*(QUICK if self.quick else ()), *self.settings])
        source = absolute(self.data or config.data.source)
        return config.with_settings([f"data.source={source}", f"engine.device={self.device_name}"])

    @cached_property
    def device(self) -> torch.device:
        return choose_device(self.device_name)

    @cached_property
    def images(self) -> ImageSet:
        """The images of the given model's shape, or those of the preset."""
        if self.model_name is not None and self.data is not None:
            return images_for(self._given, self.data, resize=True)
        return load_images(self.config.data, held_out_most=None)

    @property
    def precision(self) -> torch.dtype:
        return choose_precision(self.config.engine.precision, self.device, self.images.shape[1] * self.images.shape[2])

    def model(self, *settings: str, images: ImageSet | None = None) -> Model:
        """The given model, if nothing else is asked for; else one trained with the settings, once for all studies."""
        if self.model_name is not None and not settings and images is None:
            return self._given
        return self.trained(*settings, images=images)

    def trained(self, *settings: str, images: ImageSet | None = None) -> Model:
        return placed(Model.from_pretrained(self.run(*settings, images=images) / "model"), self.device)

    def run(self, *settings: str, images: ImageSet | None = None) -> Path:
        """The run folder of a model with the settings, trained to its end; an unfinished one is continued."""
        images = images or self.images
        config = self.config.with_settings(settings)
        settled = json.dumps([as_tree(replace(config, engine=EngineConfig())), images.fingerprint()])
        folder = self.out / "models" / hashlib.blake2b(settled.encode(), digest_size=6).hexdigest()
        model = folder / "model" / "config.json"
        if not model.exists() or json.loads(model.read_text())["steps"] < config.trainer.steps:
            print(f"training {self.preset} {' '.join(settings)}".rstrip(), flush=True)
            if not Trainer(config, images, folder).train():
                raise KeyboardInterrupt
        return folder

    @cached_property
    def _given(self) -> Model:
        model = Model.from_pretrained(str(self.model_name))
        if model.config.process.kind != "heat":
            raise UsageError(
                "studies are of inverse heat models; the diffusion baseline is trained beside where it is needed"
            )
        return placed(model, self.device)

    @property
    def process(self) -> ProcessConfig:
        """The settings of the given model's process, or of the preset's."""
        return self._given.config.process if self.model_name is not None else self.config.process

    def numbers(self, count: int) -> Tensor:
        return torch.arange(count, device=self.device)

    def options(self) -> dict[str, Any]:
        """How samples are made."""
        return {"precision": self.precision, "compiled": not self.quick}

    @property
    def distance_name(self) -> str:
        return "Fréchet distance of pixels" if self.quick else "FID"

    @cached_property
    def _inception(self) -> Inception:
        return Inception(find_inception(self.inception)).to(self.device)

    def features(self, images: Tensor) -> Tensor:
        """Of uint8 images: Inception's, or, to be quick, the pixels themselves."""
        if self.quick:
            return to_unit(images).flatten(1).cpu()
        return torch.cat(list(features(self._inception, images.split(512), len(images))))

    @cached_property
    def _reference(self) -> Reference:
        return Reference.from_features(self.features(self.images.train), self.device)

    def distance(self, batches: Iterable[Tensor]) -> float:
        """How far uint8 samples are from the training images: FID, or, to be quick, the same of pixels."""
        return frechet_distance(torch.cat([self.features(batch) for batch in batches]), self._reference, self.device)

    def picture(self, name: str) -> Path:
        self.out.mkdir(parents=True, exist_ok=True)
        return self.out / f"{name}.png"

    def command(self, name: str, subject: str) -> str:
        """What was typed, but for places on this machine: a model is called by its name."""
        words = ["ihdm", "study", name]
        if self.model_name is not None:
            words += ["--model", subject]
        if self.model_name is None or self.preset not in USUAL:
            words += ["--preset", self.preset]
        for setting in self.settings:
            words += ["--set", setting]
        words += ["--quick"] if self.quick else []
        return shlex.join([*words, *(["--seed", str(self.seed)] if self.seed else [])])

    def write(self, name: str, title: str, findings: Findings) -> None:
        """NAME.json and NAME.md beside the picture."""
        given = Path(self.model_name or "")
        subject = (given.parent.name if given.name == "model" else given.name) or self.preset
        machine = torch.cuda.get_device_name() if self.device.type == "cuda" else f"CPU ({platform.machine()})"
        command = self.command(name, subject)
        made = {"study": name, "command": command, "model": subject, "data": self.images.name, "seed": self.seed}
        made |= {"machine": machine, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
        tree = made | {"numbers": findings.numbers}
        (self.out / f"{name}.json").write_text(json.dumps(tree, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        text = f"""# {title}

![{title}]({name}.png)

**Look for:** {findings.look_for}

**The paper:** {findings.paper}

**Here:** {findings.found}

`{command}` on {self.images.name}; {machine}, torch \
{torch.__version__}, {made["date"]}. All numbers are in [{name}.json]({name}.json).
"""
        (self.out / f"{name}.md").write_text(text, encoding="utf-8")
