"""Guidance, as wrappers around a network: towards a condition, or away from what a weaker network answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def guided(network: Any, guidance: float, none: int) -> Callable[..., Tensor]:
    """f(u, k) + guidance (f(u, k, condition) - f(u, k)): classifier-free guidance (Ho and Salimans 2022, Eq. 6).

    Their w is guidance - 1. With 1 it is the network as it is, with 0 the network without a condition. Otherwise the
    network is called twice, each time for the whole batch, so that guidance takes no more memory. none: the number that
    stands for no condition.
    """
    if guidance == 1:
        return network

    def answer(u: Tensor, k: Tensor, condition: Tensor | None = None) -> Tensor:
        if condition is None:
            return network(u, k)
        untold = network(u, k, torch.full_like(condition, none))
        return untold if guidance == 0 else untold + guidance * (network(u, k, condition) - untold)

    return answer


def beyond(network: Any, weaker: Any, guidance: float) -> Callable[..., Tensor]:
    """g(u, k) + guidance (f(u, k) - g(u, k)), g being a weaker network of the same process (Karras et al. 2024).

    Both err in the same directions, g by more, so going from g past f leads away from their errors. 1 is the network
    as it is, 0 the weaker one.
    """
    if guidance == 1:
        return network
    if guidance == 0:
        return weaker

    def answer(u: Tensor, k: Tensor, *condition: Tensor) -> Tensor:
        base = weaker(u, k, *condition)
        return base + guidance * (network(u, k, *condition) - base)

    return answer


def guided_in_programs(network: Any, guidance: Tensor, none: int) -> Callable[..., Tensor]:
    """The same as `guided`, for programs that take the guidance as an input: a tensor without dimensions.

    A program that torch.export traces calls the network once if the guidance is 1, and otherwise twice.
    """
    if not torch.compiler.is_compiling():
        return guided(network, float(guidance), none)

    def answer(u: Tensor, k: Tensor, condition: Tensor) -> Tensor:
        told = network(u, k, condition)
        untold = torch.cond(
            guidance == 1,
            lambda told, u, k, condition: torch.zeros_like(told),
            lambda told, u, k, condition: network(u, k, torch.full_like(condition, none)).view_as(told),
            (told, u, k, condition),
        )
        return untold + guidance * (told - untold)

    return answer
