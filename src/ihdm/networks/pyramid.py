"""Coarse levels on small grids: where only low frequencies are left of an image, a network need not look at all pixels.

Depth 0 is the whole grid; at depth d a network sees ceil(N / 2^d) pixels of each axis: the image that has the lowest
cosine coefficients of the state. It says nothing about the others, which the process predicts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ihdm.heat import resized, smaller


class Part(NamedTuple):
    """Images of a batch seen at one depth. rows: which ones, None for all; depth: None if the network has only one."""

    rows: Tensor | None
    depth: int | None


def cropped(u: Tensor, depth: int) -> Tensor:
    """The image on the smaller grid that has the lowest coefficients of u, scaled so that grey stays the same grey."""
    return resized(u, smaller(u.shape[2:], depth))


def embedded(answer: Tensor, grid: Sequence[int]) -> Tensor:
    """The image on a larger grid that has the coefficients of `answer`, and no others."""
    return resized(answer, grid, grey=False)


def by_levels(k: Tensor, first: Sequence[int]) -> list[Part]:
    """Images of levels k (B,) by their depth, which is 1 from level first[0] on, 2 from first[1] on, and so forth.

    This reads the levels, so it cannot be recorded. On the meta device they have no values, and depth 0 is assumed.
    """
    if not first or k.is_meta:
        return [Part(None, 0)]
    depths = torch.bucketize(k.cpu().contiguous(), torch.tensor(first), right=True)
    found = depths.unique().tolist()
    if len(found) == 1:
        return [Part(None, found[0])]
    return [Part((depths == depth).nonzero()[:, 0].to(k.device), depth) for depth in found]


def by_counts(k: Tensor, K: int, first: Sequence[int]) -> list[Part]:
    """The same for levels that are evenly spread over 1..K, by their order alone, without reading them."""
    rows = k.argsort(stable=True).split(counts(len(k), K, first))
    return [Part(some, depth) for depth, some in enumerate(rows) if len(some)]


def counts(images: int, K: int, first: Sequence[int]) -> list[int]:
    """How many images of a batch are seen at each depth, if their levels are evenly spread over 1..K.

    A share s of the levels belongs to at least floor(s images) images. One fewer is taken, because batches may be
    divided unevenly, so that no image is seen at a greater depth than its level allows.
    """
    least = [max(0, images * (K + 1 - level) // K - 1) for level in first]
    return [more - fewer for more, fewer in pairwise([images, *least, 0])]


def joined(answer: Callable[..., Tensor], parts: list[Part], *inputs: Tensor | None) -> Tensor:
    """answer(depth, *inputs) for each part, joined in the order of the batch; an input may be None for all images."""
    rows = [part.rows for part in parts if part.rows is not None]
    if not rows:
        return answer(parts[0].depth, *inputs)
    divided = [[None if each is None else each[some] for each in inputs] for some in rows]
    answers = torch.cat([answer(part.depth, *own) for part, own in zip(parts, divided)])
    return torch.zeros_like(answers).index_copy(0, torch.cat(rows), answers)


def parts_of(network: nn.Module, k: Tensor) -> list[Part]:
    """How a network divides images of levels k (B,) by depth."""
    own: Any = getattr(network, "depth_parts", None)
    return own(k) if own else [Part(None, None)]


def depth_option(depth: int | None) -> dict[str, int]:
    """The keyword argument to call a network with, if it has depths."""
    return {} if depth is None else {"depth": depth}
