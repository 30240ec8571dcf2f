"""A model for those who do not have ihdm: programs of tensors for torch, diffusers and ONNX."""

from typing import Literal

Format = Literal["diffusers", "onnx", "torch"]
