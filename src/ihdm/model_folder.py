"""The model folder: `config.json`, `model.safetensors`, `prior.safetensors`, `README.md`.

Some models have further files, named below. A model needs nothing outside its folder, and nothing in it is executed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import torch
from safetensors.torch import save
from torch import Tensor, nn

from ihdm.config import RENAMED, Config, presets, read_text, shipped
from ihdm.disk import expanded, load_tensors, replaced_file
from ihdm.domains import Domain, as_domain
from ihdm.domains.domain import by
from ihdm.earlier import from_0_1
from ihdm.errors import IhdmError, UsageError, first_few
from ihdm.labels import Labels
from ihdm.networks import build_network, described_weights
from ihdm.processes import FromImages, Process
from ihdm.registry import DOMAINS, PROCESSES

CONFIG, WEIGHTS, PRIOR, CARD = "config.json", "model.safetensors", "prior.safetensors", "README.md"
NETWORK, OF_PRIOR = "network.", "prior."  # prefixes of tensor names; the prior has a file of its own
OTHERS = ("shape", "domain", "data", "steps", "origin", "labels", "guide")  # in config.json besides settings
LABELS = "labels"  # in the prior's file: the labels of the images that the prior is made of
DOMAIN = "domain.safetensors"  # what the domain of the data needs besides config.json, such as a graph
MOST_CHANNELS, MOST_PIXELS = 1024, 2**24  # of an image or other data
FAMILIAR = "familiar.safetensors"  # what familiar images look like to the network, if the model was calibrated
READER = "widths.safetensors"  # the network that reads blur widths, if the model was calibrated
GUIDE = "guide.safetensors"  # the weights of a weaker network that samples are guided away from, if there is one
NAMED_MOST = 3  # at most so many tensors in an error message
ADDED = (GUIDE, FAMILIAR, READER)  # by commands other than training


@dataclass(frozen=True)
class ModelConfig:
    """The contents of config.json: everything about a model but its tensors.

    process, sampling, network: settings; sampling is how samples are made by default. domain: that of the data.
    origin: the checkpoint that the model was converted from, if any. labels: those that the network knows.
    guide: settings of a weaker network that samples are guided away from, if there is one. guidance: how strongly.
    """

    process: Any
    sampling: Any
    network: Any
    domain: Domain
    data: str = ""
    steps: int = 0
    origin: str = ""
    labels: Labels = Labels()
    guide: Any = None
    guidance: float = 1.0

    @classmethod
    def of(
        cls, config: Config, shape: Sequence[int] | Domain, data: str = "", labels: Labels | None = None
    ) -> ModelConfig:
        """The config of the model that a training run makes. shape: (C, H, W) of images, or another domain."""
        parts = config.process, config.sampling, config.network
        return cls(*parts, as_domain(shape), data, labels=labels or Labels())

    @property
    def shape(self) -> tuple[int, ...]:
        """(C, *grid) of one image or other item of data."""
        return self.domain.shape


def locate(name: str | Path, revision: str | None = None) -> Path:
    """The model folder that a name stands for: itself, a run folder's, one that comes with ihdm, or one from the hub.

    revision: a branch, tag or commit on the hub.
    """
    folder = expanded(name)
    own = RENAMED.get(str(name), str(name))
    here = [found for found in (folder, folder / "model") if (found / CONFIG).exists()]
    here += [shipped()[own]] if own in shipped() else []
    here += [folder] if folder.is_dir() else []
    if here and revision is not None:
        raise UsageError(f"only a model on the hub has revisions, and {name} is the folder {here[0]}")
    if here:
        return here[0]
    if str(name) in presets():
        ready = f"{name}-ready"
        other = f", or take {ready}, which comes with ihdm" if ready in shipped() else ""
        advice = f"train it (ihdm train {name}) and give its run folder{other}"
        raise UsageError(f"{name} is a preset, not a model; {advice}")
    if folder.exists() or len(folder.parts) != 2 or str(name).startswith((".", "/", "~")):
        raise IhdmError(
            f"there is no model folder {name}; train one with `ihdm train`, use one that comes with ihdm "
            f"({', '.join(shipped())}), or give owner/name on the hub"
        )
    try:
        from huggingface_hub import snapshot_download

        files = [CONFIG, WEIGHTS, PRIOR, DOMAIN, CARD, *ADDED]
        return Path(snapshot_download(str(name), revision=revision, allow_patterns=files))
    except Exception as error:  # the hub's client raises many kinds; any of them is a failed download
        which = f"{name}, revision {revision}," if revision else name
        raise IhdmError(
            f"there is no folder {name}, and {which} could not be downloaded from the hub ({type(error).__name__})"
        ) from error


def config_text(config: ModelConfig) -> str:
    """The text of config.json."""
    settings = Config(config.process, config.sampling, config.network).tree()
    tree: dict[str, Any] = {name: settings[name] for name in ("process", "sampling", "network")}
    tree |= {"shape": list(config.shape), "data": config.data, "steps": config.steps}
    domain = {"kind": config.domain.kind} | config.domain.tree()
    tree |= {"domain": domain} if domain != {"kind": "images"} else {}
    tree |= {"origin": config.origin} if config.origin else {}
    tree |= {"labels": dict(zip(config.labels.names, config.labels.counts))} if config.labels else {}
    if config.guide is not None:
        network = Config(network=config.guide).tree()["network"]
        tree |= {"guide": {"guidance": config.guidance, "network": network}}
    return json.dumps(tree, indent=2) + "\n"


def write_config(folder: Path, config: ModelConfig) -> None:
    write_tensors(folder / DOMAIN, config.domain.state())
    (folder / CONFIG).write_text(config_text(config), encoding="utf-8")


def read_config(folder: Path, guided: bool = True) -> ModelConfig:
    """The config of a model folder. Settings that it does not mention have their defaults; unknown ones are refused.

    guided: with its weaker network, if it has one.
    """
    path = folder / CONFIG
    if not path.exists():
        raise missing(path)
    try:
        tree = json.loads(read_text(path))
        rest = {name: tree.pop(name) for name in OTHERS if name in tree}
        settings = Config().with_tree({"process": tree["process"], "network": tree["network"]} | from_0_1(tree))
        domain = _domain(folder, tuple(_count(n, 1) for n in rest["shape"]), dict(rest.get("domain", {})))
        words = str(rest["data"]), _count(rest["steps"], 0), str(rest.get("origin", ""))
        counts = {name: _count(number, 0) for name, number in rest.get("labels", {}).items()}
        parts = settings.process, settings.sampling, settings.network
        labels = Labels(tuple(counts), tuple(counts.values()))
        return ModelConfig(*parts, domain, *words, labels, *_guide(rest.get("guide") if guided else None))
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise IhdmError(f"{path} is not the config of a model ({type(error).__name__}: {error})") from error


def _guide(tree: dict[str, Any] | None) -> tuple[Any, float]:
    """The weaker network's settings and the guidance; None and 1, which is no guidance, without a tree."""
    if tree is None:
        return None, 1.0
    guidance = tree["guidance"]
    if set(tree) != {"guidance", "network"} or isinstance(guidance, bool) or not 0 <= float(guidance) < math.inf:
        raise ValueError(f"a guide has a network and a guidance of at least 0, unlike {tree}")
    return Config().with_tree({"network": tree["network"]}).network, float(guidance)


