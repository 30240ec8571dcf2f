"""The rule of each study, on numbers that agree with its claim, that contradict it, and that tell neither."""

from __future__ import annotations

import json
import math
from importlib import import_module
from pathlib import Path

import pytest
import torch

from ihdm.metrics.distances import Reference, frechet_distance
from ihdm.studies import STUDIES
from ihdm.studies.delta_sweep import RATIOS
from ihdm.studies.lab import Lab
from ihdm.studies.langevin_limit import LEVELS
from ihdm.studies.verdict import every, jackknife, lowest, mean_and_error, told

AGREES, CONTRADICTS, TOO_SMALL = "as claimed", "not as claimed", "too small to tell"
PAGES = Path(__file__).parent.parent / "docs" / "studies"


def rule(name):
    return import_module(f"ihdm.studies.{name.replace('-', '_')}").verdict


def sweep(best, error=0.1, bits_best=1.05, bits_error=0.01):
    """A distance and a bound that are lowest at given delta / sigma."""
    return {
        "delta_ratio": RATIOS,
        "distance": [10 + 100 * (ratio - best) ** 2 for ratio in RATIOS],
        "distance_error": [error for _ in RATIOS],
        "bits_per_dimension": [6 + 100 * (ratio - bits_best) ** 2 for ratio in RATIOS],
        "bits_error_to_the_best": [bits_error if ratio != bits_best else 0.0 for ratio in RATIOS],
    }


def sigmas(*best, error=0.1):
    ratios = (1.0, 1.1, 1.2, 1.3, 1.4)
    names = ["0.0025", "0.01", "0.02"]  # the first below the paper's
    curves = {name: [10 + 100 * (ratio - where) ** 2 for ratio in ratios] for name, where in zip(names, best)}
    return {"delta_ratio": ratios, "distance": curves, "distance_error": {name: [error] * 5 for name in names}}


def shapes(colour, noise, start, error):
    shares = {"colour_explained_by_start": colour, "rest_explained_by_noise": noise, "rest_explained_by_start": start}
    return shares | {"standard_error": {"colour_explained_by_start": error, "noise_less_start": error}}


def operators(gaussian, error, milliseconds):
    return {
        "distance": {"cosine basis": 7.0, "Gaussian filter": gaussian},
        "distance_error": {"cosine basis": error, "Gaussian filter": error},
        "milliseconds": {"cosine basis": [1.0, 1.0], "finite differences": [1.0, milliseconds]},
    }


def spectrum(exponent, scatter=0.0, count=20):
    frequency = torch.linspace(0.2, 4, count, dtype=torch.float64)
    wobble = torch.tensor([(-1) ** i * scatter for i in range(count)], dtype=torch.float64).exp()
    return {"frequency": frequency.tolist(), "data": (frequency**-exponent * wobble).tolist()}


def steps(half, error):
    ways = ("paper", "eta 0, second order, 25 steps")
    return {"K": 50, "distance": dict(zip(ways, (10.0, half))), "distance_error": dict.fromkeys(ways, error)}


def relatives(error=0.1, **distances):
    """Of a name with a hyphen, written as it is in Python."""
    found = {
        name.replace("_", "-"): {"distance": [value, 0.0], "distance_error": [error, None]}
        for name, value in distances.items()
    }
    return {"relatives": found}


def rings(*generated):
    return {"frequencies_above_noise": {"generated": generated, "forward": (1, 5, 12, 21)}}


def trees(*by_split):
    return {"rms_difference_by_tree": dict(zip((8, 5, 2), by_split))}


def gradients(heat, coarse, diffusion, scatter=0.01):
    def images(share):
        return [share - scatter, share, share + scatter, share - 2 * scatter, share + 2 * scatter]

    shares = {"inverse heat": [images(heat), images(coarse)], "DDPM": [images(diffusion)[::-1]] * 2}
    return {"share_by_image": shares}


def overlap(values, error):
    return {
        "delta_ratio": (1.0, 1.25),
        "L_K": [[0.0, value] for value in values],
        "standard_error": [[0.0, error] for _ in values],
    }


def restored(mean, images=24):
    return {"psnr": {"mean": mean, "Wiener": [20.0, 15.0]}, "images": images}


