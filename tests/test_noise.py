"""Noise is reproducible, independent of the batch, standard normal, and different wherever it should be."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch

from ihdm.errors import UsageError
from ihdm.noise import SeededNoise, mix_seed


def noise(images, seed=0, shape=(1, 16, 16)):
    return SeededNoise(seed, torch.tensor(images), shape)


def test_the_same_numbers_give_the_same_noise_whatever_the_batch():
    together = noise([0, 1, 2, 3])(5)
    for i in range(4):
        assert torch.equal(noise([i])(5)[0], together[i])


def test_equal_image_numbers_share_noise():
    eps = noise([7, 7, 8])(1)
    assert torch.equal(eps[0], eps[1])
    assert not torch.equal(eps[0], eps[2])


def test_seed_step_and_image_all_matter():
    draws = [noise([0])(1), noise([1])(1), noise([0])(2), noise([0], seed=1)(1), noise([1], seed=-1)(1)]
    for i, one in enumerate(draws):
        for other in draws[:i]:
            assert abs(torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1]) < 0.25


def test_draws_are_standard_normal():
    eps = noise(range(400), shape=(3, 20, 20))(1).double()
    statistic = scipy.stats.kstest(eps.flatten().numpy(), "norm").statistic
    assert statistic < 1.63 / eps.numel() ** 0.5  # the 1 % level of the Kolmogorov-Smirnov test
    assert torch.isfinite(eps).all()


def test_neighbouring_pixels_images_and_steps_are_uncorrelated():
    eps = torch.stack([noise(range(64), shape=(1, 32, 32))(k) for k in range(1, 5)])
    limit = 4.5 / eps.numel() ** 0.5
    for dim in range(5):
        if eps.shape[dim] > 1:
            product = eps.narrow(dim, 0, eps.shape[dim] - 1) * eps.narrow(dim, 1, eps.shape[dim] - 1)
            assert abs(product.mean()) < limit * 1.2


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.int32])
def test_whole_numbers_of_any_type_name_the_same_images(kind):
    images, seed = torch.arange(3), 2**40 + 1
    one, other = (SeededNoise(seed, numbers, (1, 4, 4)) for numbers in (images, images.to(kind)))
    assert torch.equal(one(5), other(5)) and torch.equal(one.choice(100), other.choice(100))


def test_images_are_not_named_by_fractions():
    with pytest.raises(UsageError, match=r"images must be whole numbers in a tensor, .*, not torch\.float32"):
        SeededNoise(0, torch.zeros(2), (1, 4, 4))
    for given in (range(2), [0, 1], np.arange(2)):
        with pytest.raises(UsageError, match=r"images must be whole numbers in a tensor, such as .*, not"):
            SeededNoise(0, given, (1, 4, 4))


def test_any_integer_is_a_seed():
    draws = [noise([0], seed=seed)(1) for seed in (-1, 2**63, 10**30)]
    assert all(torch.isfinite(eps).all() for eps in draws)


def test_choices_are_uniform():
    counts = torch.bincount(noise(range(20_000)).choice(10), minlength=10)
    assert scipy.stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_mixed_seeds_are_distinct_and_valid():
    seeds = {mix_seed(a, b, c) for a in range(10) for b in range(10) for c in range(10)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)
    torch.Generator().manual_seed(max(seeds))
