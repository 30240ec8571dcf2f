"""Sample from an exported model with NumPy and onnxruntime alone, without ihdm and torch.

ihdm export mnist-ready digits/ --format onnx
python examples/onnx_sampling.py digits/ --n 16 --out digits.png
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import onnxruntime

VERSION = 1  # of the exports that this program can read


def sample(
    folder: Path, n: int, seed: int = 0, threads: int = 0, label: tuple[str, ...] = (), guidance: float = 1.0
) -> np.ndarray:
    """n images (n, C, H, W) in [0, 1]. Image i depends only on the seed and i, up to rounding.

    label: names or numbers, given to the images in turn; by default in the proportions of the training set. guidance:
    how much they count, 1 as in training.
    """
    about = json.loads((folder / "chain.json").read_text(encoding="utf-8"))
    if about["export"] != VERSION:
        sys.exit(f"{folder} is an export of version {about['export']}, and this program is for version {VERSION}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    start, step = (onnxruntime.InferenceSession(folder / name, options) for name in ("start.onnx", "step.onnx"))
    chances = [np.random.default_rng([seed, i]) for i in range(n)]

    def normal() -> np.ndarray:
        return np.stack([chance.standard_normal(about["shape"], np.float32) for chance in chances])

    told = labels(about, chances, label, guidance)
    choice = np.array([chance.integers(2**62) for chance in chances])
    state, images = start.run(None, {"choice": choice, "eps": normal(), **told})
    told |= {"guidance": np.array(guidance, np.float32)} if told else {}
    for levels in about["steps"]:  # from level k to level j; i is the level before k
        k, j, i = (np.array(level) for level in levels)
        state, images = step.run(None, {"state": state, "k": k, "j": j, "i": i, "eps": normal(), **told})
    return images


def labels(about: dict, chances: list, label: tuple[str, ...], guidance: float) -> dict[str, np.ndarray]:
    """What else the programs take if the model knows labels: the number of each image's label."""
    names = about.get("labels", [])
    if not 0 <= guidance < np.inf:
        sys.exit(f"guidance must be a number from 0 up (0: the label is ignored, 1: as in training), not {guidance}")
    if not names and (label or guidance != 1):
        sys.exit("the model knows no labels, and takes neither labels nor guidance")
    if not names:
        return {}
    by_name = any(name.isdecimal() for name in names)  # then a number never means a position
    numbers = {str(number): number for number in range(len(names) * by_name, len(names) + 1)}  # the last: no label
    numbers |= {name: number for number, name in enumerate(names)}
    for name in label:
        if name not in numbers:
            sys.exit(f"unknown label {name!r}; one of: {', '.join(names)}")
    ends = np.cumsum(about["counts"])
    drawn = [np.searchsorted(ends, chance.integers(ends[-1]), side="right") for chance in chances]
    return {"label": np.array([numbers[label[i % len(label)]] if label else own for i, own in enumerate(drawn)])}


def write_png(path: Path, pixels: np.ndarray) -> None:
    """Write a picture (height, width, 1 or 3), uint8, by the PNG specification."""
    height, width, channels = pixels.shape
    rows = np.pad(pixels.reshape(height, -1), ((0, 0), (1, 0))).tobytes()  # each row begins with its filter type: none
    header = struct.pack(">2I5B", width, height, 8, {1: 0, 3: 2}[channels], 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    chunks = [struct.pack(">I", len(d)) + t + d + struct.pack(">I", zlib.crc32(t + d)) for t, d in parts]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--n", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--label", nargs="+", default=[], metavar="NAME", help="what the images should show, in turn")
    parser.add_argument("--guidance", type=float, default=1.0, help="how much the label counts; 1 as in training")
    parser.add_argument("--threads", type=int, default=0, help="0: as many as there are cores")
    parser.add_argument("--out", type=Path, default=Path("samples.png"), help="all images, side by side")
    arguments = parser.parse_args()
    how = tuple(arguments.label), arguments.guidance
    images = sample(arguments.folder, arguments.n, arguments.seed, arguments.threads, *how)
    strip = np.concatenate(list(images.transpose(0, 2, 3, 1)), axis=1)
    write_png(arguments.out, (255 * strip).round().astype(np.uint8))
    print(arguments.out)


if __name__ == "__main__":
    main()
