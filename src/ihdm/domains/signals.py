"""Signals: samples of sounds, or of anything else that has a value at every moment."""

from __future__ import annotations

import math
import wave
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ihdm.domains.domain import Domain, Shape

CHANNELS = {1: "mono", 2: "stereo"}
FULL_SCALE = 2**15  # of 16 bits
MOST_RATE = 2**20  # samples a second
ROUNDING = 1 / (2 * FULL_SCALE * math.sqrt(12))  # the standard deviation of rounding to 16 bits, in [0, 1]
LOWEST_HEARD = 20.0  # Hz
WIDTH, WAVE_HEIGHT, SPECTROGRAM_HEIGHT = 128, 32, 64  # of a picture, in pixels
WINDOW = 256  # most samples that a column of the spectrogram is computed from
FAINTEST = -70.0  # power still drawn, in dB; 0 is the loudest possible sine wave


@dataclass(frozen=True)
class SignalDomain(Domain):
    """Sounds (C, n) of a rate in Hz. Internally they are in [0, 1], with silence at 1/2; in files, in [-1, 1].

    peak: the value, as in files, that the peak of each sound was scaled to, if it was.
    """

    kind = "signals"
    axes = 1
    noun = "sound"
    unit = "sample"
    suffix = ".wav"
    noises = tuple(ROUNDING * 4**i for i in range(6))

    shape: Shape
    rate: int
    peak: float | None = None

    def __post_init__(self) -> None:
        if len(self.shape) != 2:
            raise ValueError(f"the shape of a sound is channels and samples, not {self.shape}")
        if not isinstance(self.rate, int) or isinstance(self.rate, bool) or not 1 <= self.rate <= MOST_RATE:
            raise ValueError(f"a rate must be a whole number, in Hz, from 1 to {MOST_RATE:,}, not {self.rate!r}")
        if self.peak is not None and not 0 < self.peak <= 1:
            raise ValueError(f"a peak must be above 0 and at most 1, not {self.peak!r}")

    @property
    def words(self) -> str:
        channels, samples = self.shape
        return f"{samples:,} samples at {self.rate:,} Hz, {CHANNELS.get(channels, f'{channels} channels')}"

    @property
    def longest(self) -> float:
        """Half a wave of the lowest audible tone: what is slower may stay."""
        return min(super().longest, self.rate / LOWEST_HEARD / 2)

    def width_words(self, width: float) -> str:
        """The frequency f at which it halves the power, exp(-(2 pi f width / rate)^2) = 1/2."""
        return f"half the power at {self._half_power(width):,.0f} Hz" if width else ""

    def width_label(self, width: float) -> str:
        half = self._half_power(width) if width else 0.0
        return f"{super().width_label(width)}\n" + (f"{half:,.{int(half < 10)}f} Hz" if width else "sharp")

    @property
    def width_label_words(self) -> str:
        return f"{super().width_label_words}, and the frequency at which it halves the power"

    def _half_power(self, width: float) -> float:
        return self.rate * math.sqrt(math.log(2)) / (2 * math.pi * width)

    @property
    def frequency_words(self) -> str:
        return "frequency, Hz"

    def frequencies(self, radians: Tensor) -> Tensor:
        return radians * self.rate / (2 * math.pi)

    def difference_words(self, rms: float) -> str:
        return f"{20 * math.log10(2 * max(rms, ROUNDING)):.0f} dB of full scale"

    def pictures(self, u: Tensor) -> Tensor:
        """The waveform above the spectrogram, (N, 3, 96, 128): time to the right, frequency up to half the rate."""
        x = 2 * u.detach().cpu().double().clamp(0, 1) - 1
        return torch.cat([_waveforms(x), _spectrograms(x)], 2).float()

    def write(self, u: Tensor, path: Path) -> None:
        x = 2 * u.detach().cpu().double() - 1
        values = (x * FULL_SCALE).round().clamp(-FULL_SCALE, FULL_SCALE - 1).to(torch.int16)
        with wave.open(str(path), "wb") as file:
            file.setnchannels(len(values))
            file.setsampwidth(2)
            file.setframerate(self.rate)
            file.writeframes(values.mT.contiguous().numpy().astype("<i2").tobytes())

    def data_settings(self) -> dict[str, Any]:
        return super().data_settings() | {"rate": self.rate, "peak": self.peak}

    def tree(self) -> dict[str, Any]:
        return {"rate": self.rate} | ({} if self.peak is None else {"peak": self.peak})

    @classmethod
    def restored(cls, shape: Shape, tree: Mapping[str, Any], state: Mapping[str, Tensor]) -> SignalDomain:
        if state or not {"rate"} <= set(tree) <= {"rate", "peak"}:
            raise ValueError(f"sounds have a rate, and may have a peak, not {', '.join([*tree, *state]) or 'nothing'}")
        return cls(shape, tree["rate"], tree.get("peak"))


def _waveforms(x: Tensor) -> Tensor:
    """The range of the values of each column's samples, over all channels, dark on white."""
    columns = (torch.arange(WIDTH + 1) * x.shape[-1]).div(WIDTH, rounding_mode="floor").tolist()
    spans = [x[..., first : max(last, first + 1)] for first, last in zip(columns, columns[1:])]
    low, high = (torch.stack([edge(s, (1, 2)) for s in spans], 1)[:, None] for edge in (torch.amin, torch.amax))
    edges = torch.linspace(1, -1, WAVE_HEIGHT + 1).double()[:, None]  # of the rows, from the top
    drawn = (high >= edges[1:]) & (low <= edges[:-1])
    return (1 - 0.8 * drawn.double())[:, None].expand(-1, 3, -1, -1)


def _spectrograms(x: Tensor) -> Tensor:
    """The power of the mean of all channels by time and frequency: faint is dark, loud is bright."""
    window = torch.hann_window(min(WINDOW, x.shape[-1])).double()
    hop = max(1, x.shape[-1] // WIDTH)
    padded = F.pad(x.mean(1), (len(window) // 2, len(window) // 2))
    frames = padded.unfold(-1, len(window), hop) * window
    power = (torch.fft.rfft(frames).abs() / (window.sum() / 2)).square().mT  # 1 for a sine wave of height 1
    power = F.adaptive_avg_pool2d(power[:, None], (SPECTROGRAM_HEIGHT, WIDTH))[:, 0].flip(1)
    shade = 1 - (10 * power.clamp_min(1e-30).log10() / FAINTEST).clamp(0, 1)
    return torch.stack([shade.sqrt(), shade**3, (2 * math.pi * shade).sin().clamp_min(0)], 1)
