"""The fast path on a GPU against the plain one: recorded or not, with kernels or without. Skipped without a GPU."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from archives import write_crosses
from safetensors.torch import load_file

from ihdm import checkpoint, evaluation, memory, width_reader
from ihdm.app.film import Film
from ihdm.app.studio import Studio
from ihdm.config import DataConfig, load_config
from ihdm.data import load_images
from ihdm.engine import Frozen, placed, recorded
from ihdm.errors import IhdmError
from ihdm.execution import Execution
from ihdm.familiar import Familiar
from ihdm.held_out import by_band
from ihdm.judgement import calibrate
from ihdm.labels import Labels
from ihdm.metrics.distances import Reference, frechet_distance, kernel_distance
from ihdm.metrics.neighbours import nearest
from ihdm.model import Model
from ihdm.model_folder import ModelConfig
from ihdm.networks import build_network
from ihdm.networks.layers import _attended
from ihdm.noise import BranchingNoise, SeededNoise
from ihdm.pixels import to_unit
from ihdm.sampler import chain, last, reverse_step, sample
from ihdm.studies.strangers import GAUSSIAN, by_pillow
from ihdm.trainer import Trainer
from ihdm.width_reader import Examples, WidthReader

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
GPU = torch.device("cuda")
PLAIN = Execution(compiled=False)


@pytest.fixture(autouse=True)
def exact_float32():
    before, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.fixture
def config(tiny_config):
    """A ramp, clipping and averaging that matter within a few steps; two steps come before the recording."""
    return tiny_config.with_settings(
        [
            "trainer.steps=8",
            "trainer.warmup=20",
            "trainer.clip=0.001",
            "trainer.ema=0.8",
            "trainer.checkpoint_every=4",
            "trainer.sample_every=8",
            "data.flip=true",
            "engine.device=cuda",
        ]
    )


def assert_near(found, expected, otherwise):
    """Nearer to what is expected than a fifth of what would change otherwise, as without a network."""
    found, expected, otherwise = (tensor.float().cpu() for tensor in (found, expected, otherwise))
    assert (found - expected).norm() < 0.2 * (otherwise - expected).norm()


def trained(config, images, run, *settings) -> tuple[Trainer, list[float], list[float]]:
    """A trainer after all its steps, with their losses and gradient norms."""
    config = config.with_settings(settings)
    trainer = Trainer(config, images, run)
    assert trainer.device.type == "cuda"
    facts = []
    while trainer.step < config.trainer.steps:
        facts.append([float(fact) for fact in trainer.train_step()])
        trainer.step += 1
    losses, norms = zip(*facts)
    return trainer, list(losses), list(norms)


def weights(trainer: Trainer) -> list[torch.Tensor]:
    return [*trainer.training.optimizer.network.parameters(), *trainer.training.average.parameters()]


@pytest.mark.parametrize("dropout", [0, 0.3])
def test_recorded_training_is_training_in_float32(config, tiny_images, tmp_path, dropout):
    settings = ["engine.precision=float32", f"network.dropout={dropout}"]
    plain, *facts = trained(config, tiny_images, tmp_path / "plain", *settings, "engine.compile=false")
    replayed, *replayed_facts = trained(config, tiny_images, tmp_path / "recorded", *settings)
    for found, expected in zip(replayed_facts, facts):
        torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-4, atol=1e-6)
    assert all(norm > 0.001 for norm in facts[1])  # clipping was at work
    for found, expected in zip(weights(replayed), weights(plain)):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-5)


def test_training_with_kernels_is_training_up_to_rounding(config, tiny_images, tmp_path):
    settings = ["network.dropout=0", "network.channels=32"]
    _, *exact = trained(config, tiny_images, tmp_path / "exact", *settings, "engine.precision=float32")
    for name, compiled in (("kernels", "true"), ("plain", "false")):
        setting = f"engine.compile={compiled}"
        _, *found = trained(config, tiny_images, tmp_path / name, *settings, "engine.precision=bf16", setting)
        torch.testing.assert_close(torch.tensor(found[0]), torch.tensor(exact[0]), rtol=1e-3, atol=0)  # losses
        torch.testing.assert_close(torch.tensor(found[1]), torch.tensor(exact[1]), rtol=0.03, atol=0)  # norms


@pytest.mark.parametrize("setting", ["trainer.accumulate=2", "engine.checkpoint=true"])
def test_batches_in_parts_and_checkpointing_with_kernels(config, tiny_images, tmp_path, setting):
    common = [setting, "network.dropout=0", "network.channels=32", "engine.precision=bf16"]
    _, *expected = trained(config, tiny_images, tmp_path / "plain", *common, "engine.compile=false")
    _, *found = trained(config, tiny_images, tmp_path / "kernels", *common)
    for one, other in zip(found, expected):
        torch.testing.assert_close(torch.tensor(one), torch.tensor(other), rtol=0.03, atol=0)


def test_training_again_after_stopping_goes_on_with_the_recording(config, tiny_images, tmp_path):
    whole = Trainer(config, tiny_images, tmp_path / "whole")
    whole.train()
    trainer = Trainer(config, tiny_images, tmp_path / "part")
    trainer.config = config.with_settings(["trainer.steps=4"])  # where to stop, and nothing else
    trainer.train()
    assert trainer.step == 4
    trainer.config = config
    trainer.train()
    for found, expected in zip(weights(trainer), weights(whole)):
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-3)


def test_a_resumed_run_takes_the_same_steps(config, tiny_images, tmp_path):
    runs = {"whole": [8], "part": [4, 8]}
    for name, stops in runs.items():
        for stop in stops:
            Trainer(config.with_settings([f"trainer.steps={stop}"]), tiny_images, tmp_path / name).train()
    last = [checkpoint.saved(tmp_path / name / "checkpoints")[-1] for name in runs]
    for name in ("network", "average"):
        one, two = (load_file(path / f"{name}.safetensors") for path in last)
        for key in one:
            torch.testing.assert_close(one[key], two[key], rtol=1e-2, atol=1e-3)


@pytest.fixture(params=[torch.float32, torch.bfloat16])
def precision(request):
    return request.param


@pytest.fixture
def model(tiny_config, tiny_images) -> Model:
    torch.manual_seed(0)
    return on_gpu(tiny_config.with_settings(["network.channels=32"]), tiny_images)


def on_gpu(config, images) -> Model:
    """A model with random weights."""
    model = Model.from_images(ModelConfig.of(config, images.shape, labels=images.labels), images.train)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.1)
    return placed(model.eval(), GPU)


@pytest.fixture
def baseline(tiny_config, tiny_images) -> Model:
    torch.manual_seed(0)
    return on_gpu(tiny_config.with_settings(["process.kind=ddpm", "network.channels=32"]), tiny_images)


TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.03}  # of what the network contributes


def test_a_recorded_step_is_the_step_of_the_plain_network(model, precision):
    numbers = torch.arange(6, device=GPU)
    noise = SeededNoise(0, numbers, model.config.shape)
    replayed = recorded(reverse_step(model.process, Frozen(model.network, precision), noise), GPU)
    plain, nothing = (
        reverse_step(model.process, network, noise)
        for network in (Frozen(model.network, fused=False), lambda u, k: torch.zeros_like(u))
    )
    u = torch.rand(6, *model.config.shape, device=GPU)
    with torch.no_grad():
        for k in (9, 7, 5, 3, 1):
            levels = [torch.full((), level, device=GPU) for level in (k, k - 1, min(k + 1, 10))]
            found, expected, without = (step(u, *levels, None) for step in (replayed, plain, nothing))
            assert (found - expected).norm() < TOLERANCE[precision] * (expected - without).norm()


def test_samples_on_a_gpu_are_those_on_a_cpu_and_do_not_depend_on_the_batch(model, precision):
    images = model.sample(7, seed=3, execution=Execution(precision))
    others = [
        model.sample(7, seed=3, execution=Execution(precision, batch_size=3)),
        model.sample(7, seed=3, execution=Execution(precision, compiled=False)),
        placed(model, torch.device("cpu")).sample(7, seed=3),
    ]
    for other in others:
        torch.testing.assert_close(other, images, rtol=0, atol=1e-4 if precision == torch.float32 else 0.03)


def test_the_batch_is_limited_by_memory(model, monkeypatch):
    runner = model.runner(Execution(torch.bfloat16))
    needed = runner._needed()
    monkeypatch.setattr(memory, "free_bytes", lambda device: (needed(10) + 1) / memory.SHARE)
    assert runner.size(1000) == 10


def test_the_bound_on_a_gpu_is_that_on_a_cpu(model, tiny_images, precision):
    images = tiny_images.train[:20]
    execution, tolerance = Execution(precision, batch_size=6), 1e-3 if precision == torch.float32 else 0.1
    found = evaluation.likelihood(model, images, execution=execution, delta_ratio=[1.25]).bounds
    expected = evaluation.likelihood(placed(model, torch.device("cpu")), images, delta_ratio=[1.25]).bounds
    assert [bound.row for bound in found] == [bound.row for bound in expected] and len(found) == 4
    for one, other in zip(found, expected):  # the paper's, and those of exact steps
        torch.testing.assert_close(one.L_K, other.L_K, rtol=1e-5, atol=0)
        torch.testing.assert_close(one.chain, other.chain, rtol=tolerance, atol=0)
        torch.testing.assert_close(one.L_0, other.L_0, rtol=tolerance, atol=0)


def test_other_noise_and_the_baseline_are_recorded_too(model, baseline, tiny_images):
    noise = BranchingNoise(0, torch.tensor([7, 3], device=GPU), model.config.shape)
    u_K = model.start(torch.zeros(4, dtype=torch.long, device=GPU))
    found, expected = (last(model.path(u_K, noise, execution=execution)) for execution in (Execution(), PLAIN))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)
    images = [baseline.sample(5, execution=execution) for execution in (Execution(), PLAIN)]
    torch.testing.assert_close(*images, rtol=0, atol=1e-3)
    bounds = [evaluation.likelihood(baseline, tiny_images.train, execution=e).bounds[0] for e in (Execution(), PLAIN)]
    torch.testing.assert_close(bounds[0].total, bounds[1].total, rtol=1e-3, atol=0)


@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize(("name", "sampling"), [("model", {"sampler": "exact"}), ("baseline", {})])
def test_recorded_exact_steps_are_the_plain_ones(request, name, sampling, corrected, eta):
    """Of second order, which take the prediction of the step before along, and fewer than there are levels."""
    one = request.getfixturevalue(name)
    options = {**sampling, "order": 2, "corrected": corrected, "eta": eta, "steps": 6}
    process = one.process.with_sampling(**options)
    assert process.remembers and len(process.levels()) == 7 < one.process.K + 1
    found, plain = (one.sample(7, seed=3, execution=e, **options) for e in (Execution(batch_size=3), PLAIN))
    torch.testing.assert_close(found, plain, rtol=0, atol=1e-3)
    paths = [dict(one.trajectory(4, execution=e, **options)) for e in (Execution(), PLAIN)]
    assert list(paths[0]) == list(paths[1]) == process.levels()
    for k, state in paths[0].items():  # also of the steps that run before the recording, and the first after it
        torch.testing.assert_close(state, paths[1][k], rtol=0, atol=1e-3)
    first_order = one.sample(7, seed=3, execution=PLAIN, **{**options, "order": 1})
    assert not torch.allclose(first_order, plain, atol=1e-3)  # else nothing was compared
    on_cpu = placed(one, torch.device("cpu")).sample(7, seed=3, **options)
    torch.testing.assert_close(found, on_cpu, rtol=0, atol=2e-3)


class Told(torch.nn.Module):
    """A network that is told of each image what it should be."""

    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, u, k, condition=None):
        assert condition is not None
        return self.mix(u) * 0.01 + condition.to(u.dtype)[:, :, None, None] * k.to(u.dtype).view(-1, 1, 1, 1)


@pytest.mark.parametrize(("name", "scale"), [("model", 2.0), ("baseline", 0.02)])
def test_a_condition_arrives_through_recorded_steps(request, name, scale, precision):
    """In every replay its own, for a network that is no U-Net and has no kernels."""
    one = request.getfixturevalue(name)
    torch.manual_seed(0)
    model = Model(one.config, one.process, Told().to(GPU).eval())
    condition = torch.linspace(-scale, scale, 7)[:, None]  # for 7 images, in batches of 3, 3 and 1
    options = {"seed": 3, "condition": condition}
    found = model.sample(7, execution=Execution(precision, batch_size=3), **options)
    plain = model.sample(7, execution=Execution(precision, compiled=False), **options)
    tolerance = 1e-4 if precision == torch.float32 else 0.03
    torch.testing.assert_close(found, plain, rtol=0, atol=tolerance)
    other = model.sample(7, seed=3, condition=-condition, execution=Execution(precision, compiled=False))
    assert (other - plain).abs().amax((1, 2, 3))[[0, 1, 5, 6]].min() > 0.05  # it does matter

    numbers = torch.arange(3, device=GPU)
    noise, process = SeededNoise(0, numbers, model.config.shape), model.process
    network = Frozen(model.network, precision)
    replayed = recorded(reverse_step(process, network, noise), GPU)
    u_K = model.start(numbers)
    for rows in (condition[:3], condition[3:6], condition[4:]):  # one recording serves all
        told = rows.to(GPU)
        one_way = last(chain(process, replayed, u_K, process.levels(), told))
        torch.testing.assert_close(one_way, sample(process, network, u_K, noise, told), rtol=0, atol=tolerance)


def test_the_baseline_trains_recorded_as_plain(config, tiny_images, tmp_path):
    settings = ["process.kind=ddpm", "engine.precision=float32", "network.dropout=0"]
    _, *facts = trained(config, tiny_images, tmp_path / "plain", *settings, "engine.compile=false")
    _, *replayed = trained(config, tiny_images, tmp_path / "recorded", *settings)
    torch.testing.assert_close(torch.tensor(replayed), torch.tensor(facts), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("consistent", [True, False])
def test_restoring_is_recorded_too(model, tiny_images, consistent):
    """Whether the steps are recorded or not, and on the GPU as on the CPU, from a level in between."""
    blurred = model.process.laplacian.dissipate(to_unit(tiny_images.train[:1]), 1.0)[0]
    options = {"n": 5, "blur_width": 1.4, "consistent": consistent}
    found, plain = (model.restore(blurred, execution=e, **options).images.cpu() for e in (Execution(), PLAIN))
    torch.testing.assert_close(found, plain, rtol=0, atol=2e-3)
    on_cpu = placed(model, torch.device("cpu")).restore(blurred, **options).images
    torch.testing.assert_close(found, on_cpu, rtol=0, atol=2e-3)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_feeds_the_gpu_and_goes_on(config, tmp_path, workers):
    write_crosses(tmp_path / "set", archives=3, images=30)
    config = replace(config, data=DataConfig(str(tmp_path / "set"), stream=True, buffer=32, workers=workers))
    images = load_images(config.data, lazy=True)
    whole, part = (Trainer(config, images, tmp_path / name) for name in ("whole", "part"))
    whole.train()
    part.config = config.with_settings(["trainer.steps=4"])
    part.train()
    part.config = config
    part.train()
    for found, expected in zip(weights(part), weights(whole)):
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-3)


PLAIN_FLOAT32 = ("engine.precision=float32", "engine.compile=false")
PYRAMID = "network.pyramid=5"  # of ten levels: of a batch of 16, eight images are seen at half the size


@pytest.mark.parametrize("accumulate", [1, 2])
def test_recorded_training_with_a_pyramid_is_training(config, tiny_images, tmp_path, accumulate):
    """In float32 up to rounding; with kernels, which get vectors for the images of each depth, up to bfloat16's."""
    common = [PYRAMID, "network.dropout=0", "network.channels=32", "trainer.batch_size=16"]
    common += [f"trainer.accumulate={accumulate}"]
    plain, *exact = trained(config, tiny_images, tmp_path / "plain", *common, *PLAIN_FLOAT32)
    replayed, *found = trained(config, tiny_images, tmp_path / "recorded", *common, "engine.precision=float32")
    torch.testing.assert_close(torch.tensor(found), torch.tensor(exact), rtol=1e-4, atol=1e-6)
    for one, other in zip(weights(replayed), weights(plain)):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-5)
    _, *fused = trained(config, tiny_images, tmp_path / "kernels", *common, "engine.precision=bf16")
    torch.testing.assert_close(torch.tensor(fused[0]), torch.tensor(exact[0]), rtol=3e-3, atol=0)  # losses
    torch.testing.assert_close(torch.tensor(fused[1]), torch.tensor(exact[1]), rtol=0.03, atol=0)  # norms
    without, *_ = trained(config, tiny_images, tmp_path / "without", *common, "network.pyramid=none")
    assert len(weights(without)) < len(weights(plain))  # else nothing was compared


