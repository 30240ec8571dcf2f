"""What every study works with: images, trained models, a distance between sets of images, and a place for results."""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from ihdm.basis import Laplacian
from ihdm.config import KIND, KINDS, Config, differences, load_config
from ihdm.data import Images, ImageSet, data_domain, evenly_taken, load_images
from ihdm.data.sources import absolute
from ihdm.disk import expanded
from ihdm.domains.domain import by
from ihdm.engine import choose_device, choose_precision, placed
from ihdm.errors import UsageError
from ihdm.evaluation import images_for
from ihdm.execution import Execution
from ihdm.metrics.distances import Reference, frechet_distance
from ihdm.metrics.inception import Inception, features, find_inception
from ihdm.model import Model
from ihdm.model_folder import ModelConfig
from ihdm.pixels import to_unit
from ihdm.processes import Network, Process
from ihdm.registry import DOMAINS, PROCESSES
from ihdm.run import settings_file
from ihdm.schedule import Schedule
from ihdm.studies.verdict import Judged, jackknife
from ihdm.trainer import Trainer

QUICK = ("trainer.steps=600", "trainer.checkpoint_every=600", "trainer.sample_every=600")
USUAL = ("mnist-small", "digits")  # presets used when none is named
PAPER: dict[str, Any] = {"sampler": "paper", "steps": None}  # the paper's steps, whatever a model's own sampling
PAPER_WORDS = ("sampling.sampler=paper", "sampling.steps=auto")  # the same, for a model to be trained
SAMPLING = "sampling."  # begins the settings that apply to a given model too
ANY_DATA = ("sequence", "power-spectrum", "interpolation", "network-bias")  # studies of any data, not only of images
NOT_TRAINED = ("engine.", "sampling.", "data.source")  # do not change the weights; images have a fingerprint
BATCH = 512
GROUPS = 8  # of samples, left out one at a time


@runtime_checkable
class BlurSettings(Protocol):
    """What studies of blur need from the settings of a process."""

    sigma: float

    def schedule(self, laplacian: Laplacian, /) -> Schedule: ...


@runtime_checkable
class BlurProcess(Protocol):
    """What studies of blur need from a process."""

    laplacian: Laplacian
    schedule: Schedule
    sigma: float

    @property
    def start_noise(self) -> float: ...

    def blur(self, u_0: Tensor, k: Tensor) -> Tensor: ...

    def mean(self, network: Network, u_k: Tensor, k: Tensor) -> Tensor: ...


def blur_settings(settings: Any) -> BlurSettings:
    """The settings, if they are of a process of blur; refuses others in words."""
    if not isinstance(settings, BlurSettings):
        raise _not_of_blur(PROCESSES.of(settings).title)
    return settings


def blurring(process: Process) -> BlurProcess:
    """The process, if it is one of blur; refuses others in words."""
    if not isinstance(process, BlurProcess):
        raise _not_of_blur(process.title)
    return process


def _not_of_blur(title: str) -> UsageError:
    return UsageError(
        f"this study is about blur, and {title} has no levels that differ only in blur, with the same noise sigma; "
        f"give a model or a preset of inverse heat dissipation"
    )


def digest(tree: Any) -> str:
    """A short name for plain values, by which the same values are found again."""
    return hashlib.blake2b(json.dumps(tree).encode(), digest_size=6).hexdigest()


def own_settings(model: str | None) -> str | None:
    """The file of settings that a model was trained with, if it is in a run folder and its process is one of blur."""
    path = None if model is None else settings_file(model)
    return str(path) if path and isinstance(load_config(str(path)).process, BlurSettings) else None


@dataclass(frozen=True)
class Findings:
    """numbers: for JSON. look_for, paper, found: what the picture shows, what the paper says, what came out.

    claim: for data of this kind, if it differs from the study's own claim.
    """

    numbers: dict[str, Any]
    look_for: str
    paper: str
    found: str
    claim: str | None = None


@dataclass(frozen=True)
class Distance:
    """value: FID or the like. error: its standard error; None if the samples do not determine a covariance."""

    value: float
    error: float | None


