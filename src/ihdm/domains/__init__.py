"""What data are defined on: each domain is one file, and one line in the table KINDS."""

from __future__ import annotations

from collections.abc import Sequence

from ihdm.domains.domain import Domain
from ihdm.domains.graphs import GraphDomain
from ihdm.domains.images import ImageDomain
from ihdm.domains.signals import SignalDomain
from ihdm.domains.volumes import VolumeDomain
from ihdm.errors import unknown

KINDS: dict[str, type[Domain]] = {
    "images": ImageDomain,
    "signals": SignalDomain,
    "volumes": VolumeDomain,
    "graphs": GraphDomain,
}


def domain_kind(name: str) -> type[Domain]:
    """The domain class of a kind of data."""
    if name not in KINDS:
        raise unknown("kind of data", name, KINDS)
    return KINDS[name]


def as_domain(shape: Sequence[int] | Domain) -> Domain:
    """A domain as it is; a shape (C, H, W) becomes that of images."""
    return shape if isinstance(shape, Domain) else ImageDomain(tuple(shape))


__all__ = ["KINDS", "Domain", "GraphDomain", "ImageDomain", "SignalDomain", "VolumeDomain", "as_domain", "domain_kind"]
