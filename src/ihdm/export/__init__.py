"""Models for use without ihdm: tensor programs for torch, diffusers, ONNX and browsers (docs/export.md)."""

from typing import Literal

Format = Literal["diffusers", "onnx", "torch", "web"]