@pytest.fixture
def pyramid(tiny_config, tiny_images) -> Model:
    torch.manual_seed(0)
    return on_gpu(tiny_config.with_settings(["network.channels=32", PYRAMID]), tiny_images)


@pytest.mark.parametrize("options", [{}, {"sampler": "exact", "order": 2, "eta": 0.5, "steps": 9}])
def test_recorded_sampling_with_a_pyramid_has_each_depth(pyramid, precision, options):
    """In batches, so that every recording is replayed after the others; and on the CPU."""
    found = pyramid.sample(9, seed=3, execution=Execution(precision, batch_size=3), **options)
    plain = pyramid.sample(9, seed=3, execution=Execution(precision, compiled=False), **options)
    tolerance = 1e-3 if precision == torch.float32 else 0.03
    torch.testing.assert_close(found, plain, rtol=0, atol=tolerance)
    on_cpu = placed(pyramid, torch.device("cpu")).sample(9, seed=3, **options)
    torch.testing.assert_close(found, on_cpu, rtol=0, atol=2 * tolerance)


@pytest.mark.parametrize("levels", [None, 4])
def test_bounds_with_a_pyramid_of_one_level_or_of_several(pyramid, tiny_images, levels):
    """Levels that all images share are recorded, by depth; those of their own are not."""
    bounds = [
        evaluation.likelihood(pyramid, tiny_images.train[:20], levels=levels, execution=e).bounds[0].total
        for e in (Execution(batch_size=7), PLAIN)
    ]
    torch.testing.assert_close(*bounds, rtol=1e-3, atol=0)


