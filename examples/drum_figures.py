"""How long drum hits last and how bright they sound: real ones beside those of a model with labels (docs/domains.md).

python examples/drum_figures.py MODEL HITS [REAL.png]
"""

from __future__ import annotations

import sys
from dataclasses import replace

import torch
from torch import Tensor

from ihdm import Model
from ihdm.config import DataConfig
from ihdm.data import load_images, spread
from ihdm.pictures import grid

EACH = 16  # samples of each kind
DRAWN = 5  # real hits of each kind, in a column
FRAMES = 125  # per second, in which loudness is measured
FADED = 0.01  # of the power of the loudest frame


def decay(x: Tensor, rate: int) -> Tensor:
    """Seconds from the loudest frame to the last one less than 20 dB softer, for sounds (N, samples)."""
    power = x.unfold(1, rate // FRAMES, rate // FRAMES).square().mean(2)
    heard = power > FADED * power.amax(1, keepdim=True)
    last = (heard * torch.arange(heard.shape[1])).amax(1)
    return (last - power.argmax(1) + 1) / FRAMES


def brightness(x: Tensor, rate: int) -> Tensor:
    """The mean frequency in Hz, weighted by power."""
    power = torch.fft.rfft(x).abs().square()
    return (power * torch.fft.rfftfreq(x.shape[1], 1 / rate)).sum(1) / power.sum(1)


def main(name: str, source: str, picture: str | None = None) -> None:
    model = Model.from_pretrained(name)
    domain, labels = model.config.domain, model.config.labels.names
    real = load_images(replace(DataConfig(source=source, labels=True), **domain.data_settings()))
    made = 2 * model.sample(EACH * len(labels), seed=1, labels=[each for each in labels for _ in range(EACH)]) - 1
    print("medians: real, made")
    columns = []
    for number, label in enumerate(labels):
        both = (2 * real.train[real.train_labels == number] - 1)[:, 0], made[number * EACH :][:EACH, 0]
        seconds, hertz = ([float(of(x, domain.rate).median()) for x in both] for of in (decay, brightness))
        columns.append(domain.pictures(spread(real.train[real.train_labels == number], DRAWN)))
        print(f"{label:8} {1000 * seconds[0]:.0f} {1000 * seconds[1]:.0f} ms, {hertz[0]:.0f} {hertz[1]:.0f} Hz")
    if picture:
        grid(torch.stack(columns, 1).flatten(0, 1), columns=len(labels)).save(picture)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(*sys.argv[1:])
