"""A model for those who do not have ihdm: programs of tensors for torch and diffusers."""

from typing import Literal

Format = Literal["diffusers", "torch"]