@pytest.fixture
def labelled(tiny_images):
    """The same images, each with one of three labels."""
    numbers = [torch.arange(len(images)) % 3 for images in (tiny_images.train, tiny_images.held_out)]
    return replace(
        tiny_images,
        labels=Labels(("a", "b", "c"), tuple(torch.bincount(numbers[0]).tolist())),
        train_labels=numbers[0],
        held_out_labels=numbers[1],
    )


@pytest.mark.parametrize("settings", [(), ("trainer.accumulate=2",), (PYRAMID, "trainer.batch_size=16")])
def test_recorded_training_with_labels_is_training(config, labelled, tmp_path, settings):
    """Each replay is told the labels of its own images, and drops others; in float32, and with kernels."""
    common = [*settings, "network.dropout=0", "network.channels=32", "trainer.drop_labels=0.3"]
    plain, *exact = trained(config, labelled, tmp_path / "plain", *common, *PLAIN_FLOAT32)
    replayed, *found = trained(config, labelled, tmp_path / "recorded", *common, "engine.precision=float32")
    torch.testing.assert_close(torch.tensor(found), torch.tensor(exact), rtol=1e-4, atol=1e-6)
    for one, other in zip(weights(replayed), weights(plain)):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-5)
    _, *fused = trained(config, labelled, tmp_path / "kernels", *common, "engine.precision=bf16")
    torch.testing.assert_close(torch.tensor(fused[0]), torch.tensor(exact[0]), rtol=3e-3, atol=0)  # losses
    torch.testing.assert_close(torch.tensor(fused[1]), torch.tensor(exact[1]), rtol=0.03, atol=0)  # norms
    others = replace(labelled, train_labels=labelled.train_labels.flip(0))
    mistold, *_ = trained(config, others, tmp_path / "others", *common, *PLAIN_FLOAT32)
    moved = [network.training.optimizer.network.embed_label.weight for network in (plain, mistold)]
    assert not torch.allclose(*moved, rtol=0, atol=1e-4)  # else nothing was compared
    assert abs(replayed.held_out_loss() / plain.held_out_loss() - 1) < 1e-3


