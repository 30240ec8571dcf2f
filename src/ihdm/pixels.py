"""The two scales of pixels: whole numbers 0..255 outside, [0, 1] inside."""

from __future__ import annotations

import math

import torch
from torch import Tensor

ROUNDING = 1 / (255 * math.sqrt(12))  # the standard deviation of rounding to 8 bits


def to_unit(images: Tensor) -> Tensor:
    """uint8 pixels as float32 in [0, 1], the scale of u_0; floating point values are on it already."""
    return images if images.is_floating_point() else images.float() / 255


def to_bytes(images: Tensor) -> Tensor:
    """Pixels in [0, 1], or a little beyond, as uint8: the reverse of `to_unit`."""
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)
