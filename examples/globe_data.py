"""Months of wind on a globe, for `ihdm train globe`.

The file is in Debian's package ferret-datasets: the zonal wind (from the west, in m/s) of 132 months, January 1982 to
December 1992, on a grid of 2.5 degrees, as the US Navy's Fleet Numerical Oceanography Center had it.

    apt-get download ferret-datasets && dpkg-deb -x ferret-datasets_*.deb ferret
    python examples/globe_data.py ferret/usr/share/ferret-vis/data/monthly_navy_winds.cdf globe.npz

Needs SciPy. The last year is the test split; labels are the names of the months.
"""

from __future__ import annotations

import argparse
import calendar
from pathlib import Path

import numpy as np
from scipy.io import netcdf_file
from scipy.spatial import ConvexHull

NODES = 1000
HELD_OUT = 12  # months at the end


def sphere(n):
    """Nodes of a sphere of radius 1, (n, 3), each with about the same area, and triangles between them, (F, 3).

    The nodes lie on a spiral, by the golden angle (a Fibonacci lattice); the triangles are their convex hull.
    """
    place = np.arange(n) + 0.5
    z, longitude = 1 - 2 * place / n, np.pi * (3 - 5**0.5) * place
    radius = np.sqrt(1 - z**2)
    nodes = np.stack([radius * np.cos(longitude), radius * np.sin(longitude), z], 1)
    return nodes, ConvexHull(nodes).simplices


def at_nodes(fields, longitudes, latitudes, nodes):
    """Interpolate fields (N, latitudes, longitudes) from an even grid of the whole globe to nodes.

    A value at a node is interpolated between the four nearest grid points. Longitudes, in degrees, go round once, and
    latitudes from pole to pole.
    """
    x, y, z = nodes.T
    column = (np.degrees(np.arctan2(y, x)) - longitudes[0]) / (longitudes[1] - longitudes[0]) % len(longitudes)
    row = (np.degrees(np.arcsin(z.clip(-1, 1))) - latitudes[0]) / (latitudes[1] - latitudes[0])
    left, below = np.floor(column).astype(int), np.floor(row).astype(int).clip(0, len(latitudes) - 2)
    right = (left + 1) % len(longitudes)
    across, up = column - left, row - below
    lower = fields[:, below, left % len(longitudes)] * (1 - across) + fields[:, below, right] * across
    upper = fields[:, below + 1, left % len(longitudes)] * (1 - across) + fields[:, below + 1, right] * across
    return lower * (1 - up) + upper * up


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("winds", type=Path, help="monthly_navy_winds.cdf")
    parser.add_argument("out", type=Path, help="the npz file to write")
    parser.add_argument("--nodes", type=int, default=NODES)
    given = parser.parse_args()
    with netcdf_file(given.winds, mmap=False) as file:
        longitudes, latitudes, winds = (file.variables[name].data for name in ("FNOCX", "FNOCY", "UWND"))
    positions, faces = sphere(given.nodes)
    fields = at_nodes(winds.astype(np.float64), longitudes, latitudes, positions).astype(np.float32)
    months = np.array([calendar.month_name[1 + number % 12] for number in range(len(fields))])
    train, test = slice(None, -HELD_OUT), slice(-HELD_OUT, None)
    np.savez_compressed(
        given.out,
        train=fields[train],
        test=fields[test],
        train_labels=months[train],
        test_labels=months[test],
        positions=positions,
        faces=faces,
    )
    print(
        f"{given.out}: {len(fields)} months on {len(positions):,} nodes, {fields.min():.1f} to {fields.max():.1f} m/s"
    )


if __name__ == "__main__":
    main()