@dataclass(frozen=True)
class Lab:
    """out: the folder for results. preset, settings: for the models that are trained.

    model_name: a model to use instead; of the settings, only those of sampling apply to it.
    quick: fast rather than good: small models, few samples, distances of pixels.
    only: the parts of the study to compute (others are shown if they were computed before); empty: all.
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
    only: tuple[str, ...] = ()

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
        """The images named, brought to the given model's shape, or else the preset's, which must have that shape."""
        if self.model_name is not None and self.data is not None:
            return images_for(self._given, self.data, resize=True, name=self.model_name)
        if self.model_name is not None:
            self._check_shape(self._given.config)
        return load_images(self.config.data, held_out_most=None)

    def check_kind(self, name: str) -> None:
        """Refuse data other than images in studies that are about images."""
        domain = DOMAINS[self.config.data.kind] if self.model_name is None else self._given.config.domain
        if domain.kind != "images" and name not in ANY_DATA:
            raise UsageError(
                f"the study {name} is about images, and {self.model_name or f'the preset {self.preset}'} is for "
                f"{domain.noun}s; the studies for any data are {', '.join(ANY_DATA)}"
            )

    def _check_shape(self, model: ModelConfig) -> None:
        found, source = data_domain(self.config.data), self.config.data.source
        named = f"name the {model.domain.noun}s that it was trained on (--data {model.data or 'SOURCE'})"
        if found == model.domain:
            return
        if {found.kind, model.domain.kind} != {"images"}:
            raise UsageError(
                f"{self.model_name} makes {model.domain.noun}s of {model.domain.words}, and the preset "
                f"{self.preset} has {found.noun}s of {found.words}; {named}"
            )
        raise UsageError(
            f"{self.model_name} makes images of {by(model.shape)}, and those of the preset {self.preset} are "
            f"{by(found.shape)} (channels x height x width); {named}, or bring the preset's to its shape with --data "
            f"{source}"
        )

    def held_out(self, most: int) -> Tensor:
        """At most `most` held-out images, evenly spaced; refuses in words if there are none."""
        if not len(self.images.held_out):
            raise UsageError(
                f"this study looks at held-out images, and {self.images.name} has none: it has no test split, and "
                f"data.holdout is {self.config.data.holdout:g}"
            )
        return evenly_taken(self.images.held_out, most)

    def real(self, most: int) -> Tensor:
        """At most `most` training images in [0, 1], evenly spaced."""
        return to_unit(evenly_taken(self.images.train, most))

    @property
    def precision(self) -> torch.dtype:
        return choose_precision(self.config.engine.precision, self.device, self.images.shape[1:])

    def model(self) -> Model:
        """The given model; else one trained with the preset, once for all studies."""
        return self.trained() if self.model_name is None else self._given

    def paper_model(self) -> Model:
        """The model sampling with the paper's steps, whatever its own settings; refused if it is not one of blur."""
        model = self.model()
        blurring(model.process)
        return model.sampled(**PAPER)

    def trained(self, *settings: str, images: ImageSet | None = None) -> Model:
        """A model trained with the settings; it samples as they say, even if it was trained with other sampling."""
        found = Model.from_pretrained(self.run(*settings, images=images) / "model")
        sampling, kind = self.config.with_settings(settings).sampling, PROCESSES.of(found.config.process)
        process = kind.from_state(found.config.process, sampling, found.config.domain, found.process.state())
        return placed(Model(replace(found.config, sampling=sampling), process, found.network), self.device)

    def folder(self, *settings: str, images: ImageSet | None = None) -> Path:
        """Where the run of a model with the settings is or will be; its name depends on all that shapes its weights.

        Only settings that are not the defaults count, so that models are found again when ihdm gains settings.
        """
        unusual = {name: value for name, value in self.unusual(*settings).items() if not name.startswith(NOT_TRAINED)}
        return self.out / "models" / digest([unusual, (images or self.images).fingerprint()])

    def unusual(self, *settings: str) -> dict[str, Any]:
        """The kinds of process and network, and the settings that are not their defaults."""
        config = self.config.with_settings(settings)
        kinds = {name: {KIND: config.tree()[name][KIND]} for name in KINDS}
        changed = {name: new for name, (_, new) in differences(Config().with_tree(kinds), config).items()}
        return {f"{name}.{KIND}": kind[KIND] for name, kind in kinds.items()} | changed

    def run(self, *settings: str, images: ImageSet | None = None) -> Path:
        """The run folder of a model with the settings, trained to its end; an unfinished one is continued."""
        images = images or self.images
        config, folder = self.config.with_settings(settings), self.folder(*settings, images=images)
        model = folder / "model" / "config.json"
        if not model.exists() or json.loads(model.read_text())["steps"] < config.trainer.steps:
            print(f"training {self.preset} {' '.join(settings)}".rstrip(), flush=True)
            if not Trainer(config, images, folder).train():
                raise KeyboardInterrupt
        return folder

    @cached_property
    def _given(self) -> Model:
        """The given model without guidance by a weaker network: studies are about what its own network has learned."""
        words = [word.removeprefix(SAMPLING).partition("=") for word in self.settings if word.startswith(SAMPLING)]
        model = Model.from_pretrained(str(self.model_name), guided=False).sampled(
            **{name: value for name, _, value in words}
        )
        return placed(model, self.device)

    @property
    def diffusion(self) -> tuple[str, ...]:
        """Settings of the baseline: denoising diffusion with as many levels, all of them on the full grid."""
        whole = ("network.pyramid=none",) if getattr(self.config.network, "pyramid", ()) else ()
        return "process.kind=ddpm", f"process.K={self.config.process.K}", *whole

    @property
    def process(self) -> BlurSettings:
        """The settings of the given model's process, or of the preset's."""
        return blur_settings(self._given.config.process if self.model_name is not None else self.config.process)

    def numbers(self, count: int) -> Tensor:
        return torch.arange(count, device=self.device)

    @property
    def execution(self) -> Execution:
        """How samples are computed."""
        return Execution(self.precision, compiled=not self.quick, progress=True)

    @property
    def distance_name(self) -> str:
        return "Fréchet distance of pixels" if self.quick else "FID"

    @cached_property
    def _inception(self) -> Inception:
        return Inception(find_inception(self.inception)).to(self.device)

    def features(self, images: Images) -> Tensor:
        """Features of uint8 images: Inception's or, if quick, the pixels themselves."""
        batches = images.split(BATCH)
        if self.quick:
            return torch.cat([to_unit(batch).flatten(1).cpu() for batch in batches])
        return torch.cat(list(features(self._inception, batches, len(images))))

    @cached_property
    def _reference(self) -> Reference:
        return Reference.from_features(self.features(self.images.train), self.device)

    def distance(self, batches: Iterable[Tensor]) -> Distance:
        """How far uint8 samples are from the training images: FID or, if quick, the same distance of pixels.

        Its error comes from leaving out one of several groups of samples at a time; there is none unless there are
        more samples than features.
        """
        found = torch.cat([self.features(batch) for batch in batches])
        value = frechet_distance(found, self._reference, self.device)
        if len(found) <= found.shape[1]:
            return Distance(value, None)
        group = torch.arange(len(found)) % GROUPS
        without = (frechet_distance(found[group != i], self._reference, self.device) for i in range(GROUPS))
        return Distance(value, jackknife(list(without)))

    @property
    def count(self) -> int:
        """How many samples a distance is computed from."""
        return 200 if self.quick else 10_000

    def distance_of(self, model: Model, **sampling: Any) -> Distance:
        """How far the samples of a model are from the training images."""
        return self.distance(model.sample_batches(self.count, self.seed, execution=self.execution, **sampling))

    def picture(self, name: str) -> Path:
        self.out.mkdir(parents=True, exist_ok=True)
        return self.out / f"{name}.png"

    def command(self, name: str, subject: str) -> str:
        """The command that was typed, with the names of the model and the images instead of their paths.

        For a study in parts, the command that computes all of them.
        """
        words = ["ihdm", "study", name]
        if self.model_name is not None:
            words += ["--model", subject]
        if self.data is not None:
            words += ["--data", self.images.name]
        if self.preset != own_settings(self.model_name) and (self.model_name is None or self.preset not in USUAL):
            words += ["--preset", self.preset]
        for setting in self.settings:
            words += ["--set", setting]
        words += ["--quick"] if self.quick else []
        return shlex.join([*words, *(["--seed", str(self.seed)] if self.seed else [])])

    @property
    def machine(self) -> str:
        return torch.cuda.get_device_name() if self.device.type == "cuda" else f"CPU ({platform.machine()})"

    def write(self, name: str, title: str, findings: Findings, judged: Judged) -> None:
        """NAME.json and NAME.md beside the picture."""
        given = expanded(self.model_name).absolute() if self.model_name else Path()
        subject = (given.parent.name if given.name == "model" else given.name) or self.preset
        machine, command = self.machine, self.command(name, subject)
        made = {"study": name, "command": command, "model": subject, "data": self.images.name, "seed": self.seed}
        made |= {"machine": machine, "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
        tree = made | asdict(judged) | {"numbers": findings.numbers}
        (self.out / f"{name}.json").write_text(json.dumps(tree, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        text = f"""# {title}

![{title}]({name}.png)

**Look for:** {findings.look_for}

**The paper:** {findings.paper}

**Here:** {findings.found}

**Claim:** {judged.claim}

**Verdict:** {judged.verdict}

`{command}` on {self.images.name}; {machine}, torch \
{torch.__version__}, {made["date"]}. All numbers are in [{name}.json]({name}.json).
"""
        (self.out / f"{name}.md").write_text(text, encoding="utf-8")
