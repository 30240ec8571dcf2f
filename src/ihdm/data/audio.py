"""Reading sound files, and resampling sounds."""

from __future__ import annotations

import math
import wave
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ihdm.errors import UsageError
from ihdm.extras import needs
from ihdm.heat import resized

SUFFIXES = {".wav", ".flac", ".aif", ".aiff", ".ogg"}


@dataclass(frozen=True)
class Sound:
    """samples: (C, n) in [-1, 1], float64; rate: samples per second."""

    samples: Tensor
    rate: int

    def at(self, rate: int, most: int | None = None) -> Sound:
        """The sound at another rate. Frequencies that this rate cannot hold are cut from the cosine coefficients.

        Before that, the last value is repeated until both rates have a whole number of samples. most: how many samples
        are wanted; what comes long after them is ignored.
        """
        if rate == self.rate:
            return self
        if most is not None:
            return Sound(self.samples[:, : 2 * -(-most * self.rate // rate)], self.rate).at(rate)
        common = math.gcd(rate, self.rate)
        length = self.samples.shape[-1]
        held = F.pad(self.samples[None], (0, -length % (self.rate // common)), mode="replicate")
        resampled = resized(held, (held.shape[-1] * rate // self.rate,))[0]
        return Sound(resampled[:, : -(-length * rate // self.rate)], rate)


def decoded(content: bytes) -> Sound:
    """The sound in the content of a file; ValueError if there is none.

    Python itself reads wav files with integers of 8, 16, 24 or 32 bits; soundfile reads all others.
    """
    if not content:
        raise ValueError("it is empty")
    samples, rate = _wav(content) or _by_soundfile(content)
    if not samples.size:
        raise ValueError("there are no samples in it")
    if not np.isfinite(samples).all():
        raise ValueError("it has samples that are not numbers")
    return Sound(torch.from_numpy(np.ascontiguousarray(samples.T)), rate)


def _wav(content: bytes) -> tuple[Any, int] | None:
    """Samples (n, C) and rate of a wav file, if Python's own library can read it."""
    try:
        with wave.open(BytesIO(content)) as file:
            channels, width, rate, count, *_ = file.getparams()
            frames = file.readframes(count)
    except (wave.Error, EOFError):
        return None
    if len(frames) != count * width * channels:
        raise ValueError(f"it is cut off: {len(frames) // (width * channels):,} of {count:,} samples are there")
    return in_unit(_integers(frames, width)).reshape(-1, channels), rate


def _integers(frames: bytes, width: int) -> Any:
    """Little-endian numbers of 1 to 4 bytes; those of 3 are widened to 4."""
    if width == 3:
        raised = np.zeros((len(frames) // 3, 4), np.uint8)
        raised[:, 1:] = np.frombuffer(frames, np.uint8).reshape(-1, 3)
        return raised.view("<i4")[:, 0]
    return np.frombuffer(frames, {1: "u1", 2: "<i2", 4: "<i4"}[width])


def in_unit(values: Any) -> Any:
    """Integers as float64 in [-1, 1]; silence is 0 in signed ones and the middle of the range in unsigned ones."""
    half = 2.0 ** (8 * values.dtype.itemsize - 1)
    return values / half - (values.dtype.kind == "u")


def _by_soundfile(content: bytes) -> tuple[Any, int]:
    try:
        import soundfile
    except (ImportError, OSError) as error:  # OSError: its library is missing
        raise UsageError(needs("to read it", "sound", "soundfile")) from error
    try:
        samples, rate = soundfile.read(BytesIO(content), dtype="float64", always_2d=True)
    except Exception as error:  # damaged files make it raise many kinds
        raise ValueError(str(getattr(error, "error_string", error)).rstrip(".")) from error
    return samples.clip(-1, 1), int(rate)