CASES = [
    ("sequence", rings(1, 5, 10, 18), rings(1, 2, 2, 3), rings(1, 4, 8, 12)),
    ("sequence", rings(1, 5, 4, 20), rings(1, 12, 6, 20), rings(1, 4, 8, 10)),
    (
        "branches",
        trees([0.30, 0.32, 0.31], [0.20, 0.21, 0.20], [0.10, 0.12, 0.11]),
        trees([0.30, 0.32, 0.31], [0.20, 0.21, 0.20], [0.40, 0.42, 0.40]),
        trees([0.30, 0.10, 0.31], [0.20, 0.31, 0.20], [0.10, 0.12, 0.11]),
    ),
    (
        "same-start",
        *({"variance_share_by_start": some} for some in ([0.4, 0.5, 0.6], [0.01, 0.02, 0.01], [0.1, 0.3, 0.5])),
    ),
    ("delta-sweep", sweep(1.25), sweep(1.0), sweep(1.25, error=2.0)),
    ("delta-sweep", sweep(1.3, bits_best=1.0), sweep(1.3, bits_best=1.25), sweep(1.3, bits_best=1.1, bits_error=1.0)),
    ("delta-sweep", sweep(1.2, error=0.01), sweep(1.4, error=0.01), sweep(1.25, error=None)),
    ("colour-and-shape", shapes(1.0, 0.6, 0.3, 0.02), shapes(1.0, 0.3, 0.6, 0.02), shapes(1.0, 0.47, 0.45, 0.02)),
    ("colour-and-shape", shapes(0.9, 0.6, 0.3, 0.1), shapes(0.2, 0.6, 0.3, 0.1), shapes(0.6, 0.6, 0.3, 0.1)),
    (
        "interpolation",
        *(
            {"largest_over_mean_step": {"inverse heat": heat, "DDPM": [4.0, 5.0, 4.5, 4.0], "DDIM": [1.0] * 4}}
            for heat in ([2.0, 2.5, 2.0, 3.0], [8.0, 9.0, 9.5, 7.0], [2.0, 7.0, 4.0, 4.0])
        ),
    ),
    ("input-gradients", gradients(0.7, 0.1, 0.5), gradients(0.5, 0.1, 0.7), gradients(0.52, 0.1, 0.5, scatter=0.1)),
    (
        "few-shot",
        *(
            {"memorisation_score": {"inverse heat": [0.9, heat], "DDPM": [0.9, diffusion]}}
            for heat, diffusion in ((0.9, 0.05), (0.08, 0.02), (None, 0.05))
        ),
    ),
    ("sigma-robustness", sigmas(1.0, 1.3, 1.25), sigmas(1.3, 1.3, 1.0), sigmas(1.3, 1.3, 1.25, error=None)),
    (
        "sigma-zero",
        *(
            {"pixels_beyond_the_scale": {"with noise": noisy, "without": share}}
            for noisy, share in ((0.0, 0.6), (0.0, 0.0), (0.0, 0.12))
        ),
    ),
    ("prior-overlap", overlap([900, 300, 100], 10), overlap([900, 300, 400], 10), overlap([900, 300, 290], 10)),
    ("prior-overlap", overlap([30, 20], 1), overlap([20, 30], 1), overlap([30, 20], None)),
    ("blur-operators", operators(8.0, 0.1, 300), operators(6.5, 0.1, 300), operators(7.1, 0.1, 300)),
    ("blur-operators", operators(8.0, 0.1, 10), operators(8.0, 0.1, 0.9), operators(8.0, 0.1, 2.5)),
    ("power-spectrum", spectrum(2.1, 0.1), spectrum(2.8, 0.1), spectrum(2.4, 1.0)),
    ("power-spectrum", spectrum(1.8), spectrum(1.0), spectrum(2.0, count=3)),
    ("power-spectrum", *(some | {"of": "signals"} for some in (spectrum(0.4), spectrum(-0.4), spectrum(0.1, 1.0)))),
    ("neighbours", {"closer": 0.0}, {"closer": 1.0}, {"closer": None}),
    ("neighbours", {"closer": 0.01}, {"closer": 0.2}, {"closer": 0.05}),
    (
        "langevin-limit",
        *(
            {"K": LEVELS, "relative_error": [4 * K**-power * (1 + 0.5 * math.sin(K)) ** wobble for K in LEVELS]}
            for power, wobble in ((1.02, 0), (0.5, 0), (1.0, 1))
        ),
    ),
    ("network-bias", *({"gain": [gain, 0.0], "gain_error": 0.02} for gain in (0.17, -0.3, 0.03))),
    ("exact-steps", steps(8.0, 0.1), steps(12.0, 0.1), steps(9.9, 0.1)),
    (
        "family",
        relatives(heat=40.0, growing=28.0, late_blur=22.0),
        relatives(heat=40.0, growing=28.0, late_blur=45.0),
        relatives(heat=40.0, growing=28.0),  # the rest is to come
    ),
    (
        "family",
        relatives(heat=40.0, growing=39.0, late_blur=39.0),
        relatives(heat=40.0, growing=41.0, late_blur=22.0),
        relatives(heat=40.0, growing=39.9, late_blur=22.0),
    ),
    (
        "how-much-blur",
        relatives(blur_0=20.0, blur_20=18.0),
        relatives(blur_0=18.6, blur_20=33.1),
        relatives(None, blur_0=18.6, blur_20=33.1),
    ),
    ("restore", restored([30.0, 20.0]), restored([30.0, 10.0]), restored([20.5, 20.0])),
    ("restore", restored([22.0, 17.0]), restored([18.0, 17.0]), restored([30.0, 20.0], images=4)),
]


