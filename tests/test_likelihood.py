"""The bound against closed forms, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, MultivariateNormal, Normal, kl_divergence

from ihdm import likelihood
from ihdm.heat import GridLaplacian
from ihdm.likelihood import (
    ROUNDING,
    Bound,
    Row,
    bits_per_dimension,
    bounds,
    chosen_levels,
    discrete_nll,
    gaussian_kl,
    gaussian_nll,
    prior_term,
    standard_error,
    terms_by_level,
)
from ihdm.prior import Prior
from ihdm.processes import IdentitySkip, InverseHeat, LinearPredictor, LinearSkip, Spectrum
from ihdm.schedule import Schedule

SIGMA = 0.01


def nothing(u, k):
    return torch.zeros_like(u)


def test_terms_are_those_of_torch_distributions(generator):
    a, b = torch.rand(2, 5, 12, generator=generator, dtype=torch.float64)
    q, p = (Independent(Normal(mean, scale), 1) for mean, scale in ((a, 0.3), (b, 0.7)))
    squared = (a - b).square().sum(1)
    torch.testing.assert_close(gaussian_kl(squared, 12, 0.3, 0.7), kl_divergence(q, p))
    torch.testing.assert_close(gaussian_nll(squared, 12, 0.7), -p.log_prob(a))


def blurry_prior(generator, grid, sigma_B, images):
    laplacian = GridLaplacian(grid)
    u_0 = torch.rand(images, 3, *grid, generator=generator, dtype=torch.float64)
    return Prior.from_images(laplacian, sigma_B**2 / 2, [u_0]), u_0


@pytest.mark.parametrize("sigma_B", [2.0, 9.0])
def test_the_prior_term_is_that_of_pixels(generator, monkeypatch, sigma_B):
    prior, train = blurry_prior(generator, (12, 10), sigma_B, 40)
    test = torch.rand(7, 3, 12, 10, generator=generator, dtype=torch.float64)
    deltas = [SIGMA, 1.25 * SIGMA, 5 * SIGMA]
    found = prior_term(prior, test, SIGMA, deltas)
    t = torch.tensor(sigma_B**2 / 2)
    means, centres = (prior.laplacian.dissipate(u, t).flatten(1) for u in (test, train))
    for row, delta in zip(found, deltas):
        divergences = gaussian_kl(torch.cdist(means, centres).square(), means.shape[1], SIGMA, delta)
        phi = torch.softmax(-divergences, 1)  # App. A.3, term by term
        expected = (phi * (divergences + torch.log(len(train) * phi.clamp_min(1e-300)))).sum(1)
        torch.testing.assert_close(row, expected, rtol=1e-4, atol=0)
    monkeypatch.setattr(likelihood, "BLOCK", 20)  # two or three training images at a time
    torch.testing.assert_close(prior_term(prior, test, SIGMA, deltas), found, rtol=1e-10, atol=1e-8)


def test_the_prior_term_bounds_the_divergence_from_a_mixture(generator):
    laplacian = GridLaplacian((3, 2))
    centres = 0.5 + 0.03 * torch.randn(4, 1, 3, 2, generator=generator, dtype=torch.float64)
    u_0 = 0.5 + 0.03 * torch.randn(3, 1, 3, 2, generator=generator, dtype=torch.float64)
    sigma, delta = 0.02, 0.03
    t = 0.1
    for count in (4, 1):
        prior = Prior.from_images(laplacian, t, [centres[:count]])
        found = prior_term(prior, u_0, sigma, [delta])[0]
        means, q_means = (laplacian.dissipate(u, t).flatten(1) for u in (centres[:count], u_0))
        components = Independent(Normal(means, delta), 1)
        p = MixtureSameFamily(Categorical(torch.ones(count, dtype=torch.float64)), components)
        torch.manual_seed(0)
        for mean, bound in zip(q_means, found):
            q = Independent(Normal(mean, sigma), 1)
            draws = q.sample((100_000,))
            estimates = q.log_prob(draws) - p.log_prob(draws)
            error = standard_error(estimates)
            assert bound >= estimates.mean() - 4 * error
            if count == 1:
                assert abs(bound - estimates.mean()) < 4 * error


def expected_answers(bounding, u_0):
    """What the bounds are made of, in the mean over the noise at every level, exactly for a linear mu.

    The points +- sqrt(d) e_i have the mean and the covariance of a standard normal, all that a square depends on.
    """
    d = u_0.numel()
    points = math.sqrt(d) * torch.cat([torch.eye(d), -torch.eye(d)]).double().view(-1, *u_0.shape)
    copies = u_0.expand_as(points)
    levels = [torch.full((2 * d,), k) for k in range(1, bounding.process.K + 1)]
    return torch.stack([bounding.ask(nothing, copies, k, points).mean(0) for k in levels])[None]


def all_bounds(process, u_0, deltas, fitted=None):
    """The paper's bounds for each delta, and those of exact steps, with L_0 fitted to some images and their noise."""
    bounding = process.bounding(delta_ratio=[delta / process.sigma for delta in deltas])
    bounding.fit(nothing, [fitted or (u_0[None], torch.zeros_like(u_0)[None])])
    levels = chosen_levels(process.K, [0], None, 0)
    answers = expected_answers(bounding, u_0)
    return bounds(bounding, answers, levels, bounding.prior_terms(u_0[None]), process.K)


