"""The diffusion baseline against closed forms, in float64."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from ihdm import evaluation
from ihdm.cli import main
from ihdm.config import Config
from ihdm.errors import UsageError
from ihdm.likelihood import discrete_nll
from ihdm.model import Model
from ihdm.model_folder import ModelConfig
from ihdm.processes import DDPM
from ihdm.processes.ddpm import LARGEST_BETA, DiffusionSampling, DiffusionSettings
from ihdm.trainer import Trainer


def diffusion(K, betas="linear", **sampling) -> DDPM:
    return DDPM(DiffusionSettings(K, betas), DiffusionSampling(**sampling))


@pytest.fixture(params=["linear", "cosine"])
def process(request) -> DDPM:
    return diffusion(50, request.param, clip=False)


def test_alpha_bar_falls_from_one_to_nearly_nothing(process):
    assert process.alpha_bar.shape == (51,) and process.alpha_bar[0] == 1
    assert bool((process.alpha_bar.diff() < 0).all()) and 0 < process.alpha_bar[-1] < 1e-3
    known = torch.linspace(1e-4, 0.02, 1000).double()
    torch.testing.assert_close(diffusion(1000).alpha_bar[1:], (1 - known).cumprod(0), rtol=1e-5, atol=0)
    for wrong in ("process.K=0", "sampling.eta=1.1", "sampling.eta=-0.1", "sampling.order=3"):
        with pytest.raises(UsageError, match="must be at"):
            Config().with_settings(["process.kind=ddpm", wrong])


@pytest.mark.parametrize("betas", ["linear", "cosine"])
@pytest.mark.parametrize("K", [1, 2, 3, 10])
def test_however_few_levels_there_are_the_last_is_noise(betas, K):
    """As samples start from N(0, I)."""
    assert 0 < diffusion(K, betas).alpha_bar[-1] <= 1 - LARGEST_BETA + 1e-9


def posterior(process, x_0, x_k, k):
    """Mean and variance of q(x_{k-1} | x_k, x_0) by Bayes' rule for q(x_{k-1} | x_0) and q(x_k | x_{k-1})."""
    below, here = process.alpha_bar[k - 1], process.alpha_bar[k]
    alpha = here / below
    precision = 1 / (1 - below) + alpha / (1 - alpha)
    return (below.sqrt() * x_0 / (1 - below) + alpha.sqrt() * x_k / (1 - alpha)) / precision, 1 / precision


@pytest.mark.parametrize("k", [2, 17, 50])
def test_ancestral_steps_are_the_posterior_of_the_predicted_image(process, generator, k):
    x_0, x_k, eps = torch.randn(3, 1, 5, generator=generator, dtype=torch.float64)
    x_0, x_k, eps = (x.view(1, 1, 5) for x in (x_0, x_k, eps))
    alpha_bar = process.alpha_bar[k]

    def network(x, level):
        torch.testing.assert_close(x, x_k)
        return (x - alpha_bar.sqrt() * x_0) / (1 - alpha_bar).sqrt()  # so that it predicts x_0

    mean, variance = posterior(process, x_0, x_k, k)
    level, below_k = torch.tensor([k]), torch.tensor([k - 1])
    found = process.step(network, (x_k + 1) / 2, level, below_k, eps)
    torch.testing.assert_close(2 * found - 1, mean + variance.sqrt() * eps)
    torch.testing.assert_close(2 * process.step(network, (x_k + 1) / 2, level, below_k, 0 * eps) - 1, mean)
    deterministic = process.with_sampling(eta=0.0).step(network, (x_k + 1) / 2, level, below_k, eps)
    direction = (x_k - alpha_bar.sqrt() * x_0) / (1 - alpha_bar).sqrt()
    below = process.alpha_bar[k - 1]
    torch.testing.assert_close(2 * deterministic - 1, below.sqrt() * x_0 + (1 - below).sqrt() * direction)


def test_the_last_step_is_the_predicted_image_clipped():
    process, k, j = diffusion(10), torch.tensor(1), torch.tensor(0)
    u = torch.full((1, 1, 2), 0.7)
    found = process.step(lambda x, k: torch.tensor([[[-50.0, 0.0]]]), u, k, j, torch.ones(1, 1, 2))
    assert found[0, 0, 0] == 1  # 50 standard deviations of noise away, but images end at 1
    torch.testing.assert_close(2 * found[0, 0, 1] - 1, 0.4 / process.alpha_bar[1].sqrt().float())


@pytest.mark.parametrize("j", [0, 1, 20])
def test_a_long_step_is_ddims(process, generator, j):
    """sqrt(alpha_bar_j) x_0 + sqrt(1 - alpha_bar_j) eps, from the predicted x_0 and noise (Song et al., Eq. 12)."""
    x_k, guess = torch.randn(2, 3, 1, 5, generator=generator, dtype=torch.float64)
    k, below, here = 33, process.alpha_bar[j], process.alpha_bar[33]
    x_0 = (x_k - (1 - here).sqrt() * guess) / here.sqrt()
    step = process.with_sampling(eta=0.0).step
    found = step(lambda x, level: guess, (x_k + 1) / 2, torch.tensor(k), torch.tensor(j), torch.ones_like(x_k))
    torch.testing.assert_close(2 * found - 1, below.sqrt() * x_0 + (1 - below).sqrt() * guess)


