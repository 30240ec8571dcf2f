"""What every process must do, whoever wrote it: one suite over the registry.

On Gaussian data the best network is known (`laws.py`), so that the law of samples is, too.
"""

from __future__ import annotations

import dataclasses
import itertools

import laws
import pytest
import torch

from ihdm import evaluation
from ihdm.domains import ImageDomain
from ihdm.engine import Frozen
from ihdm.errors import UsageError
from ihdm.execution import Execution
from ihdm.model import Model
from ihdm.model_folder import ModelConfig
from ihdm.noise import SeededNoise
from ihdm.processes import Bounded, FromImages, Restoring
from ihdm.registry import PROCESSES
from ihdm.sampler import chain, last, reverse_step, sample
from ihdm.trainer import Trainer

ALL = [(kind, name) for kind, cases in laws.CASES.items() for name in cases]
NOISY = [(kind, name) for kind, name in ALL if kind not in laws.WITHOUT_NOISE]
COUNT = 20_000
EXACT = {"sampler": "exact"}  # for those that have a choice
WAYS = {
    "plain": {"order": 1},
    "corrected": {"order": 1, "corrected": True},
    "second order": {"order": 2},
    "second order, corrected": {"order": 2, "corrected": True},
}
refined = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@pytest.fixture(params=ALL, ids=" ".join)
def case(request) -> laws.Case:
    kind, name = request.param
    return laws.CASES[kind][name]()


@pytest.fixture(params=list(PROCESSES))
def kind(request) -> str:
    return request.param


@pytest.fixture
def config(kind, tiny_config):
    return tiny_config.with_settings([f"process.kind={kind}"])


@pytest.fixture
def model(config, tiny_images) -> Model:
    """Untrained, but with weights that do something."""
    torch.manual_seed(0)
    model = Model.from_images(ModelConfig.of(config, tiny_images.shape, "blobs"), tiny_images.train)
    for weight in model.network.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    return model.eval()


def exact(process, **sampling):
    """The process with exact steps, whether or not it has others."""
    own = {f.name for f in dataclasses.fields(process.sampling)}
    return process.with_sampling(**{name: v for name, v in {**EXACT, **sampling}.items() if name in own})


def test_every_process_has_its_law():
    assert set(laws.CASES) == set(PROCESSES)


# Without noise a state has no law of its own, and a chain that adds nothing cannot have back what the last level lost.
noisy = pytest.mark.parametrize("case", NOISY, indirect=True, ids=" ".join)


