"""A model for those who do not have ihdm: programs of tensors for torch, diffusers, ONNX, browsers (docs/export.md)."""

from typing import Literal

Format = Literal["diffusers", "onnx", "torch", "web"]
