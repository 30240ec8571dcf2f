"""Adam for a network in lower precision, by kernels over flat memory, against `Adam` and torch's own."""

from __future__ import annotations

import copy
import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")

from ihdm import checkpoint, kernels, optimisation
from ihdm.engine import Lowered
from ihdm.networks.unet import UNet
from ihdm.optimisation import Adam, FlatAdam, LoweredAdam

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def start(kind, clip, *options):
    torch.manual_seed(0)
    network = UNet(1, 1, channels=4, multipliers=(1,), blocks=1, attention=(0,), dropout=0.0)
    network = network.to(DEVICE, memory_format=torch.channels_last)
    average = copy.deepcopy(network).requires_grad_(False)
    return kind(network, average, clip, *options)


def give(optimizer, gradients):
    """Put gradients where a backward pass leaves them."""
    optimizer.forget_gradients()
    if isinstance(optimizer, LoweredAdam):
        for vectors, places in ((True, optimizer.of_vectors), (False, optimizer.of_matrices)):
            optimizer.put(places, [gradient for gradient in gradients if (gradient.ndim == 1) is vectors])
        return
    for weight, gradient in zip(optimizer.weights, gradients):
        weight.grad = torch.empty_like(weight) if weight.grad is None else weight.grad
        weight.grad.copy_(gradient)


@pytest.mark.parametrize("clip", [0.5, 1e6])
@pytest.mark.parametrize("kind", [Adam, FlatAdam, LoweredAdam])
def test_updates_are_those_of_torch(kind, clip, monkeypatch):
    monkeypatch.setattr(optimisation, "PROGRAMS", 8)
    optimizer = start(kind, clip, *[torch.float32] * (kind is LoweredAdam))
    plain = copy.deepcopy(start(Adam, clip).network)
    adam, averages = torch.optim.Adam(plain.parameters()), [p.detach().clone() for p in plain.parameters()]
    for step in range(4):
        gradients = [torch.randn_like(weight) for weight in plain.parameters()]
        if step == 2:
            gradients[0].fill_(float("nan"))
        for weight, gradient in zip(plain.parameters(), gradients):
            weight.grad = gradient.clone()
        rates = torch.tensor([0.01 * (step + 1), 0.3], device=DEVICE)
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), clip)
        if norm.isfinite():
            adam.param_groups[0]["lr"] = float(rates[0])
            adam.step()
            averages = [average.lerp(weight.detach(), 0.3) for average, weight in zip(averages, plain.parameters())]
        give(optimizer, gradients)
        torch.testing.assert_close(optimizer.update(rates), norm, equal_nan=True)
        for found, expected in ((optimizer.network.parameters(), plain.parameters()), (optimizer.averages, averages)):
            for one, other in zip(found, expected):
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert float(optimizer.taken) == 3
    for n, state in adam.state_dict()["state"].items():
        for name, expected in state.items():
            torch.testing.assert_close(optimizer.tensors()[f"{n}.{name}"].cpu(), expected.cpu(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [Adam, FlatAdam])
def test_a_run_goes_on_with_another_kind(kind, tmp_path, monkeypatch):
    """As it does on another machine: what a checkpoint keeps is the same."""
    monkeypatch.setattr(optimisation, "PROGRAMS", 8)
    optimizer, lower = start(kind, 1.0), start(LoweredAdam, 1.0, torch.bfloat16)
    rates = torch.tensor([0.01, 0.3], device=DEVICE)
    give(optimizer, [torch.randn_like(weight) for weight in optimizer.weights])
    optimizer.update(rates)
    checkpoint.save(tmp_path, checkpoint.Snapshot.of(optimizer, 1, "data"), 1)
    checkpoint.resume(tmp_path, lower)
    matrices = [weight for weight in optimizer.weights if weight.ndim != 1]
    for found, weight in zip(lower.lower, matrices):
        assert found.equal(weight.bfloat16())
    gradients = [torch.randn_like(weight).bfloat16().float() for weight in optimizer.weights]
    for each in (optimizer, lower):
        give(each, gradients)
        each.update(rates)
    for one, other in zip(lower.weights, optimizer.weights):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    for found, weight in zip(lower.lower, (weight for weight in lower.weights if weight.ndim != 1)):
        torch.testing.assert_close(found.float(), weight.detach(), rtol=2**-7, atol=0)  # Triton's interpreter cuts off


@pytest.fixture
def interpreted(monkeypatch):
    """Kernels everywhere: by the GPU, or by Triton's interpreter."""
    monkeypatch.setattr(kernels, "usable", lambda device, precision: True)
    monkeypatch.setattr(optimisation, "PROGRAMS", 8)


def gradients_of(calls, optimizer, lower):
    lower.optimizer = optimizer if isinstance(optimizer, LoweredAdam) else None
    optimizer.forget_gradients()
    generator = torch.Generator().manual_seed(1)
    for _ in range(calls):
        u, k = torch.randn(2, 1, 4, 4, generator=generator).to(DEVICE), torch.tensor([1, 3], device=DEVICE)
        lower(u, k).square().sum().backward()
    if lower.optimizer is None:
        return [weight.grad for weight in optimizer.weights]
    vectors, matrices = iter(optimizer.of_vectors), iter(optimizer.of_matrices)
    return [next(vectors if weight.ndim == 1 else matrices) for weight in optimizer.weights]


def shaken(optimizer):
    """With weights that are not zero anywhere."""
    torch.manual_seed(2)
    state = optimizer.network.state_dict()
    optimizer.network.load_state_dict({name: value + 0.1 * torch.randn_like(value) for name, value in state.items()})
    return optimizer


@pytest.mark.parametrize("calls", [1, 2])
def test_a_network_leaves_all_its_gradients_there(calls, interpreted):
    """Also those of a loss that calls it twice, and with weights that were loaded after it was made."""
    plain, lower = (shaken(start(Adam, 1.0)), shaken(start(LoweredAdam, 1.0, torch.float32)))
    expected = gradients_of(calls, plain, Lowered(plain.network, torch.float32))
    found = gradients_of(calls, lower, Lowered(lower.network, torch.float32))
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_a_step_without_gradients_does_not_take_the_last_ones(interpreted):
    optimizer = start(LoweredAdam, 1.0, torch.float32)
    give(optimizer, [torch.ones_like(weight) for weight in optimizer.weights])
    optimizer.forget_gradients()
    assert float(optimizer.update(torch.tensor([0.1, 0.5], device=DEVICE))) == 0


@pytest.mark.parametrize("kind", [Adam, FlatAdam, LoweredAdam])
def test_the_average_has_the_buffers_of_the_network(kind, interpreted):
    network = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 1), torch.nn.BatchNorm2d(2)).to(DEVICE)
    average = copy.deepcopy(network).requires_grad_(False)
    optimizer = kind(network, average, 1.0, *[torch.float32] * (kind is LoweredAdam))
    network(torch.randn(4, 1, 3, 3, device=DEVICE))
    optimizer.update(torch.tensor([0.1, 0.5], device=DEVICE))
    assert average[1].running_var.equal(network[1].running_var) and int(average[1].num_batches_tracked) == 1