def one_bound(process, u_0, deltas):
    return all_bounds(process, u_0, deltas)[: len(deltas)]


def affine(process, shape, k):
    """mu(u, k) = M u + b."""
    d = math.prod(shape)
    basis = torch.cat([torch.zeros(1, d), torch.eye(d)]).double().view(-1, *shape)
    values = process.mean(nothing, basis, torch.full((d + 1,), k)).flatten(1)
    return (values[1:] - values[0]).T, values[0]


def test_on_gaussian_data_the_bound_exceeds_the_exact_likelihood_by_the_divergence_of_the_posterior(generator):
    """With the best linear predictor all is Gaussian: bound = -log p(u_0) + D_KL[q(u_1:K | u_0) || p(u_1:K | u_0)]."""
    shape, K, sigma = (1, 2, 2), 3, 0.05
    d = math.prod(shape)
    laplacian, schedule = GridLaplacian(shape[1:]), Schedule(K, 1.5)
    data = 0.5 + 0.2 * torch.randn(500, *shape, generator=generator, dtype=torch.float64)
    skip = LinearSkip(LinearPredictor(laplacian, schedule, sigma, Spectrum.from_images(laplacian, [data])))
    prior = Prior.from_images(laplacian, float(schedule.t[-1]), [data[:1]])
    start = prior.means(torch.zeros(1, dtype=torch.long)).double().flatten()
    deltas = [sigma, 1.25 * sigma, 2 * sigma]
    for u_0 in data[1:4]:
        process = InverseHeat(laplacian, schedule, sigma, skip, prior=prior)
        for delta, bound in zip(deltas, one_bound(process, u_0, deltas)):
            # x = (u_K, ..., u_0) is an affine function of independent noise: u_{k-1} = M u_k + b + delta eps.
            mean, factor = [start], [torch.cat([torch.eye(d), torch.zeros(d, K * d)], 1).double()]
            for step, k in enumerate(range(K, 0, -1), start=1):
                M, b = affine(process, shape, k)
                own = torch.zeros(d, (K + 1) * d, dtype=torch.float64)
                own[:, step * d : (step + 1) * d] = torch.eye(d)
                mean.append(M @ mean[-1] + b)
                factor.append(M @ factor[-1] + own)
            joint_mean, joint = torch.cat(mean), delta**2 * torch.cat(factor) @ torch.cat(factor).T
            n = K * d
            exact = -MultivariateNormal(joint_mean[n:], joint[n:, n:]).log_prob(u_0.flatten())
            gain = joint[:n, n:] @ torch.linalg.inv(joint[n:, n:])
            posterior = MultivariateNormal(
                joint_mean[:n] + gain @ (u_0.flatten() - joint_mean[n:]), joint[:n, :n] - gain @ joint[n:, :n]
            )
            blurred = [process.blur(u_0[None], torch.tensor([k])).flatten() for k in range(K, 0, -1)]
            q = MultivariateNormal(torch.cat(blurred), sigma**2 * torch.eye(n, dtype=torch.float64))
            gap = kl_divergence(q, posterior)
            assert gap > 0 and bound.total[0] > exact
            torch.testing.assert_close(bound.total[0], exact + gap, rtol=1e-5, atol=0)


def test_the_bound_is_exact_where_the_forward_process_is_the_posterior():
    """One level, mu = u_1, delta^2 = 2 sigma^2: then p(u_1 | u_0) = N(u_0 / 2, sigma^2), which is q where F = 1/2."""
    laplacian = GridLaplacian((4,))
    t = math.log(2) / -float(laplacian.eigenvalues[1])
    schedule = Schedule(1, math.sqrt(2 * t), 0.1)
    prior = Prior.from_images(laplacian, t, [torch.zeros(1, 1, 4)])
    process = InverseHeat(laplacian, schedule, SIGMA, IdentitySkip(), prior=prior)
    delta = math.sqrt(2) * SIGMA
    wave = laplacian.from_spectrum(torch.tensor([[[0.0, 0.02, 0, 0]]], dtype=torch.float64))[0]
    other = laplacian.from_spectrum(torch.tensor([[[0.0, 0.02, 0.01, 0]]], dtype=torch.float64))[0]
    exact = [
        -Independent(Normal(torch.zeros(4).double(), math.sqrt(2) * delta), 1).log_prob(u[0]) for u in (wave, other)
    ]
    found = [one_bound(process, u, [delta])[0].total[0] for u in (wave, other)]
    torch.testing.assert_close(found[0], exact[0], rtol=1e-9, atol=1e-9)
    gap = (math.exp(t * laplacian.eigenvalues[2]) - 0.5) ** 2 * 0.01**2 / (2 * SIGMA**2)
    torch.testing.assert_close(found[1], exact[1] + gap, rtol=1e-9, atol=1e-9)