def _domain(folder: Path, shape: tuple[int, ...], tree: dict[str, Any]) -> Domain:
    if len(shape) < 2:
        raise ValueError(f"the shape of data has channels and at least one more axis, unlike {shape}")
    if shape[0] > MOST_CHANNELS or math.prod(shape[1:]) > MOST_PIXELS:
        raise ValueError(f"data of {by(shape)} are too large for a model")
    kind: type[Domain] = DOMAINS[str(tree.pop("kind", "images"))]
    return kind.restored(shape, tree, read_tensors(folder / DOMAIN) if (folder / DOMAIN).exists() else {})


Found = TypeVar("Found")


def read_calibrated(path: Path, of: Callable[[dict[str, Tensor]], Found]) -> Found | None:
    """Something found by calibration, which `of` makes from tensors; None if the model was not calibrated."""
    if not path.exists():
        return None
    try:
        return of(load_tensors(path))
    except (ValueError, OSError, safetensors.SafetensorError) as error:
        raise IhdmError(f"{path} is damaged ({error}); remove it, or run ihdm calibrate again") from error


def _count(number: Any, least: int) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not least <= number < 2**40:
        raise ValueError(f"{number!r} is not a possible number of pixels, channels, steps or images")
    return number


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file."""
    if not path.exists():
        raise missing(path)
    try:
        return load_tensors(path)
    except PermissionError as error:
        raise IhdmError(f"{path} cannot be read by this user; change its permissions") from error
    except (OSError, safetensors.SafetensorError) as error:
        raise IhdmError(f"{path} is damaged ({error}); copy or train the model again") from error


def missing(path: Path) -> IhdmError:
    """The error for a file that a model folder lacks."""
    folder = path.parent
    if any((place / "config.toml").is_file() for place in (folder, folder.parent)):
        return IhdmError(
            f"{path} is missing: the training command of its run writes it, at the first checkpoint or on resuming"
        )
    kind = "a" if path.name == CONFIG else "a complete"
    return IhdmError(f"{folder} is not {kind} model folder: {path.name} is missing")


def check_weights(path: Path, weights: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Refuse weights that do not have exactly the expected names and shapes, and floats where they are expected."""
    misfits = [
        *(f"{name} is missing" for name in expected if name not in weights),
        *(f"{name} is not expected" for name in weights if name not in expected),
        *(
            f"{name} is {found.dtype} of shape {tuple(found.shape)}, not {_type(own)} of shape {tuple(own.shape)}"
            for name, own in expected.items()
            if (found := weights.get(name)) is not None and (found.shape != own.shape or not _stands_for(found, own))
        ),
    ]
    if misfits:
        raise IhdmError(f"{path} does not fit {CONFIG}: {first_few(misfits, NAMED_MOST)}")


