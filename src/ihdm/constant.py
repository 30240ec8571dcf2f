"""Numbers that never change, on every device that needs them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def rows(values: Tensor, u: Tensor) -> Tensor:
    """One value for each sample of u, or one for all, with axes of length 1 added so that they broadcast."""
    return values.to(u).view(-1, *[1] * (u.ndim - 1))


def everywhere(values: Tensor, u: Tensor) -> Tensor:
    """Values for the second axis of u, or for its first two, with axes of length 1 appended so that they broadcast."""
    return values.view(*values.shape, *[1] * (u.ndim - 2))


class Constant:
    """A float64 tensor and its copies, one for each device and precision that has asked for it."""

    def __init__(self, value: Tensor):
        self.value = value.detach().to("cpu", torch.float64)
        self._copies: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def __deepcopy__(self, memo: Any) -> Constant:
        """Itself: a copy of a network shares its constants."""
        return self

    def like(self, u: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """The constant on the device of `u` and in its precision, or in another type."""
        key = (u.device, dtype or u.dtype)
        if key in self._copies:
            return self._copies[key]
        with torch.inference_mode(False):  # or training could not use the copy
            found = self.value.to(*key, copy=True)
        if type(found) is Tensor:  # while a program is traced it is a stand-in without values, which must not stay
            self._copies[key] = found
        return found
