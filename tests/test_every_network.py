"""What every network must do, whoever wrote it: one suite over the registry."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import recording
import torch

from ihdm import memory
from ihdm.domains import Domain, GraphDomain, as_domain
from ihdm.engine import Frozen, lowered
from ihdm.model import Model
from ihdm.model_folder import ModelConfig
from ihdm.networks import build_network
from ihdm.pixels import to_unit
from ihdm.registry import NETWORKS
from ihdm.trainer import Trainer

PYRAMID = ("unet", "network.pyramid=5")  # sees levels from 5 on at half the size


@pytest.fixture(params=[*((kind,) for kind in NETWORKS), PYRAMID], ids=" ".join)
def config(request, tiny_config):
    kind, *settings = request.param
    return tiny_config.with_settings([f"network.kind={kind}", *settings])


def domain(config, shape=(1, 8, 8)) -> Domain:
    """Of images, or for a network on graphs of a path through all their pixels."""
    if NETWORKS.kind(config.network) != "graph":
        return as_domain(shape)
    nodes = torch.arange(shape[1] * shape[2])
    return GraphDomain((shape[0], len(nodes)), edges=torch.stack([nodes[:-1], nodes[1:]], 1))


@pytest.fixture
def data(config, tiny_images):
    """Images, or the same on a graph."""
    if isinstance(own := domain(config), GraphDomain):
        train, held_out = (to_unit(images).flatten(2) for images in (tiny_images.train, tiny_images.held_out))
        return replace(tiny_images, train=train, held_out=held_out, own_domain=own)
    return tiny_images


def built(config, shape=(1, 8, 8)):
    """Untrained, but with weights that do something."""
    torch.manual_seed(0)
    network = build_network(ModelConfig.of(config, domain(config, shape)))
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    return network.eval()


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 5, 9), (2, 1, 4)])
def test_it_answers_in_the_shape_of_the_states_each_by_itself(config, shape):
    network, u, k = built(config, shape), torch.randn(3, *domain(config, shape).shape), torch.tensor([1, 4, 10])
    answer = network(u, k)
    assert answer.shape == u.shape and bool(answer.isfinite().all())
    torch.testing.assert_close(network(u[1:2], k[1:2]), answer[1:2], atol=1e-5, rtol=1e-4)
    assert not torch.allclose(network(u, k.flip(0))[0], answer[0])  # it knows the level


def test_every_weight_learns(config):
    network = built(config).train()
    network(torch.randn(4, *domain(config).shape), torch.tensor([1, 2, 5, 10])).square().sum().backward()
    assert all(weight.grad is not None for weight in network.parameters())


def test_in_bfloat16_it_answers_almost_the_same(config):
    network, u, k = built(config), torch.randn(3, *domain(config).shape), torch.tensor([1, 4, 10])
    expected = network(u, k).detach()
    for low in (lowered(network, torch.bfloat16), Frozen(network, torch.bfloat16)):
        answer = low(u, k).detach()
        assert answer.dtype == torch.float32
        assert float((answer - expected).norm() / expected.norm()) < 0.05
    lowered(network, torch.bfloat16)(u, k).sum().backward()
    assert all(weight.grad.dtype == torch.float32 for weight in network.parameters())


def test_its_memory_is_counted_without_computing(config):
    described = ModelConfig.of(config, domain(config))
    build, shape = partial(build_network, described), described.shape
    weights = 4 * sum(weight.numel() for weight in build().parameters())
    for precision in (torch.float32, torch.bfloat16):
        few, many = (memory.to_sample(build, shape, batch, precision) for batch in (1, 64))
        assert weights < few < many < memory.to_train(build, shape, 64, precision)


def test_training_goes_on_exactly_and_models_are_saved_whole(config, data, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert Trainer(config, data, whole).train()
    assert Trainer(config.with_settings(["trainer.steps=3"]), data, parts).train()
    again = Trainer(config, data, parts)
    assert again.train()
    one, other = (Model.from_pretrained(run / "model") for run in (whole, parts))
    states = [model.network.state_dict() for model in (one, other, again.trained_model())]
    assert all(states[0][name].equal(state[name]) for state in states[1:] for name in states[0])
    assert one.sample(2).equal(other.sample(2))


def test_its_training_can_be_recorded(config, data, tmp_path, monkeypatch):
    trainers = [Trainer(config, data, tmp_path / name) for name in ("plain", "recorded")]
    recording.record(monkeypatch)
    recording.recorded_training(trainers[1])
    for trainer in trainers:
        for trainer.step in range(config.trainer.steps):
            trainer.train_step()
    for one, other in zip(*(trainer.training.average.parameters() for trainer in trainers)):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_on_a_gpu_it_answers_almost_the_same(config, precision):
    network, u, k = built(config), torch.randn(3, *domain(config).shape), torch.tensor([1, 4, 10])
    answer = Frozen(network.cuda(), precision)(u.cuda(), k.cuda()).cpu()
    expected = network.cpu()(u, k)
    assert float((answer - expected).norm() / expected.norm()) < (0.05 if precision == torch.bfloat16 else 1e-3)
