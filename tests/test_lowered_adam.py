"""Adam for a network in lower precision, by kernels over flat memory, against `Adam` and torch's own."""

from __future__ import annotations

import copy
import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")

from ihdm import checkpoint, optimisation
from ihdm.networks.unet import UNet
from ihdm.optimisation import Adam, FlatAdam, LoweredAdam

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def start(kind, clip, *options):
    torch.manual_seed(0)
    network = UNet(1, 1, channels=4, multipliers=(1,), blocks=1, attention=(0,))
    network = network.to(DEVICE, memory_format=torch.channels_last)
    average = copy.deepcopy(network).requires_grad_(False)
    return kind(network, average, clip, *options)


def give(optimizer, gradients):
    """Put gradients where a backward pass leaves them."""
    optimizer.forget_gradients()
    if isinstance(optimizer, LoweredAdam):
        vectors, matrices = iter(optimizer.of_vectors), iter(optimizer.of_matrices)
        places = [next(vectors if weight.ndim == 1 else matrices) for weight in optimizer.weights]
    elif isinstance(optimizer, FlatAdam):
        places = [weight.grad for weight in optimizer.weights]
    else:
        for weight in optimizer.weights:
            weight.grad = torch.empty_like(weight)
        places = [weight.grad for weight in optimizer.weights]
    for place, gradient in zip(places, gradients):
        place.copy_(gradient)


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
    states = [checkpoint.TrainingState(each.network, each.average, each) for each in (optimizer, lower)]
    checkpoint.save(tmp_path, checkpoint.Snapshot.of(states[0], 1, "data"), 1)
    checkpoint.resume(tmp_path, states[1])
    lower.loaded()
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
