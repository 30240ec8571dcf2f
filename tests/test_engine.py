from __future__ import annotations

import gc
import os
import signal
import time
import weakref

import pytest
import torch

from ihdm import engine
from ihdm.engine import Frozen, _PerImage, choose_device, choose_precision, collected, lowered, survives
from ihdm.errors import UsageError
from ihdm.networks.unet import UNet

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("native", "grid", "expected"),
    [
        *[(True, (28, 28), torch.bfloat16), (True, (1000,), torch.bfloat16), (False, (256, 256), torch.float32)],
        *[(True, (8, 8), torch.float32), (True, (16, 16, 16), torch.float32)],
    ],
)
def test_a_cpu_uses_bf16_where_it_pays(monkeypatch, native, grid, expected):
    monkeypatch.setattr(engine, "_claims_bf16", lambda: native)
    monkeypatch.setattr(engine, "_survives_bf16", lambda: True)
    assert choose_precision("auto", CPU, grid) == expected
    assert choose_precision("float32", CPU, grid) == torch.float32
    assert choose_precision("bf16", CPU, grid) == torch.bfloat16


def test_a_cpu_that_claims_bf16_and_kills_whoever_uses_it_does_without(monkeypatch):
    monkeypatch.setattr(engine, "_claims_bf16", lambda: True)
    monkeypatch.setattr(engine, "_survives_bf16", lambda: False)
    assert choose_precision("auto", CPU, (28, 28)) == torch.float32
    with pytest.raises(UsageError, match="take float32"):
        choose_precision("bf16", CPU, (28, 28))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system with fork")
def test_what_kills_or_hangs_a_child_is_found_out(monkeypatch):
    assert survives(lambda: torch.ones(64, 64) @ torch.ones(64, 64))
    assert not survives(lambda: os.kill(os.getpid(), signal.SIGKILL))
    monkeypatch.setattr(engine, "PATIENCE", 0.3)  # not before: on a busy machine a good child may take as long
    assert not survives(lambda: time.sleep(60))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system with fork")
def test_a_child_in_which_something_is_raised_does_nothing_else(tmp_path):
    own = os.getpid()
    try:
        assert not survives(lambda: 1 / 0)
    finally:
        if os.getpid() != own:
            (tmp_path / "child").touch()
            os._exit(1)
    assert not (tmp_path / "child").exists()


def test_a_device_that_is_not_there_is_refused():
    assert choose_device("cpu") == CPU
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match=r"available: .*cpu"):
            choose_device("cuda")


def test_inference_agrees_with_the_network_and_leaves_it_as_it_was():
    torch.manual_seed(0)
    network = UNet(1, 1, channels=8, multipliers=(1, 2), blocks=1, attention=(1,), dropout=0.5).train()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    u, k = torch.randn(3, 1, 8, 8), torch.tensor([1, 2, 3])
    plain, lower = Frozen(network)(u, k), Frozen(network, torch.bfloat16)(u, k)
    assert network.training
    torch.testing.assert_close(plain, network.eval()(u, k))
    assert lower.dtype == torch.float32
    assert 0 < (lower - plain).norm() / plain.norm() < 0.03


def test_a_lowered_network_learns_as_the_network_does_up_to_rounding():
    torch.manual_seed(0)
    network = UNet(1, 1, channels=8, multipliers=(1, 2), blocks=1, attention=(1,), dropout=0)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    assert lowered(network, torch.float32) is network
    u, k = torch.randn(3, 1, 8, 8), torch.tensor([1, 2, 3])
    gradients = []
    for answering in (network, lowered(network, torch.bfloat16)):
        answer = answering(u, k)
        assert answer.dtype == torch.float32
        gradients.append(torch.autograd.grad(answer.square().sum(), list(network.parameters())))
    for exact, lower in zip(*gradients):
        assert lower.dtype == torch.float32
        assert (lower - exact).norm() < 0.05 * exact.norm() + 1e-3


@pytest.mark.parametrize("sizes", [[4], [1, 3, 2]])
def test_vectors_for_each_image_have_the_gradient_of_the_vector(sizes):
    """In each part of a batch, and where one is not used, as by other depths of a network."""
    one, two = torch.randn(3, requires_grad=True), torch.randn(5, requires_grad=True)
    seen = _PerImage.apply(sizes, None, one, two)
    assert [len(vector) for vector in seen] == [size for size in sizes for _ in range(2)]
    used, pulls = seen[:-1], [torch.randn_like(vector) for vector in seen[:-1]]
    found = torch.autograd.grad(used, (one, two), pulls, allow_unused=True)
    for n, gradient in enumerate(found):
        expected = sum((pull.sum(0) for pull in pulls[n::2]), torch.zeros_like(gradient))
        torch.testing.assert_close(gradient, expected)


def test_nothing_is_collected_while_a_step_is_recorded():
    """The end of another recording would invalidate it."""

    class Knot:
        def __init__(self) -> None:
            self.itself = self

    before = weakref.ref(Knot())
    with collected():
        assert before() is None and not gc.isenabled()
        during = weakref.ref(Knot())
        _ = [[] for _ in range(10 * gc.get_threshold()[0])]
        assert during() is not None
    assert gc.isenabled()
    gc.disable()
    try:
        with collected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
