"""The GPU kernels against plain PyTorch: on a GPU if there is one, else in Triton's interpreter if it is installed."""

from __future__ import annotations

import itertools
import math
import os
import shutil

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are defined
pytest.importorskip("triton")

from ihdm import kernels
from ihdm.engine import Lowered
from ihdm.networks.unet import UNet

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = [  # widths of the parts, groups, height and width
    ((8,), 2, (4, 4)),
    ((128,), 32, (8, 8)),
    ((40, 24), 16, (7, 5)),  # groups across the border between parts
    ((48,), 4, (6, 6)),  # groups that are no power of two
    ((64, 64), 32, (8, 8)),  # two parts alike
    ((32, 32), 16, (7, 7)),
    ((32, 64), 8, (33, 35)),  # more pixels than fit into one program
    ((16,), 4, (40, 40)),  # a last chunk that is not full
    ((4,), 1, (64, 64)),  # fewer channels than a program takes
    ((34,), 1, (32, 32)),  # one chunk that does not fit at once
    ((64,), 32, (4, 4)),  # groups of two channels
    ((32, 32), 32, (5, 5)),  # the same from two parts
]
ALL = [(torch.float32, 2e-6, True, True)]
MORE = [(torch.bfloat16, 6e-3, True, True), (torch.float32, 2e-6, False, True), (torch.float32, 2e-6, False, False)]


def close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    assert (found.double() - expected).norm() <= tolerance * expected.norm() + 1e-30


def leaf(*shape: int, dtype=torch.bfloat16) -> Tensor:
    return torch.randn(*shape).to(DEVICE, dtype).requires_grad_()


def feature_map(*shape: int, dtype=torch.bfloat16) -> Tensor:
    x = torch.randn(*shape).to(DEVICE, dtype) * 2 + torch.randn(shape[1], 1, 1, device=DEVICE, dtype=dtype)
    return x.contiguous(memory_format=torch.channels_last).requires_grad_()


@pytest.mark.parametrize(
    ("shape", "options"),
    [*itertools.product(SHAPES, ALL), *itertools.product([SHAPES[2], SHAPES[7]], MORE)],
)
def test_norm_and_its_gradients(shape, options):
    (widths, groups, size), (dtype, tolerance, shifted, silu) = shape, options
    torch.manual_seed(0)
    parts = [feature_map(3, width, *size, dtype=dtype) for width in widths]
    weight, bias = leaf(sum(widths), dtype=torch.float32), leaf(sum(widths), dtype=torch.float32)
    shift = leaf(3, sum(widths), dtype=dtype) if shifted else None
    y, *again = kernels.norm(parts, weight.expand(3, -1), bias.expand(3, -1), groups, 1e-5, silu, shift)
    outputs = [y, *again] if not shifted else [y]
    pull = [torch.randn_like(output) for output in outputs]
    inputs = [*parts, weight, bias, *([shift] if shifted else [])]
    found = torch.autograd.grad(outputs, inputs, pull)

    exact = [x.detach().double().requires_grad_() for x in inputs]
    x = torch.cat(exact[: len(parts)], 1)
    z = F.group_norm(x + exact[-1][:, :, None, None] if shifted else x, groups, *exact[len(parts) : len(parts) + 2])
    expected_y = F.silu(z) if silu else z
    expected_outputs = [expected_y, *exact[: len(parts)]] if not shifted else [expected_y]
    expected = torch.autograd.grad(expected_outputs, exact, [p.double() for p in pull])
    close(y, expected_y, tolerance)
    for one, other in zip(found, expected):
        close(one, other, tolerance)


def test_the_mean_of_a_channel_may_be_far_from_zero():
    x = (1000 + torch.randn(2, 8, 40, 40)).to(DEVICE).contiguous(memory_format=torch.channels_last)
    one, zero = torch.ones(2, 8, device=DEVICE), torch.zeros(2, 8, device=DEVICE)
    y, _ = kernels.norm([x], one, zero, 2, 1e-5, False)
    close(y, F.group_norm(x.double(), 2), 1e-4)