def _stands_for(found: Tensor, own: Tensor) -> bool:
    """Whether a tensor has a type in which a network's own may be kept. Older folders keep whole numbers as floats."""
    return found.dtype == own.dtype or (found.is_floating_point() and not own.is_complex())


def _type(tensor: Tensor) -> str:
    return "floats" if tensor.is_floating_point() else str(tensor.dtype)


def weights_of(network: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """A network's weights, named as in a model folder; what are no floats stay as they are."""
    weights = network.state_dict().items()
    return {NETWORK + name: tensor.to(dtype) if tensor.is_floating_point() else tensor for name, tensor in weights}


def loaded_network(config: ModelConfig, path: Path, tensors: dict[str, Tensor]) -> nn.Module:
    """The network, with its weights taken from a file's tensors."""
    expected = {NETWORK + name: tensor for name, tensor in described_weights(config).items()}
    check_weights(path, {name: tensor for name, tensor in tensors.items() if name.startswith(NETWORK)}, expected)
    network = build_network(config)  # only once the file is known to hold weights of this size
    network.load_state_dict(with_prefix(tensors, NETWORK))
    return network.eval()


def write_weights(
    folder: Path, network: nn.Module, process: Process, labels: Tensor | None, dtype: torch.dtype
) -> None:
    """Write the network in a precision, and what the process keeps; labels: of the training images in the prior."""
    state = process.state()
    own = {name: tensor for name, tensor in state.items() if not name.startswith(OF_PRIOR)}
    write_tensors(folder / WEIGHTS, weights_of(network, dtype) | own)
    prior = with_prefix(state, OF_PRIOR)
    write_tensors(folder / PRIOR, prior | ({LABELS: labels} if prior and labels is not None else {}))


def check_kept(process: Process, config: ModelConfig) -> None:
    """Refuse, before anything is trained, a process that cannot be made again from what it keeps."""
    kind, state = type(process), process.state()
    for name, value in state.items():
        if not isinstance(value, Tensor) or name.startswith(NETWORK):
            raise UsageError(
                f"the state of {kind.__name__} consists of tensors whose names do not begin with {NETWORK}, and it has "
                f"{name}, a {type(value).__name__}"
            )
    try:
        kind.from_state(config.process, config.sampling, config.domain, state)
    except ValueError as error:
        raise UsageError(
            f"{kind.__name__} cannot be made again from its own state: {error}; its from_state must take what its "
            f"state gives"
        ) from error


def read_weights(folder: Path, config: ModelConfig) -> tuple[nn.Module, Process, Tensor | None]:
    """What `write_weights` wrote: the network, the process, and the labels of the images in its prior, if any."""
    tensors, labels = read_tensors(folder / WEIGHTS), None
    network = loaded_network(config, folder / WEIGHTS, tensors)
    state = {name: tensor for name, tensor in tensors.items() if not name.startswith(NETWORK)}
    if (folder / PRIOR).exists():
        prior = read_tensors(folder / PRIOR)
        labels = prior.pop(LABELS, None)
        state |= {OF_PRIOR + name: tensor for name, tensor in prior.items()}
    try:
        process = PROCESSES.of(config.process).from_state(config.process, config.sampling, config.domain, state)
    except ValueError as error:
        raise _misfit(folder, error) from error
    if labels is not None and not _are_labels(labels, config, process):
        raise IhdmError(f"{folder / PRIOR} does not belong to {CONFIG}: its {LABELS} are not those of the prior")
    return network, process, labels


def _misfit(folder: Path, error: ValueError) -> IhdmError:
    """An error that names the file which the process cannot be made from."""
    path = folder / (PRIOR if str(error).startswith("prior") else WEIGHTS)
    if not path.exists():
        return missing(path)
    return IhdmError(f"{path} does not belong to {CONFIG}: {error}")


def _are_labels(labels: Tensor, config: ModelConfig, process: Process) -> bool:
    """Whether these are numbers of the model's labels, one for each image in the prior."""
    fit = isinstance(process, FromImages) and labels.shape == (len(process.prior),) and labels.dtype == torch.long
    return fit and bool(((labels >= 0) & (labels < len(config.labels))).all())


def read_guide(folder: Path, config: ModelConfig) -> nn.Module | None:
    """The weaker network of a model's folder, if it has one."""
    if config.guide is None:
        return None
    path = folder / GUIDE
    return loaded_network(replace(config, network=config.guide), path, read_tensors(path))


def with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write a file, or remove what a model that was here before may have left, if there are no tensors.

    Everyone who may read the folder may read it; the files that safetensors writes are for their owner alone.
    """
    if not tensors:
        path.unlink(missing_ok=True)
        return
    own, places = {}, set()
    for name, tensor in tensors.items():
        kept = tensor.cpu().contiguous()
        place = kept.untyped_storage().data_ptr()
        own[name] = kept.clone() if place in places else kept  # safetensors refuses shared memory, as of tied weights
        places.add(place)
    replaced_file(path, save(own))
