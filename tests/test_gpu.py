"""The fast path on a GPU against the plain one: recorded or not, with kernels or without. Skipped without a GPU."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from ihdm import checkpoint
from ihdm.engine import inference, placed, recorded
from ihdm.model import Model
from ihdm.model_folder import ModelConfig
from ihdm.noise import SeededNoise
from ihdm.sampler import reverse_step
from ihdm.trainer import Trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
GPU = torch.device("cuda")


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
            "trainer.clip=0.05",
            "trainer.ema=0.8",
            "trainer.checkpoint_every=4",
            "trainer.sample_every=8",
            "data.flip=true",
            "engine.device=cuda",
        ]
    )


def trained(config, images, run, *settings) -> tuple[Trainer, list[float], list[float]]:
    """A trainer after all its steps, with their losses and gradient norms."""
    config = config.with_settings(settings)
    trainer = Trainer(config, images, run)
    facts = []
    while trainer.step < config.trainer.steps:
        facts.append([float(fact) for fact in trainer.train_step()])
        trainer.step += 1
    losses, norms = zip(*facts)
    return trainer, list(losses), list(norms)


def weights(trainer: Trainer) -> list[torch.Tensor]:
    return [*trainer.state.network.parameters(), *trainer.average.parameters()]


@pytest.mark.parametrize("dropout", [0, 0.3])
def test_recorded_training_is_training_in_float32(config, tiny_images, tmp_path, dropout):
    settings = ["engine.precision=float32", f"network.dropout={dropout}"]
    plain, *facts = trained(config, tiny_images, tmp_path / "plain", *settings, "engine.compile=false")
    replayed, *replayed_facts = trained(config, tiny_images, tmp_path / "recorded", *settings)
    for found, expected in zip(replayed_facts, facts):
        torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-4, atol=1e-6)
    assert all(norm > 0.05 for norm in facts[1])  # clipping was at work
    for found, expected in zip(weights(replayed), weights(plain)):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=2e-5)


def test_training_with_kernels_is_training_up_to_rounding(config, tiny_images, tmp_path):
    settings = ["network.dropout=0", "network.channels=32"]
    _, exact, _ = trained(config, tiny_images, tmp_path / "exact", *settings, "engine.precision=float32")
    for name, compiled in (("kernels", "true"), ("plain", "false")):
        setting = f"engine.compile={compiled}"
        _, losses, _ = trained(config, tiny_images, tmp_path / name, *settings, "engine.precision=bf16", setting)
        torch.testing.assert_close(torch.tensor(losses), torch.tensor(exact), rtol=0.03, atol=1e-4)


@pytest.mark.parametrize("settings", [["trainer.accumulate=2"], ["engine.checkpoint=true"]])
def test_batches_in_parts_and_checkpointing_with_kernels(config, tiny_images, tmp_path, settings):
    common = ["network.dropout=0", "network.channels=32", "engine.precision=bf16"]
    _, _, norms = trained(config, tiny_images, tmp_path / "whole", *common)
    _, _, found = trained(config, tiny_images, tmp_path / "other", *common, *settings)
    if "engine.checkpoint=true" in settings:  # the levels differ if a batch is computed in parts
        torch.testing.assert_close(torch.tensor(found), torch.tensor(norms), rtol=0.03, atol=1e-4)
    assert all(torch.tensor(found).isfinite())


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
    config = tiny_config.with_settings(["network.channels=32"])
    model = Model.from_images(ModelConfig(config.process, config.network, tiny_images.shape), tiny_images.train)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return placed(model.eval(), GPU)


TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.03}


def test_a_recorded_step_is_the_step(model, precision):
    noise = SeededNoise(0, torch.arange(6, device=GPU), model.config.shape)
    step = reverse_step(model.process, inference(model.network, precision), noise)
    replayed = recorded(step, GPU)
    u = torch.rand(6, *model.config.shape, device=GPU)
    with torch.no_grad():
        for k in (9, 7, 5, 3, 1):
            level = torch.full((), k, device=GPU)
            torch.testing.assert_close(replayed(u, level), step(u, level), rtol=0, atol=TOLERANCE[precision])


def test_samples_on_a_gpu_are_those_on_a_cpu_and_do_not_depend_on_the_batch(model, precision):
    images = model.sample(7, seed=3, precision=precision)
    tolerance = TOLERANCE[precision] * 10  # over ten levels
    torch.testing.assert_close(
        model.sample(7, seed=3, batch_size=3, precision=precision), images, rtol=0, atol=tolerance
    )
    torch.testing.assert_close(placed(model, torch.device("cpu")).sample(7, seed=3), images, rtol=0, atol=tolerance)


def test_the_batch_is_limited_by_memory(model, monkeypatch):
    from ihdm import memory

    monkeypatch.setattr(memory, "free_bytes", lambda device: model._needed(torch.bfloat16)(10) / memory.SHARE)
    assert model.batch_size(1000, torch.bfloat16) == 10
