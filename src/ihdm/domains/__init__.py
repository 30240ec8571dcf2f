"""What data are defined on: each domain is one file, and one line in the registry."""

from __future__ import annotations

from collections.abc import Sequence

from ihdm.domains.domain import Domain, Found
from ihdm.domains.graphs import GraphDomain
from ihdm.domains.images import ImageDomain
from ihdm.domains.signals import SignalDomain
from ihdm.domains.volumes import VolumeDomain


def as_domain(shape: Sequence[int] | Domain) -> Domain:
    """A domain as it is; a shape (C, H, W) becomes that of images."""
    return shape if isinstance(shape, Domain) else ImageDomain(tuple(shape))


__all__ = ["Domain", "Found", "GraphDomain", "ImageDomain", "SignalDomain", "VolumeDomain", "as_domain"]