def test_the_loss_is_nothing_for_who_knows_the_noise(process):
    """With an image of which all is known, the noise can be read off the state."""
    u_0 = torch.rand(20, 1, 3, 3, dtype=torch.float64)

    def network(x, k):
        alpha_bar = process.alpha_bar[k].view(-1, 1, 1, 1)
        return (x - alpha_bar.sqrt() * (2 * u_0 - 1)) / (1 - alpha_bar).sqrt()

    k, eps = process.draw(u_0.shape, torch.Generator().manual_seed(0))
    assert float(process.loss(network, u_0, k, eps.double()).max()) < 1e-12
    ignorant = process.loss(lambda x, k: torch.zeros_like(x), u_0, k, eps.double())
    assert ignorant.shape == (20,) and 0.5 < float(ignorant.mean()) < 1.5


def test_terms_of_the_bound(process, generator):
    u_0 = torch.randint(0, 256, (4, 1, 2, 2), generator=generator).double() / 255
    eps = torch.randn(4, 1, 2, 2, generator=generator, dtype=torch.float64)
    guess = torch.randn(4, 1, 2, 2, generator=generator, dtype=torch.float64)
    k = torch.tensor([2, 9, 33, 50])
    bounding = process.with_sampling(eta=0.0).bounding()  # whatever noise samples are made with
    found = bounding.ask(lambda x, level: guess, u_0, k, eps)[:, 0]
    for i, level in enumerate(k.tolist()):
        alpha_bar = process.alpha_bar[level]
        x_0 = 2 * u_0[i] - 1
        x_k = alpha_bar.sqrt() * x_0 + (1 - alpha_bar).sqrt() * eps[i]
        predicted = (x_k - (1 - alpha_bar).sqrt() * guess[i]) / alpha_bar.sqrt()
        (mean, variance), (model_mean, _) = (posterior(process, x, x_k, level) for x in (x_0, predicted))
        expected = kl_divergence(Normal(mean, variance.sqrt()), Normal(model_mean, variance.sqrt())).sum()
        torch.testing.assert_close(found[i], expected)
    last = process.alpha_bar[-1]
    q = Normal(last.sqrt() * (2 * u_0 - 1), (1 - last).sqrt())
    expected = kl_divergence(q, Normal(torch.zeros(()).double(), 1)).flatten(1).sum(1)
    torch.testing.assert_close(bounding.prior_terms(u_0)[:, 0], expected)


@pytest.mark.parametrize("mean, spread", [(0.1, 0.01), (-0.9, 0.2), (3.0, 0.5)])
def test_the_probabilities_of_all_pixel_values_are_one(mean, spread):
    values = torch.arange(256).double() / 255
    nats = discrete_nll(values, torch.tensor(mean).double(), torch.tensor(spread).double()) + math.log(256)
    assert float((-nats).exp().sum()) == pytest.approx(1, abs=1e-8)


def test_level_one_of_the_bound_is_the_discrete_likelihood(process):
    u_0 = torch.tensor([0.0, 128 / 255, 1.0]).double().view(1, 1, 3)
    beta = 1 - process.alpha_bar[1]
    ask = process.bounding().ask
    found = ask(lambda x, k: torch.zeros_like(x), u_0, torch.tensor([1]), torch.zeros(1, 1, 3).double())
    expected = discrete_nll(u_0, u_0, beta.sqrt() / 2).sum()  # without noise the prediction is right
    torch.testing.assert_close(found[0, 0], expected, rtol=1e-6, atol=1e-6)


@pytest.fixture
def config(tiny_config):
    return tiny_config.with_settings(["process.kind=ddpm"])


def test_training_sampling_saving_and_measuring(config, tiny_images, tmp_path, capsys):
    assert Trainer(config, tiny_images, tmp_path / "run").train()
    model = Model.from_pretrained(tmp_path / "run" / "model")
    assert not (tmp_path / "run" / "model" / "prior.safetensors").exists()
    images = model.sample(5, seed=1)
    assert images.shape == (5, 1, 8, 8) and images.min() >= 0 and images.max() <= 1
    plain = model.sample(5, seed=1, eta=0.0)
    assert not torch.allclose(plain, images)
    states = list(model.trajectory(2))
    assert len(states) == 11 and states[-1][0] == 0
    found = evaluation.likelihood(model, tiny_images.held_out)
    assert found.K == 10 and bool(found.bounds[0].total.isfinite().all())
    capsys.readouterr()
    main(["info", str(tmp_path / "run")])
    assert "denoising diffusion, K = 10, linear betas" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["likelihood", str(tmp_path / "run"), "--data", "digits", "--delta-ratio", "1.25"])
    assert "posterior's noise" in capsys.readouterr().err


def test_a_model_that_knows_nothing_needs_more_bits_than_one_that_knows_the_image(config, tiny_images):
    """The bound of a constant image, whose noise can be read off every state, is far below that of an empty guess."""
    model = Model.from_images(ModelConfig.of(config, tiny_images.shape), tiny_images.train)
    constant = torch.full((3, 1, 8, 8), 77, dtype=torch.uint8)

    class Knowing(torch.nn.Module):
        def __init__(self, factor):
            super().__init__()
            self.factor = torch.nn.Parameter(torch.tensor(factor))

        def forward(self, x, k):
            alpha_bar = model.process.alpha_bar.to(x)[k].view(-1, 1, 1, 1)
            return self.factor * (x - alpha_bar.sqrt() * (2 * 77 / 255 - 1)) / (1 - alpha_bar).sqrt()

    bits = []
    for factor in (1.0, 0.0):
        model.network = Knowing(factor)
        found = evaluation.likelihood(model, constant)
        bits.append(float(found.bounds[0].total.mean()) / (64 * math.log(2)) + 8)
    assert bits[0] < 5 < bits[1]