def test_a_shift_of_all_images_is_that_of_each():
    x, shift = feature_map(3, 8, 4, 4, dtype=torch.float32), torch.randn(1, 8, device=DEVICE)
    one, zero = torch.ones(3, 8, device=DEVICE), torch.zeros(3, 8, device=DEVICE)
    found, *_ = kernels.norm([x], one, zero, 2, 1e-5, True, shift)
    assert torch.equal(found, kernels.norm([x], one, zero, 2, 1e-5, True, shift.repeat(3, 1))[0])


@pytest.mark.parametrize("size", [(8, 8), (40, 40)])
def test_dropout_is_a_function_of_the_seed_and_its_gradient_knows_what_was_dropped(size):
    x = feature_map(4, 16, *size, dtype=torch.float32)
    weight, bias = (torch.rand(16, device=DEVICE).expand(4, -1) for _ in range(2))

    def dropped(seed: int) -> Tensor:
        return kernels.norm([x], weight, bias, 4, 1e-5, True, None, 0.25, torch.tensor(seed, device=DEVICE))[0]

    full, _ = kernels.norm([x], weight, bias, 4, 1e-5, True)
    y = dropped(5)
    kept = y != 0
    torch.testing.assert_close(y[kept], full[kept] / 0.75)
    assert torch.equal(y, dropped(5))
    assert 0.5 < (dropped(6) != 0)[kept].float().mean() < 0.9
    assert abs(kept.float().mean() - 0.75) < 5 * (0.25 * 0.75 / kept.numel()) ** 0.5

    pull = torch.randn_like(y)
    (found,) = torch.autograd.grad(y, x, pull)
    (expected,) = torch.autograd.grad(full, x, pull * kept / 0.75)
    torch.testing.assert_close(found, expected)


def worst_correlation(kept: Tensor) -> float:
    """Of any two columns; chance alone has a deviation of 1."""
    away = kept.double() - kept.double().mean(0)
    away /= away.norm(dim=0)
    return float((away.T @ away).triu(1).abs().max()) * len(kept) ** 0.5


def test_what_dropout_keeps_looks_like_chance():
    x, seed = feature_map(8, 256, 32, 32, dtype=torch.float32), torch.tensor(5, device=DEVICE)
    one, zero = torch.ones(8, 256, device=DEVICE), torch.zeros(8, 256, device=DEVICE)
    y, _ = kernels.norm([x], one, zero, 32, 1e-5, False, None, 0.5, seed)
    kept = (y != 0).permute(0, 2, 3, 1).flatten(0, 2).cpu()  # pixels of all images, channels
    for axis in (0, 1):
        assert ((kept.double().mean(axis) - 0.5).abs() * 2 * kept.shape[axis] ** 0.5).max() < 6
    assert worst_correlation(kept) < 6
    assert worst_correlation(kept[:1024].T) < 6


def test_a_worse_hash_would_not_pass_for_chance():
    """Numbers that were mixed once only, joined by xor instead of a product; and products of such as were not mixed."""
    pixel, channel = torch.arange(8192)[:, None] ^ 5, torch.arange(256) ^ 5 * 0x85EBCA77

    def mixed(n: Tensor) -> Tensor:
        n = n * 0x9E3779B1 & 2**32 - 1
        return n ^ n >> 15

    assert worst_correlation((mixed(pixel) ^ mixed(channel)) * 0xC2B2AE35 & 2**31 > 0) > 6
    assert worst_correlation((pixel | 1) * 0x9E3779B1 * (channel | 1) & 2**31 > 0) > 6


