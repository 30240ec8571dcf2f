"""Installs a wheel into an environment that has nothing else, and tries it without a network: `make dist`.

python tests/bare.py WHEEL [PYTHON]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

CONSTRAINTS = Path(__file__).parent.parent / "constraints.txt"
OFFLINE = """import socket
def refuse(*_): raise OSError("there is no network here")
socket.socket.connect = socket.getaddrinfo = refuse
"""
COMMANDS = [
    "ihdm --version",
    "ihdm doctor",
    "ihdm info mnist-ready",
    "ihdm info digits",
    "ihdm sample mnist-ready --n 4 --grid samples.png",
    "ihdm train digits --run run --set trainer.steps=2 trainer.samples=2 network.channels=8",
    "ihdm sample run --n 2 --out images",
]


def main(wheel: Path, python: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
        pip = [folder / "venv" / "bin" / "python", "-m", "pip", "install", "--quiet", "--constraint", CONSTRAINTS]
        subprocess.run([*pip, wheel], check=True)
        packages = next((folder / "venv" / "lib").glob("python*/site-packages"))
        (packages / "sitecustomize.py").write_text(OFFLINE)
        path = f"{folder / 'venv' / 'bin'}{os.pathsep}{os.defpath}"
        surroundings = {"PATH": path, "HOME": place, "OMP_NUM_THREADS": "1"}  # threads wait long on a busy machine
        for command in COMMANDS:
            print(f"$ {command}", flush=True)
            subprocess.run(command.split(), cwd=folder, env=surroundings, check=True)
        assert (folder / "samples.png").exists() and len(list((folder / "images").iterdir())) == 2
    print(f"{wheel.name} works by itself, with {python}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), *(sys.argv[2:3] or [sys.executable]))