def test_drawn_levels_estimate_the_sum_without_preference():
    K, images, count = 12, 4000, 3
    levels = chosen_levels(K, range(images), count, seed=1)
    assert levels.shape == (images, 1 + count) and bool((levels[:, 0] == 1).all())
    assert all(len(set(row)) == 1 + count for row in levels.tolist()) and int(levels.max()) == K
    assert levels[7].equal(chosen_levels(K, [7], count, seed=1)[0])
    assert not levels.equal(chosen_levels(K, range(images), count, seed=2))
    assert chosen_levels(K, range(2), None, 0).tolist() == [list(range(1, K + 1))] * 2
    assert chosen_levels(K, range(2), K, 0).shape == (2, K)
    for nothing in (0, -1):
        with pytest.raises(ValueError, match="at least one level"):
            chosen_levels(K, range(2), nothing, 0)
    everything = chosen_levels(K, range(images), None, 0)
    prior_terms = torch.zeros(images, 1)
    (full,) = bounds(Squares(), everything[..., None].double(), everything, prior_terms, K)
    (drawn,) = bounds(Squares(), levels[..., None].double(), levels, prior_terms, K)
    error = standard_error(drawn.chain)
    assert 0 < error < 0.05 * full.chain.mean()
    assert abs(drawn.chain.mean() - full.chain.mean()) < 4 * error
    assert drawn.L_0.equal(full.L_0)
    by_level = terms_by_level(Squares(), levels[..., None].double(), levels, K)[:, 0]
    torch.testing.assert_close(by_level, torch.tensor([-1.0, *(k**2 for k in range(2, K + 1))]).double())
    assert terms_by_level(Squares(), levels[:1, :1, None], levels[:1, :1], K).isnan().sum() == K - 1


class Squares:
    """A bound of which L_{k-1} is the square of what was answered, and L_0 its negative."""

    rows = (Row("squares"),)

    def terms(self, answers, first):
        return answers.double() ** 2 * (-1 if first else 1)


def test_level_one_must_come_first():
    with pytest.raises(ValueError, match="level"):
        bounds(Squares(), torch.ones(1, 2, 1), torch.tensor([[2, 1]]), torch.zeros(1, 1), 2)


def test_bits_of_a_uniform_code_are_eight():
    """A density of 1 on [0, 1] is 8 bits for each pixel."""
    assert float(bits_per_dimension(torch.zeros(()), 3072)) == 8
    assert float(bits_per_dimension(torch.tensor(3072 * math.log(2.0)), 3072)) == pytest.approx(9)
    one = Bound(Row("one"), torch.tensor([1.0]), torch.tensor([2.0]), torch.tensor([4.0]))
    assert one.total.tolist() == [7.0] and math.isnan(standard_error(one.total))


GAUSSIAN = GridLaplacian((4, 4))


def gaussian_case(K, sigma=0.02):
    """Gaussian data whose brightness is known, so that the coarsest state is too, with the best linear predictor."""
    power = 0.05 * torch.exp(0.4 * GAUSSIAN.eigenvalues)[None]
    power[0, 0, 0] = 0
    mean = torch.zeros(1, 4, 4, dtype=torch.float64)
    mean[0, 0, 0] = 2.0
    spectrum, schedule = Spectrum(mean, torch.eye(1).double(), power), Schedule(K, 6.0, 0.2)
    skip = LinearSkip(LinearPredictor(GAUSSIAN, schedule, sigma, spectrum))
    prior = Prior.from_images(GAUSSIAN, float(schedule.t[-1]), [GAUSSIAN.from_spectrum(mean[None])])
    return InverseHeat(GAUSSIAN, schedule, sigma, skip, prior=prior, spectra=(spectrum,))


def gaussian_images(n, seed):
    generator, spectrum = torch.Generator().manual_seed(seed), gaussian_case(2).spectra[0]
    draw = torch.randn(n, 1, 4, 4, generator=generator, dtype=torch.float64)
    return GAUSSIAN.from_spectrum(spectrum.mean + spectrum.power.sqrt() * draw)


