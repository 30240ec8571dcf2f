"""Compare sampled months of wind with real ones (docs/domains.md).

    python examples/globe_check.py globe.npz fields/ january/ july/

The folders are written by `ihdm sample --out`: one for all months, one for January and one for July.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from ihdm import GraphLaplacian

PLACES = {"Arabian Sea": (10, 60), "Tasman Sea": (-38, 160), "North Atlantic": (45, -35)}  # latitude, longitude
BANDS = ((1, 4), (4, 9), (9, 16), (16, 30))  # degrees l of spherical harmonics; l^2 eigenvectors come before degree l


def nearest(positions, latitude, longitude):
    """The index of the node nearest to a place."""
    north, east = np.radians(latitude), np.radians(longitude)
    return int((positions @ [np.cos(north) * np.cos(east), np.cos(north) * np.sin(east), np.sin(north)]).argmax())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    for name in ("data", "fields", "january", "july"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args()
    data = np.load(given.data)
    positions, real, months = data["positions"], data["train"], data["train_labels"]
    fields, *by_month = (
        np.stack([np.load(file)[0] for file in sorted(folder.iterdir())])
        for folder in (given.fields, given.january, given.july)
    )
    print(f"{len(real)} months of training, {len(data['test'])} held out, {len(fields)} samples; m/s")
    print("wind from the west: January, July, real and sampled")
    for place, where in PLACES.items():
        node = nearest(positions, *where)
        means = [real[months == month][:, node].mean() for month in ("January", "July")]
        print(f"  {place:15}", *(f"{wind:6.1f}" for wind in [*means, *(some[:, node].mean() for some in by_month)]))
    spread = [some.std(0) for some in (real, data["test"], fields)]
    print("standard deviation from month to month, mean over the globe: real, held out, sampled")
    print("  ", *(f"{each.mean():6.2f}" for each in spread))
    correlations = [np.corrcoef(spread[0], each)[0, 1] for each in spread[1:]]
    print(f"its map, correlated with that of training: held out {correlations[0]:.3f}, sampled {correlations[1]:.3f}")
    waves = GraphLaplacian.from_mesh(positions, data["faces"]).eigenvectors(BANDS[-1][1] ** 2).numpy()
    print("size of anomalies by degree l, sampled / real")
    for low, high in BANDS:
        sizes = [np.square((some - real.mean(0)) @ waves[:, low**2 : high**2]).mean() ** 0.5 for some in (fields, real)]
        print(f"  l {low:2} to {high - 1:2}", f"{sizes[0] / sizes[1]:6.2f}")
    distance = np.linalg.norm(fields[:, None] - real, axis=-1).min(1).mean()
    among = np.linalg.norm(data["test"][:, None] - real, axis=-1).min(1).mean()
    print(f"distance to the nearest month of training: sampled {distance:.1f}, held out {among:.1f}")


if __name__ == "__main__":
    main()