@pytest.mark.parametrize("kind", [Adam, FlatAdam])
def test_weights_with_gaps_in_memory_stay_what_they_are(kind):
    network = torch.nn.Linear(3, 8)
    network.weight = torch.nn.Parameter(torch.randn(8, 8)[:, :3])
    before = network.weight.detach().clone()
    kind(network, copy.deepcopy(network).requires_grad_(False), 1.0)
    assert network.weight.equal(before)


def test_frozen_and_mixed_weights_are_left_to_the_plain_one():
    network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2).double())
    assert not FlatAdam.suits(network) and FlatAdam.suits(network[0]) and not FlatAdam.suits(network[1])
    optimizer = Adam(network, copy.deepcopy(network).requires_grad_(False), 1.0)
    network[0].weight.requires_grad_(False)
    assert not FlatAdam.suits(network[0])
    before = [weight.detach().clone() for weight in optimizer.weights]
    network[1](network[0](torch.randn(4, 2)).double()).square().sum().backward()
    optimizer.update(torch.tensor([0.1, 0.5]))
    unmoved = [weight.equal(old) for weight, old in zip(optimizer.weights, before)]
    assert unmoved == [True, False, False, False]
    assert [average.equal(weight) for average, weight in zip(optimizer.averages, optimizer.weights)] == unmoved


def test_a_run_of_torch_s_own_adam_goes_on(tmp_path):
    """It keeps nothing of weights without a gradient."""
    optimizer = start(FlatAdam, 1.0)
    snapshot = checkpoint.Snapshot.of(optimizer, 1, "data")
    kept = snapshot.files["optimizer.safetensors"]
    for name in [name for name in kept if name.startswith("0.")]:
        del kept[name]
    for name, value in kept.items():
        value.fill_(4 if name.endswith("step") else 0.5)
    checkpoint.save(tmp_path, snapshot, 1)
    optimizer.first[0].fill_(3)
    checkpoint.resume(tmp_path, optimizer)
    assert float(optimizer.taken) == 4 and optimizer.first[0].eq(0).all() and optimizer.first[1].eq(0.5).all()