@pytest.mark.parametrize(("channels", "size"), [(12, (5, 7)), (1, (40, 40)), (2, (64, 64)), (70, (33, 32))])
def test_add_and_its_gradients(channels, size):
    torch.manual_seed(0)
    h, x, bias = feature_map(3, channels, *size), feature_map(3, channels, *size), leaf(channels, dtype=torch.float32)
    total = kernels.add(h, bias.expand(3, -1), x)
    close(total, h.double() + x.double() + bias.double()[:, None, None], 4e-3)
    dh, dx, dbias = torch.autograd.grad(total, [h, x, bias], torch.ones_like(total))
    assert dh.eq(1).all()
    assert dx.eq(1).all()
    assert dbias.eq(3 * math.prod(size)).all()
    close(kernels.add(h, bias.expand(3, -1)), h.double() + bias.double()[:, None, None], 4e-3)


@pytest.mark.parametrize(
    ("size", "resample", "checkpoint"), [((7, 10), "pool", False), ((7, 10), "conv", True), ((8, 8), "conv", False)]
)
def test_a_network_with_kernels_is_the_plain_network(size, resample, checkpoint):
    torch.manual_seed(0)
    network = UNet(2, 2, channels=8, multipliers=(1, 2, 3), blocks=1, attention=(1,), dropout=0, resample=resample)
    network = network.to(DEVICE, memory_format=torch.channels_last)
    network.checkpoint = checkpoint
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    u, k = torch.randn(2, 2, *size, device=DEVICE), torch.tensor([1, 5], device=DEVICE)
    weights = dict(network.named_parameters())
    per_image = {name: weight.expand(2, -1) if weight.ndim == 1 else weight for name, weight in weights.items()}
    results = []
    for given in (weights, per_image):
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            output = torch.func.functional_call(network, given, (u, k))
            gradients = torch.autograd.grad(output.square().sum(), list(weights.values()))
        results.append([output, *gradients])
    for plain, fused in zip(*results, strict=True):
        close(fused, plain.double(), 1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_with_kernels_each_depth_of_a_pyramid_is_the_plain_network(monkeypatch, training):
    """In training images are divided by counts, else by their levels; each part has vectors and labels of its own."""
    monkeypatch.setattr(kernels, "usable", lambda device, dtype: True)
    torch.manual_seed(0)
    settings = {"channels": 8, "multipliers": (1, 2), "blocks": 1, "attention": (1,), "dropout": 0, "pyramid": (4,)}
    network = UNet(2, 2, **settings, labels=3)
    network = network.to(DEVICE, memory_format=torch.channels_last).train(training)
    network.expect_levels(8, 4)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    u, k = torch.randn(4, 2, 5, 4, device=DEVICE), torch.tensor([8, 1, 5, 3], device=DEVICE)
    results, label = [], torch.tensor([0, 3, 1, 2], device=DEVICE)
    for answering in (network, Lowered(network, torch.float32)):
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            output = answering(u, k, label)
            gradients = torch.autograd.grad(output.square().sum(), list(network.parameters()))
        results.append([output, *gradients])
    for plain, fused in zip(*results, strict=True):
        close(fused, plain.double(), 1e-5)


def test_a_note_says_what_was_compiled_before(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert not kernels.Note("one network").is_there()
    kernels.Note("one network").leave()
    assert kernels.Note("one network").is_there() and not kernels.Note("another").is_there()
    shutil.rmtree(tmp_path)  # with Triton's cache it is gone
    assert not kernels.Note("one network").is_there()


def test_activation_of_numbers_far_from_zero():
    """SiLU of them is the number itself, or nothing."""
    torch.manual_seed(0)
    x, weight = feature_map(2, 8, 16, 16), leaf(8, dtype=torch.float32)
    with torch.no_grad():
        weight.copy_(torch.linspace(1, 60, 8))
    vectors = weight.expand(2, -1), torch.zeros(2, 8, device=DEVICE)
    y = kernels.norm([x], *vectors, groups=2, eps=1e-5, silu=True)[0].double()
    expected = F.silu(F.group_norm(x.double(), 2, eps=1e-5) * weight.double()[:, None, None])
    assert float(expected.max()) > 100 and float((y - expected).abs().sub(2**-7 * expected.abs()).max()) < 4e-3