def test_the_exact_bound_comes_to_the_exact_likelihood_as_levels_grow_and_the_papers_does_not():
    images, power = gaussian_images(3, 1), gaussian_case(2).spectra[0].power
    known = power == 0  # the brightness: its L_0 is that of rounding, and not part of the law
    gaps = {}
    for K in (25, 100, 400):
        process = gaussian_case(K)
        many = gaussian_images(20_000, 2), torch.randn(20_000, 1, 4, 4, dtype=torch.float64)
        for u_0 in images:
            found = {bound.row.name: bound.total[0] for bound in all_bounds(process, u_0, [process.sigma], many)}
            coordinates = GAUSSIAN.to_spectrum(u_0[None])[0]
            law = Normal(torch.zeros(()).double(), power[~known].sqrt())
            exact = -law.log_prob(coordinates[~known]).sum() + math.log(ROUNDING * math.sqrt(2 * math.pi))
            paper, by_frequency = found["paper, delta/sigma 1"], found["exact, L_0 by frequency"]
            gaps.setdefault(K, []).append((float(by_frequency - exact), float(paper - exact)))
    exact_gaps, paper_gaps = ({K: sum(gap[i] for gap in found) / 3 for K, found in gaps.items()} for i in (0, 1))
    assert exact_gaps[25] > 3.5 * exact_gaps[100] > 3.5**2 * exact_gaps[400] > 0 and exact_gaps[400] < 0.5  # nats
    assert paper_gaps[25] < paper_gaps[100] < paper_gaps[400] and paper_gaps[25] > 10 * exact_gaps[25]


def test_terms_of_the_exact_chain_are_divergences_of_posteriors(generator):
    """D_KL[q(u_{k-1} | u_k, u_0) || p(u_{k-1} | u_k)], both with the posterior's variance, by coefficient."""
    process = gaussian_case(6)
    u_0 = gaussian_images(2, 5)
    eps = torch.randn(u_0.shape, generator=generator, dtype=torch.float64)
    bounding, sigma, t = process.bounding(), process.sigma, process.schedule.t
    bounding.fit(nothing, [(u_0, eps)])
    for level in (2, 4, 6):
        k = torch.full((2,), level)
        u_k = process.noised(u_0, k, eps)
        a = torch.exp((t[level] - t[level - 1]) * GAUSSIAN.eigenvalues)
        fine = torch.exp(t[level - 1] * GAUSSIAN.eigenvalues)
        guess = GAUSSIAN.to_spectrum(process.mean(nothing, u_k, k))
        u_hat, spread = GAUSSIAN.to_spectrum(u_k), sigma * (1 - a**2).sqrt()
        means = [a * u_hat + (1 - a**2) * m for m in (fine * GAUSSIAN.to_spectrum(u_0), guess)]
        q, p = (Normal(mean[..., a < 1], spread[a < 1]) for mean in means)
        found = bounding.terms(bounding.ask(nothing, u_0, k, eps), first=False)[:, -1]
        torch.testing.assert_close(found, kl_divergence(q, p).sum(-1)[:, 0])


def test_the_last_step_has_its_best_variance_as_a_density_and_for_8_bit_values(generator):
    process = gaussian_case(6)
    u_0 = (gaussian_images(400, 5).clamp(0, 1) * 255).round() / 255
    eps = torch.randn(u_0.shape, generator=generator, dtype=torch.float64)
    bounding, first = process.bounding(), torch.ones(400, dtype=torch.long)
    bounding.fit(nothing, [(u_0[:150], eps[:150]), (u_0[150:], eps[150:])])
    errors = process.errors(nothing, u_0, first, eps)
    rows = {row.name: i for i, row in enumerate(bounding.rows)}
    found = bounding.terms(bounding.ask(nothing, u_0, first, eps), first=True)
    one = errors.square().mean().sqrt()
    expected = -Normal(0 * errors, one).log_prob(errors).flatten(1).sum(1)
    torch.testing.assert_close(found[:, rows["exact"]], expected)
    each = GAUSSIAN.to_spectrum(errors).square().mean(0).clamp_min(ROUNDING**2).sqrt()
    expected = -Normal(0 * errors, each).log_prob(GAUSSIAN.to_spectrum(errors)).flatten(1).sum(1)
    torch.testing.assert_close(found[:, rows["exact, L_0 by frequency"]], expected)
    expected = discrete_nll(u_0, u_0 + errors, bounding.spread).flatten(1).sum(1)
    torch.testing.assert_close(found[:, rows["exact, L_0 discretised"]], expected)
    kept = u_0[:64], u_0[:64] + errors[:64]
    best = discrete_nll(*kept, bounding.spread).mean()
    assert all(discrete_nll(*kept, factor * bounding.spread).mean() > best for factor in (0.8, 1.25))
    assert found[:, rows["exact, L_0 by frequency"]].mean() < found[:, rows["exact"]].mean()
    assert found[:, rows["exact"]].mean() < found[:, 0].mean()  # the paper's has delta for its deviation