@noisy
def test_states_have_their_marginals(case):
    u_0, K = laws.draws(1), case.process.K
    for k in {1, K // 3, K}:
        states = case.process.noised(u_0.expand(COUNT, *laws.SHAPE), torch.full((COUNT,), k), laws.white(COUNT, k))
        mean, sigma = case.mean(u_0, k)[0], case.sigma(k)
        torch.testing.assert_close(states.mean(0), mean, atol=5 * sigma / COUNT**0.5, rtol=0)
        covariance = torch.cov(states.flatten(1).T) / sigma**2
        torch.testing.assert_close(covariance, torch.eye(len(covariance)).double(), atol=0.05, rtol=0)


def test_one_level_for_all_is_the_same_as_one_for_each(case):
    u_0, eps = laws.draws(3), laws.white(3, 1)
    for k in {0, 1, case.process.K}:
        each = case.process.noised(u_0, torch.full((3,), k), eps)
        torch.testing.assert_close(case.process.noised(u_0, torch.tensor(k), eps), each, rtol=0, atol=1e-12)


def test_levels_are_drawn_from_1_to_K(case, generator):
    k, eps = case.process.draw((1000, *laws.SHAPE), generator)
    assert k.shape == (1000,) and int(k.min()) == 1 and int(k.max()) == case.process.K
    assert eps.shape == (1000, *laws.SHAPE) and abs(float(eps.std()) - 1) < 0.02


def test_the_best_network_has_the_least_loss(case, generator):
    u_0, eps = laws.draws(2000), laws.white(2000, 1)
    for level in (1, case.process.K // 2, case.process.K):
        k = torch.full((2000,), level)
        best = case.process.loss(case.network, u_0, k, eps)
        assert best.shape == (2000,)
        for other in (lambda u, k: case.network(u, k) + 0.5, lambda u, k: case.network(u, k) - 0.5 * u):
            assert case.process.loss(other, u_0, k, eps).mean() > best.mean()


def law_at_level_1(case, **sampling):
    """Mean and variance of samples at level 1, from u_K of the right law: exactly, by what a chain makes of impulses.

    The whole chain is an affine function of its start and of the noise of each step, with one gain for each coordinate:
    row 0 of the batch has neither, the next rows a start of one unit in one coordinate, the last ones noise of one unit
    in all coordinates, each in one step. At level 1 states should have the law of the forward process; the last step
    takes their noise off.
    """
    process = exact(case.process, **sampling)
    levels = process.levels()[:-1]
    levels = levels if levels[-1] == 1 else [*levels, 1]
    pixels, steps = laws.CHANNELS * laws.GRID[0] * laws.GRID[1], len(levels) - 1
    start, ones = torch.zeros(1 + pixels + steps, *laws.SHAPE).double(), torch.ones(1, *laws.SHAPE).double()
    start[1 : 1 + pixels] = torch.eye(pixels).view(pixels, *laws.SHAPE)

    def noise(k):
        eps = torch.zeros_like(start)
        eps[1 + pixels + levels.index(int(k))] = laws.from_coordinates(ones)[0]
        return eps

    mean = case.mean(laws.LAPLACIAN.from_spectrum(laws.spectrum().mean[None]), process.K)
    u_K = mean + laws.from_coordinates(start)
    found = case.coordinates(last(chain(process, reverse_step(process, case.network, noise), u_K, levels)), 1)
    shift, response = found[0], found[1:] - found[0]
    matrix, gains = response[:pixels].flatten(1), response[pixels:]
    assert float((matrix - matrix.diag().diag()).abs().max()) < 1e-9  # each coordinate by itself
    variance = matrix.diag().view(laws.SHAPE).square() * case.variance(process.K) + gains.square().sum(0)
    return shift, variance / case.variance(1)


@noisy
@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
def test_samples_have_the_law_of_the_data(case, eta):
    """The mean for any number of steps, the variance the better the more there are, and sooner if steps are refined."""
    worst, ways = {}, list(WAYS) if hasattr(case.process.sampling, "order") else ["plain"]
    for way, steps in itertools.product(ways, (100, 50, 25)):
        shift, ratio = law_at_level_1(case, eta=eta, steps=steps, **WAYS[way])
        torch.testing.assert_close(shift, 0 * shift, atol=1e-9, rtol=0)
        worst[way, steps] = float((ratio - 1).abs().max())
    for steps in (100, 50):
        assert worst["plain", steps] < 0.85 * worst["plain", steps // 2]
    assert worst["plain", 100] < 0.3
    for way in ways[1:]:
        assert worst[way, 100] < (0.1 if "second" in way else 0.2)
        assert all(worst[way, steps] < worst["plain", steps] for steps in (100, 50, 25))


@pytest.mark.parametrize("case", [("heat", "linear skip"), ("growing", "plain")], indirect=True, ids=" ".join)
def test_how_fast_errors_fall(case):
    """Twice as many steps: half of the error in plain ones, a quarter or less in refined ones, of which those are best.

    (In processes whose levels are even, so that all steps become shorter alike.)
    """
    errors = {
        way: [
            float((law_at_level_1(case, eta=0.0, steps=steps, **WAYS[way])[1] - 1).abs().max()) for steps in (50, 100)
        ]
        for way in WAYS
    }
    falls = {way: few / many for way, (few, many) in errors.items()}
    assert 1.7 < falls["plain"] < 2.3
    assert all(3.4 < falls[way] < 6.5 for way in list(WAYS)[1:])
    assert errors["second order, corrected"][0] < 0.4 * errors["second order"][0]


@noisy
def test_a_corrected_step_is_exact_where_the_prediction_is_linear(case):
    """sigma_k u / sigma_i + sigma_k times the integral of exp(l) x(l), l = log(alpha / sigma), for x linear in l."""
    process = exact(case.process, eta=0.0)
    if not hasattr(process, "correction"):
        pytest.skip("its steps cannot be corrected")
    i, k, ones = torch.tensor([60]), torch.tensor([45]), torch.ones(1, *laws.SHAPE).double()
    left = process.ratio(i, k, ones) * process.sigma_at(k, ones) / process.sigma_at(i, ones)
    length = -left.log() * ones  # of the step, in l
    places = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    weights = length[..., None] * torch.exp(-length[..., None] * (1 - places))
    torch.testing.assert_close(1 - left * ones, weights.mean(-1), rtol=1e-6, atol=1e-9)  # of a constant x
    expected = (weights * places).mean(-1)  # of an x that rises from 0 to 1
    torch.testing.assert_close(process.correction(i, k, ones) * ones, expected, rtol=1e-4, atol=1e-8)


def test_the_last_step_takes_all_noise_off(case):
    """It is the prediction of the image, whatever the noise and the state's own."""
    process, u_1 = exact(case.process), case.mean(laws.draws(3), 1) + case.sigma(1) * laws.white(3, 2)
    k, j = torch.tensor(1), torch.tensor(0)
    found = [process.step(case.network, u_1, k, j, eps) for eps in (laws.white(3, 4), laws.white(3, 5))]
    torch.testing.assert_close(*found)
    gain = case.gain(1) * laws.spectrum().power / case.variance(1)
    expected = gain * case.coordinates(u_1, 1)
    torch.testing.assert_close(case.coordinates_of_images(found[0]), expected)


@pytest.mark.parametrize("steps", [1, 3, 10])
def test_a_chain_goes_from_K_to_0_in_as_many_steps_as_are_asked_for(model, steps):
    process = exact(model.process, steps=steps)
    levels = process.levels()
    assert len(levels) == 1 + steps and levels[0] == process.K and levels[-1] == 0
    assert levels == sorted(set(levels), reverse=True)
    gaps = [k - j for k, j in zip(levels, levels[1:-1])] or [0]  # the last one may be shorter
    assert max(gaps) - min(gaps) <= 1
    states = list(model.sampled(**changes(process)).trajectory(2))
    assert [k for k, _ in states] == levels and all(u.shape == (2, 1, 8, 8) for _, u in states)


def changes(process):
    """Its way of sampling, in words."""
    return {
        f.name: getattr(process.sampling, f.name)
        for f in dataclasses.fields(process.sampling)
        if getattr(process.sampling, f.name) != getattr(type(process.sampling)(), f.name)
    }


@refined
def test_image_i_depends_on_the_seed_and_i_alone(model, way):
    model = model.sampled(**changes(exact(model.process, steps=4, **way)))
    images = model.sample(5, seed=3)
    assert images.equal(model.sample(5, seed=3)) and images.min() >= 0 and images.max() <= 1
    assert not images.equal(model.sample(5, seed=4))
    for size in (1, 2):
        batched = model.sample(5, seed=3, execution=Execution(batch_size=size))
        torch.testing.assert_close(batched, images, atol=1e-5, rtol=0)
    torch.testing.assert_close(model.sample(2, seed=3, first=3), images[3:], atol=1e-5, rtol=0)
    assert torch.cat(list(model.sample_batches(5, seed=3))).shape == images.shape


def test_no_images_at_all(model):
    assert model.sample(0).shape == (0, *model.config.shape)
    assert all(images.shape == (0, *model.config.shape) for _, images in model.trajectory(0))


def test_between_two_starts_are_starts(model):
    one, other = (SeededNoise(seed, torch.arange(5), model.config.shape) for seed in (1, 2))
    found = model.process.between(one, other, torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]))
    torch.testing.assert_close(found[0], model.process.start(one)[0])
    torch.testing.assert_close(found[-1], model.process.start(other)[-1], atol=1e-6, rtol=1e-5)
    assert found.isfinite().all()


def test_saved_and_loaded_it_is_the_same(model, tmp_path):
    sampled = model.sampled(**changes(exact(model.process, steps=3, eta=0.25)))
    sampled.save_pretrained(tmp_path)
    again = Model.from_pretrained(tmp_path)
    assert again.config == sampled.config and changes(again.process) == changes(sampled.process)
    assert again.sample(3).equal(sampled.sample(3))
    for name, tensor in model.process.state().items():
        assert tensor.equal(again.process.state()[name])
    card = (tmp_path / "README.md").read_text()
    assert model.process.title in card and model.process.grown in card and model.process.sampling_words()
    assert ("blurred copies of the training images" in card) == isinstance(model.process, FromImages)
    assert not (model.process.title == "denoising diffusion" and "blur" in card)


def test_training_goes_on_exactly(config, tiny_images, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert Trainer(config, tiny_images, whole).train()
    assert Trainer(config.with_settings(["trainer.steps=3"]), tiny_images, parts).train()
    assert Trainer(config, tiny_images, parts).train()
    one, other = (Model.from_pretrained(run / "model") for run in (whole, parts))
    assert all(a.equal(b) for a, b in zip(one.network.parameters(), other.network.parameters()))
    assert one.sample(2).equal(other.sample(2))


def test_a_wrong_state_is_refused(model):
    config, state = model.config, model.process.state()
    build = type(model.process).from_state
    with pytest.raises(ValueError, match="not expected"):
        build(config.process, config.sampling, config.domain, state | {"something": torch.zeros(1)})
    for name in state:
        with pytest.raises(ValueError, match=name):
            build(config.process, config.sampling, config.domain, {n: t for n, t in state.items() if n != name})
        with pytest.raises(ValueError, match=f"{name} has values that are not numbers"):
            build(config.process, config.sampling, config.domain, state | {name: torch.nan * state[name]})


def test_what_it_does_not_have_is_refused_with_what_it_has(model, config):
    known = [f.name for f in dataclasses.fields(model.process.sampling)]
    with pytest.raises(UsageError, match=f"unknown setting 'sampling.flavour'.* has: {', '.join(known)}"):
        model.sample(1, flavour=1)
    with pytest.raises(UsageError, match=r"at most 10 steps|10 in all"):
        model.sample(1, steps=11)
    with pytest.raises(UsageError, match=r"unknown setting .process.flavour.* has: K"):
        config.with_settings(["process.flavour=1"])
    with pytest.raises(UsageError, match="levels 0 to 10"):
        next(model.path(torch.zeros(1, 1, 8, 8), lambda k: torch.zeros(1, 1, 8, 8), level=11))


def test_what_it_cannot_do_is_refused_in_words(model, tiny_images):
    process = model.process
    if isinstance(process, Bounded):
        found = evaluation.likelihood(model, tiny_images.held_out, tiny_images.train)
        assert all(bool(bound.total.isfinite().all()) for bound in found.bounds)
    else:
        with pytest.raises(UsageError, match=f"{process.title} has no likelihood"):
            evaluation.likelihood(model, tiny_images.held_out)
    image = torch.rand(1, 8, 8)
    if isinstance(process, Restoring):
        assert model.restore(image, n=2).images.shape == (2, 1, 8, 8)
    else:
        with pytest.raises(UsageError, match=f"{process.title} cannot restore"):
            model.restore(image)


def test_every_setting_is_described(kind):
    process = PROCESSES[kind]
    for settings in (process.Settings(), process.Sampling()):
        assert all(f.metadata["about"] for f in dataclasses.fields(settings))
    assert process.title and process.summary(process.Settings(), process.Sampling(), ImageDomain((1, 8, 8)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@refined
def test_recorded_steps_are_plain_ones(model, way):
    model = model.cuda().sampled(**changes(exact(model.process, steps=6, **way)))
    plain, recorded = (model.sample(4, execution=Execution(compiled=compiled)) for compiled in (False, True))
    torch.testing.assert_close(plain, recorded, atol=1e-4, rtol=0)


def test_a_chain_by_hand_is_that_of_the_model(model):
    """The engine adds nothing to the mathematics, and its copy of the network is the network but for rounding.

    Steps of a random network multiply that rounding, differently on each processor: so they are taken with the copy.
    """
    noise = SeededNoise(5, torch.arange(3), model.config.shape)
    u_K, k = model.process.start(noise), torch.full((3,), model.process.K)
    network = Frozen(model.network)
    with torch.no_grad():
        torch.testing.assert_close(network(u_K, k), model.network(u_K, k), atol=1e-6, rtol=0)
    expected = sample(model.process, network, u_K, noise).clamp(0, 1)
    torch.testing.assert_close(model.sample(3, seed=5), expected, atol=1e-6, rtol=0)