@pytest.mark.parametrize("name, agrees, contradicts, too_small", CASES)
def test_the_rule_of_a_study_tells_what_agrees_from_what_contradicts(name, agrees, contradicts, too_small):
    found = [rule(name)(json.loads(json.dumps(numbers))) for numbers in (agrees, contradicts, too_small)]
    assert found == [AGREES, CONTRADICTS, TOO_SMALL]


def test_every_study_has_a_rule_that_is_tested():
    assert {case[0] for case in CASES} == set(STUDIES)


def test_a_number_is_told_from_its_threshold_by_two_standard_errors():
    assert [told(margin, 1.0) for margin in (2.1, 2.0, 0.0, -2.0, -2.1)] == [AGREES, *3 * [TOO_SMALL], CONTRADICTS]
    assert told(0.0, 0.0) == told(1.0, None) == told(None, 1.0) == told(1.0, math.nan) == TOO_SMALL
    assert every([AGREES, TOO_SMALL, CONTRADICTS]) == CONTRADICTS
    assert every([AGREES, TOO_SMALL]) == every([]) == TOO_SMALL and every([AGREES]) == AGREES
    assert lowest([1, 2, 3], [5.0, 1.0, 5.0], [0.1, 0.1, 0.1], 2, 2) == AGREES
    assert lowest([1, 2, 3], [1.0, 5.0, 5.0], [0.1, 0.1, 0.1], 2, 3) == CONTRADICTS


def test_standard_errors_of_means(generator):
    values = torch.randn(50, generator=generator, dtype=torch.float64)
    mean, error = mean_and_error(values.tolist())
    assert (mean, error) == pytest.approx((float(values.mean()), float(values.std() / 50**0.5)))
    without = [float(values[torch.arange(50) != i].mean()) for i in range(50)]
    assert jackknife(without) == pytest.approx(error)  # of a mean the two are the same
    assert mean_and_error([1.0, 2.0]) == (1.5, None)


def test_the_error_of_a_distance_is_how_it_scatters_over_sets_of_samples(tmp_path, generator):
    """Against the scatter that many sets of samples have; and none from fewer samples than features."""
    lab = Lab(tmp_path, quick=True, device_name="cpu")
    images = torch.randint(0, 256, (4000, 1, 2, 2), generator=generator).to(torch.uint8)
    object.__setattr__(lab, "_reference", Reference.from_features(lab.features(images)))
    made = torch.randint(0, 128, (40, 300, 1, 2, 2), generator=generator).to(torch.uint8)
    found = [lab.distance([some]) for some in made]
    values = torch.tensor([one.value for one in found])
    assert found[0].value == frechet_distance(lab.features(made[0]), lab._reference)
    assert sum(one.error for one in found) / 40 == pytest.approx(float(values.std()), rel=0.35)
    assert lab.distance([made[0, :4]]).error is None


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.json")), ids=lambda path: path.stem)
def test_verdicts_on_pages_follow_from_their_numbers(page):
    """Pages made before there were verdicts have one only where their numbers tell it."""
    lines = page.with_suffix(".md").read_text().splitlines()
    written = [line for line in lines if line.startswith("**Verdict:**")]
    try:
        found = rule(page.stem)(json.loads(page.read_text())["numbers"])
    except KeyError:
        assert not written
        return
    assert len(written) == 1 and written[0].removeprefix("**Verdict:** ").startswith(found)
    assert f"**Claim:** {import_module(rule(page.stem).__module__).CLAIM}" in lines