@pytest.mark.parametrize("options", [{}, {"sampler": "exact", "order": 2, "eta": 0.5, "steps": 9}])
@pytest.mark.parametrize("pyramid", ["none", "5"])
def test_recorded_sampling_away_from_a_weaker_network_is_the_plain_one(
    tiny_config, tiny_images, precision, options, pyramid
):
    """Two networks in one recording, of which only one may see small grids."""
    torch.manual_seed(0)
    model = on_gpu(tiny_config.with_settings(["network.channels=32", f"network.pyramid={pyramid}"]), tiny_images)
    guided = model.guided_by(on_gpu(tiny_config.with_settings(["network.channels=32"]), tiny_images), 2.0)
    asked, tolerance = {"seed": 3, **options}, 1e-3 if precision == torch.float32 else 0.05
    found = guided.sample(9, execution=Execution(precision, batch_size=3), **asked)
    plain = guided.sample(9, execution=Execution(precision, compiled=False), **asked)
    torch.testing.assert_close(found, plain, rtol=0, atol=tolerance)
    assert not found.allclose(model.sample(9, execution=PLAIN, **asked), atol=2e-3)  # it does matter
    on_cpu = placed(guided, torch.device("cpu")).sample(9, **asked)
    torch.testing.assert_close(found, on_cpu, rtol=0, atol=2 * tolerance)


