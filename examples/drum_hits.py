"""Sort the drum kits of Debian's package hydrogen-drumkits into a folder for each kind of drum (docs/domains.md).

python examples/drum_hits.py DRUMKITS OUT
"""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from pathlib import Path

SUFFIXES = {".wav", ".flac", ".aiff"}
KINDS = {  # patterns for the names that kits give their files; the first that matches counts
    "kick": r"kick|^bd|bassdrum|_bd_|hse_k_",
    "snare": r"snare|^sn\d?_|^sd_|_sn_",
    "hat": r"hat|^hh|^ho_|chh|ohh|_hh_",
    "tom": r"tom|^tm|^ft_|^t\d_",
    "cymbal": r"crash|ride|splash|china|^rd|^cc_|^rc_|^cra_",
}


def kind_of(name: str) -> str | None:
    """The kind of drum in a file; None if it is something else, or unknown."""
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, name.lower())), None)


def main(kits: Path, out: Path) -> None:
    found: Counter[str] = Counter()
    for file in sorted(kits.rglob("*")):
        kind = kind_of(file.name) if file.suffix.lower() in SUFFIXES else None
        if kind:
            target = out / kind / file.relative_to(kits)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
            found[kind] += 1
    if not found:
        sys.exit(f"there are no drum hits in {kits}")
    print(f"{out}: " + ", ".join(f"{count} {kind}s" for kind, count in sorted(found.items())))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