@pytest.mark.parametrize("options", [{}, {"sampler": "exact", "order": 2, "eta": 0.5, "steps": 9}])
@pytest.mark.parametrize("pyramid", ["none", "5"])
def test_recorded_guided_sampling_is_the_plain_one(tiny_config, labelled, precision, options, pyramid):
    """In batches that are told other labels than the one that was recorded; and on the CPU."""
    torch.manual_seed(0)
    model = on_gpu(tiny_config.with_settings(["network.channels=32", f"network.pyramid={pyramid}"]), labelled)
    tolerance = 1e-3 if precision == torch.float32 else 0.05
    for guidance in (0.0, 1.0, 2.0):
        asked = {"seed": 3, "labels": torch.arange(9) // 3, "guidance": guidance, **options}
        found = model.sample(9, execution=Execution(precision, batch_size=3), **asked)
        plain = model.sample(9, execution=Execution(precision, compiled=False), **asked)
        torch.testing.assert_close(found, plain, rtol=0, atol=tolerance)
        others = [model.sample(9, execution=PLAIN, **asked | {"labels": label}) for label in ("a", "b")]
        assert torch.allclose(*others, atol=2e-3) == (guidance == 0)  # it does matter
    on_cpu = placed(model, torch.device("cpu")).sample(9, **asked)
    torch.testing.assert_close(found, on_cpu, rtol=0, atol=2 * tolerance)


def _other_data(name, folder):
    """A preset of other data than images, made small, and a few to learn from."""
    generator = np.random.default_rng(0)
    common = ["data.labels=false", "network.dropout=0", "process.K=10", "trainer.batch_size=8", "engine.device=cuda"]
    if name.startswith("drums"):
        np.save(folder / "data.npy", generator.uniform(-0.5, 0.5, (24, 64)).astype(np.float32))
        own = [f"data.source={folder / 'data.npy'}", "data.size=64", "network.multipliers=1,2", "network.attention=1"]
        own += [PYRAMID] if "pyramid" in name else []
    elif name == "orbitals":
        own = ["data.size=8", "network.multipliers=1,2", "network.attention=1", "network.pyramid=none"]
    else:
        ring = np.stack([np.arange(20), (np.arange(20) + 1) % 20], 1)
        np.savez(folder / "data.npz", train=generator.random((24, 20)), edges=ring)
        own = [f"data.source={folder / 'data.npz'}"]
    steps = ["trainer.steps=8", "trainer.warmup=2", "trainer.ema=0.8"]
    config = load_config(name.split()[0], [*common, *own, *steps])
    return config, load_images(config.data)


@pytest.mark.parametrize("name", ["drums", "drums in a pyramid", "orbitals", "globe"])
def test_recorded_training_on_other_data_is_training(name, tmp_path):
    """A row of samples, a volume and a graph; then samples, on the CPU as well."""
    config, images = _other_data(name, tmp_path)
    plain, *exact = trained(config, images, tmp_path / "plain", *PLAIN_FLOAT32)
    replayed, *found = trained(config, images, tmp_path / "recorded", "engine.precision=float32")
    torch.testing.assert_close(torch.tensor(found), torch.tensor(exact), rtol=1e-3, atol=1e-6)
    for one, other in zip(weights(replayed), weights(plain)):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    _, *lower = trained(config, images, tmp_path / "lower", "engine.precision=bf16")
    torch.testing.assert_close(torch.tensor(lower[0]), torch.tensor(exact[0]), rtol=0.02, atol=0)  # losses
    model = plain.trained_model()
    samples = model.sample(3, execution=Execution(torch.float32))
    assert samples.shape == (3, *images.domain.shape) and samples.std() > 0
    torch.testing.assert_close(samples, model.cpu().sample(3), rtol=0, atol=1e-3)


@pytest.mark.parametrize("pixels", [16, 64, 192])
def test_attention_has_finite_gradients_if_all_products_are_far_below_zero(pixels):
    """Where cuDNN's kernel has none, with 64 pixels more than a multiple of 128."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(4, pixels, 256, device="cuda").bfloat16() * scale for scale in (0.1, 0.1, 1.0))
    q[..., 0], k[..., 0] = 1.0, -120.0 * 16
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    given = [x.requires_grad_() for x in (q, k, v)]
    for inputs in (given, exact):
        _attended(*inputs).square().sum().backward()
    for one, other in zip(given, exact):
        found, expected = one.grad[..., 1:].double(), other.grad[..., 1:]  # the first has lost its digits
        assert one.grad.isfinite().all() and float((found - expected).norm() / expected.norm()) < 0.1


@pytest.mark.parametrize("name", ["drums", "drums in a pyramid"])
def test_samples_are_measured_while_training(name, tmp_path):
    config, images = _other_data(name, tmp_path)
    settings = ["trainer.measure_every=4", "trainer.measured=24", "trainer.sample_every=8", "trainer.samples=2"]
    Trainer(config.with_settings(settings), images, tmp_path / "run").train()
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in log if row.get("modes", 0) > 0] == [4, 8]
    assert all(row["gpu_memory_gb"] >= 0 for row in log if "loss" in row)


@pytest.mark.parametrize("pyramid", ["none", "5"])
def test_held_out_losses_are_computed_in_parts(config, labelled, tmp_path, pyramid):
    """Eight images, three at a time, each told its label: with kernels and without."""
    common = ["trainer.accumulate=3", "network.dropout=0", "network.channels=32", f"network.pyramid={pyramid}"]
    common += ["trainer.batch_size=12", "trainer.steps=6"]
    plain, *_ = trained(config, labelled, tmp_path / "plain", *common, *PLAIN_FLOAT32)
    losses, levels = plain._held_out_losses()
    assert plain.training.part == 4 and losses.shape == levels.shape == (8,)
    for parameter in plain.training.average.parameters():
        parameter.copy_(torch.randn_like(parameter) * 0.1)
    losses, _ = plain._held_out_losses()
    plain.training.part = 3
    torch.testing.assert_close(plain._held_out_losses()[0], losses, rtol=1e-4, atol=0)
    plain.precision, plain.config = torch.bfloat16, config.with_settings([*common, "engine.compile=true"])
    found, _ = plain._held_out_losses()
    for parameter in plain.training.average.parameters():
        parameter.zero_()
    assert_near(found, losses, plain._held_out_losses()[0])
    bands = {f"held_out_loss_levels_{band}" for band in ("1_2", "3_5", "6_7", "8_10")}
    assert set(by_band(losses, levels, 10)) <= bands


@pytest.mark.parametrize("kept", [torch.float16, torch.bfloat16])
def test_kernels_take_weights_that_are_kept_in_half_precision(model, kept):
    lower = Model(model.config, model.process, placed(copy.deepcopy(model.network).to(kept), GPU))
    found = lower.sample(4, seed=3, execution=Execution(torch.bfloat16))
    expected = model.sample(4, seed=3, execution=PLAIN)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.zero_()
    assert_near(found, expected, model.sample(4, seed=3, execution=PLAIN))


def test_a_weaker_network_is_told_the_labels_too(tiny_config, labelled, precision):
    torch.manual_seed(0)
    config = tiny_config.with_settings(["network.channels=32"])
    model, weaker = on_gpu(config, labelled), on_gpu(config, labelled)
    table = weaker.network.embed_label.weight.requires_grad_(False).normal_(std=3)
    asked = {"n": 9, "seed": 3, "labels": torch.arange(9) // 3}
    guided = model.guided_by(weaker, 2.0)
    found = guided.sample(execution=Execution(precision, batch_size=3), **asked)
    expected = guided.sample(execution=PLAIN, **asked)
    table.copy_(table.roll(1, 0))
    assert_near(found, expected, model.guided_by(weaker, 2.0).sample(execution=PLAIN, **asked))


@pytest.fixture(scope="module")
def calibrated() -> Model:
    return Model.from_pretrained("mnist-ready")


def test_a_blur_is_found_and_judged_as_on_a_cpu(calibrated):
    """By the reader of widths, by search where the reader is left out, and by what the model knows."""
    image = by_pillow(next(calibrated.sample_batches(1, seed=4))[0], 2.5)
    found = []
    for device in ("cpu", "cuda"):
        restorer = placed(calibrated, torch.device(device)).restorer(Execution())
        judge = restorer.judge()
        assert judge.device.type == device == next(judge.reader.parameters()).device.type
        seen, searched = restorer.settled(image), replace(judge, reader=None).observe(image.double())
        found.append([seen.width, searched.width, restorer.verdict(seen).share, restorer.verdict(searched).share])
        assert not restorer.verdict(seen).unusual and seen.interval and seen.kind == "three boxes"
    torch.testing.assert_close(*map(torch.tensor, found), rtol=0.01, atol=0.02)
    lower = calibrated.restorer(Execution(torch.bfloat16))
    seen = lower.settled(image)
    assert abs(seen.width / found[0][0] - 1) < 0.01 and not lower.verdict(seen).unusual
    assert seen.residual(lower.restore(image, n=4).images) < 0.01


def test_a_model_is_calibrated_with_the_features_of_a_cpu(calibrated):
    images, features = torch.cat(list(calibrated.sample_batches(12, seed=6))), []
    for device in ("cpu", "cuda"):
        judge = placed(calibrated, torch.device(device)).restorer().judge()
        seen = [judge.known(by_pillow(image, 2.0).double(), 2.0) for image in images[:2]]
        features.append(judge.features(*(replace(one, spectrum=seen[0].spectrum) for one in seen)))
    torch.testing.assert_close(*features, rtol=0.01, atol=1e-3)
    found = calibrate(judge, images, [by_pillow])
    assert Familiar.of(found.tensors()).quantiles.isfinite().all()


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_a_reader_of_widths_learns_on_a_gpu(calibrated, precision):
    process, images = calibrated.process, torch.cat(list(calibrated.sample_batches(8, seed=6)))
    examples = Examples(images, GAUSSIAN, [by_pillow])
    reader = width_reader.trained(process, examples, 1, range(3), count=3, device=GPU, precision=precision)
    some = examples.draw(8, torch.Generator().manual_seed(1))
    reader = width_reader.scaled(reader, process, some)
    kept = WidthReader.of(reader.tensors(), (1, 28, 28))
    assert next(kept.parameters()).device.type == "cpu"
    seen = width_reader.filtered(process, some.y, some.width)
    answers = [one(seen.to(device), some.width.float().to(device))[0] for one, device in ((reader, GPU), (kept, "cpu"))]
    torch.testing.assert_close(answers[0].cpu(), answers[1], rtol=0.05, atol=1e-3)


def test_the_page_computes_on_a_gpu_what_it_does_on_a_cpu(tiny_config, labelled):
    torch.manual_seed(0)
    config = tiny_config.with_settings(["network.channels=32"])
    model = on_gpu(config, labelled).guided_by(on_gpu(config, labelled), 2.0)
    states = []
    for device in (GPU, torch.device("cpu")):
        studio = Studio(placed(model, device))
        picked = studio.starts(0.5, 2)
        seen = studio.restorer.observation(to_unit(labelled.train[0]), 1.4)
        growths = [
            studio.grow(2, 5),
            studio.grow(2, 5, "b", 1.5, sampler="exact", steps=4, order=2, eta=0.5),
            studio.matrix(picked, [3, 4]),
            studio.between(5, 6, 3),
            studio.restore(seen, 2, 5),
        ]
        films = []
        for growth in growths:
            films.append(Film(growth.levels, exact=True))
            for k, u in growth:
                films[-1].add(k, u)
        assert all(film.levels == growth.levels for film, growth in zip(films, growths))
        future = Film((growth := studio.futures(films[0].states[5][:1], 5, 2, 5, 7)).levels, exact=True)
        for k, u in growth:
            future.add(k, u)
        assert studio.blurred(5, 4).shape == (1, 8, 8)
        states.append([film.last for film in [*films, films[0].only(0).then(future)]])
    for one, other in zip(*states):
        assert one.device.type == "cpu"
        torch.testing.assert_close(one.clamp(0, 1), other.clamp(0, 1), rtol=0, atol=5e-3)


def test_distances_on_a_gpu_are_those_on_a_cpu(model, tiny_images, generator):
    one, other = (torch.randn(300, 16, generator=generator) for _ in range(2))
    for distance in (frechet_distance, lambda x, y, d: kernel_distance(x, y, 0, d)[0]):
        values = [distance(one, Reference.from_features(other + 1, d), d) for d in (GPU, torch.device("cpu"))]
        assert abs(values[0] / values[1] - 1) < 1e-4
    near = [nearest(one, other, 3, device) for device in (GPU, torch.device("cpu"))]
    assert near[0].index.equal(near[1].index) and near[0].distance.equal(near[1].distance)
    options = {"n": 12, "metrics": ["spectrum", "neighbours"]}
    found = evaluation.evaluate(model, tiny_images, None, **options, execution=Execution())
    expected = evaluation.evaluate(placed(model, torch.device("cpu")), tiny_images, None, **options)
    assert abs(found.spectral_distance / expected.spectral_distance - 1) < 0.01


def test_too_large_a_batch_is_refused_with_advice(config, model, tiny_images, tmp_path, monkeypatch):
    def taken(advice) -> str:
        with pytest.raises(IhdmError) as refused, advice:
            torch.empty(2**50, dtype=torch.uint8, device=GPU)
        return str(refused.value)

    assert "(--batch-size 32)" in taken(model.runner(Execution(torch.bfloat16)).advice(64))
    trainer = Trainer(config, tiny_images, tmp_path)
    build = partial(build_network, trainer.model.config)
    needed = memory.to_train(build, trainer.model.config.shape, 3, trainer.precision)
    monkeypatch.setattr(memory, "all_bytes", lambda device: (needed + 1) / memory.SHARE)
    assert "3 should fit, with --set trainer.accumulate=3" in taken(memory.advice(trainer.training.smaller_parts))
