from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

from ihdm import memory
from ihdm.config import load_config
from ihdm.engine import lowered
from ihdm.errors import UsageError
from ihdm.model_folder import ModelConfig
from ihdm.networks import build_network, layers
from ihdm.networks.layers import Attention, Downsample, Skip, Upsample
from ihdm.networks.unet import UNet

COUNTS = [  # preset, strided convolutions (the public code), average pooling (the paper)
    ("mnist", 42_082_049, 40_164_225),
    ("cifar10", 61_060_867, 57_962_883),
    ("afhq-64", 88_217_219, 81_874_691),
    ("ffhq-128", 159_981_443, 147_592_067),
]


@pytest.mark.parametrize(("preset", "conv", "pool"), COUNTS)
def test_parameter_counts_are_those_of_the_paper_and_its_code(preset, conv, pool):
    for resample, expected in (("conv", conv), ("pool", pool)):
        config = load_config(preset, [f"network.resample={resample}"])
        height, width = config.data.size
        with torch.device("meta"):
            network = build_network(ModelConfig.of(config, (config.data.channels, height, width)))
        assert sum(p.numel() for p in network.parameters()) == expected


def tiny(channels=1, **options) -> UNet:
    return UNet(channels, channels, channels=8, multipliers=(1, 2, 2), blocks=1, attention=(2,), **options)


@pytest.mark.parametrize("resample", ["pool", "conv"])
@pytest.mark.parametrize("size", [(27, 41), (8, 8), (1, 5), (2, 2)])
@pytest.mark.parametrize("channels", [1, 2, 4, 7])
def test_any_size_and_any_number_of_channels(resample, size, channels):
    u = torch.randn(2, channels, *size)
    assert tiny(channels, resample=resample)(u, torch.tensor([1, 7])).shape == u.shape


@pytest.mark.parametrize("size", [(2, 16, 16), (1, 5, 3), (1, 1, 1)])
def test_volumes_may_be_thin(size):
    u = torch.randn(2, 1, *size)
    assert tiny(axes=3)(u, torch.tensor([1, 7])).shape == u.shape


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"resample": "nearest"}, "network.resample must be one of 'pool', 'conv', not 'nearest'"),
        ({"attention": (1, 4)}, "network.attention names resolution 4, but network.multipliers gives only"),
        ({"multipliers": (), "attention": ()}, "network.multipliers must give at least one resolution"),
        ({"groups": 3}, "network.channels=8 cannot be divided into network.groups=3"),
        ({"dropout": 2}, "network.dropout must be at most 0.99, not 2"),
    ],
)
def test_settings_that_are_given_in_python_are_checked_too(given, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        UNet(1, 1, **{"channels": 8, "multipliers": (1, 2), "blocks": 1, "attention": (), **given})


def test_a_fresh_network_answers_zero():
    u = torch.randn(2, 1, 8, 8)
    assert not tiny()(u, torch.tensor([1, 2])).any()


def awake(network: UNet) -> UNet:
    """The network with every weight random, so that no branch is zero."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.1)
    return network.eval()


def test_samples_do_not_mix_and_levels_matter():
    network, u = awake(tiny()), torch.randn(3, 1, 8, 8)
    together = network(u, torch.tensor([1, 5, 9]))
    torch.testing.assert_close(together[1:2], network(u[1:2], torch.tensor([5])))
    assert (network(u[1:2], torch.tensor([6])) - together[1:2]).abs().max() > 1e-4


@pytest.mark.parametrize("options", [{}, {"resample": "conv"}, {"axes": 3}, {"labels": 2}])
def test_a_level_that_all_share_is_the_level_of_each(options):
    """Samples share theirs: then it is embedded once, and without gradients maps of channels go another way."""
    network = awake(tiny(**options)).double()
    u, k = torch.randn(3, 1, *[8] * options.get("axes", 2)).double(), torch.tensor(5)
    expected = network(u, k.repeat(3))
    torch.testing.assert_close(network(u, k.expand(3)), expected)
    with torch.no_grad():
        torch.testing.assert_close(network(u, k.expand(3)), expected)
    if "labels" in options:
        label = torch.tensor([0, 2, 1])
        torch.testing.assert_close(network(u, k.expand(3), label), network(u, k.repeat(3), label))


def test_every_parameter_gets_a_gradient():
    network = awake(tiny())
    network(torch.randn(2, 1, 8, 8), torch.tensor([1, 2])).square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in network.parameters())


def test_checkpointing_gives_the_same_gradients_for_less_memory():
    u, k = torch.randn(4, 1, 16, 16), torch.tensor([1, 2, 3, 4])
    gradients = []
    for checkpoint in (False, True):
        network = awake(tiny(dropout=0.3)).train()
        network.checkpoint = checkpoint
        torch.manual_seed(1)
        network(u, k).square().sum().backward()
        gradients.append([p.grad for p in network.parameters()])
    for plain, again in zip(*gradients):
        torch.testing.assert_close(again, plain)
    config = load_config("cifar10-small")
    described = ModelConfig.of(config, (3, 32, 32))
    needed = {
        again: memory.to_train(lambda c=again: build_network(described, c), (3, 32, 32), 64) for again in (False, True)
    }
    assert needed[True] < 0.6 * needed[False]


@pytest.mark.parametrize("grid", [(32,), (6, 7), (6, 5, 7)])
def test_it_computes_in_bfloat16_on_any_grid(grid):
    torch.manual_seed(0)
    network = UNet(1, 1, 32, (1, 2), 1, (1,), dropout=0.0, axes=len(grid))
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    u, k = torch.randn(3, 1, *grid), torch.tensor([1, 4, 10])
    expected, found = network(u, k), lowered(network, torch.bfloat16)(u, k)
    assert float((found - expected).norm() / expected.norm()) < 0.05


@pytest.mark.parametrize("resample", ["pool", "conv"])
@pytest.mark.parametrize("grid", [(32,), (8,), (8, 8), (9, 2), (8, 8, 8), (2, 3, 9), (5, 3, 1)], ids=str)
def test_gradients_in_bfloat16_are_those_in_float32(grid, resample):
    """Those of oneDNN for weights are not, for some shapes; some are written beyond their end."""
    torch.manual_seed(0)
    network = UNet(1, 1, 32, (1, 1, 1, 1), 1, (), dropout=0.0, resample=resample, axes=len(grid))
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    u, k, towards = torch.randn(4, 1, *grid), torch.tensor([1, 2, 4, 10]), torch.randn(4, 1, *grid)
    for _ in range(3):
        gradients = []
        for answering in (network, lowered(network, torch.bfloat16)):
            network.zero_grad()
            (answering(u, k) * towards).sum().backward()
            gradients.append(torch.cat([weight.grad.flatten() for weight in network.parameters()]))
        assert float((gradients[1] - gradients[0]).norm() / gradients[0].norm()) < 0.1


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [(2, 4), (6, 8), (12, 12)])  # at once; a few images at a time; too large for that
def test_attention_is_softmax_attention(size, dtype, gradients, monkeypatch):
    monkeypatch.setattr(layers, "IN_CACHE", 2**13)
    monkeypatch.setattr(layers, "MOST_KEPT", 2**14)
    calls, ours, theirs = [], layers._written_out, F.scaled_dot_product_attention
    monkeypatch.setattr(layers, "_written_out", lambda q, k, v: (calls.append(len(q)), ours(q, k, v))[1])

    def attended(*tensors):
        calls.append(None)
        assert size == (6, 8) or all(tensor.is_contiguous() for tensor in tensors)  # else torch writes the matrix out
        return theirs(*tensors)

    monkeypatch.setattr(F, "scaled_dot_product_attention", attended)
    attention, x = Attention(8).requires_grad_(gradients).to(dtype), torch.randn(6, 8, *size).to(dtype)
    with torch.no_grad():
        attention.project.weight.copy_(torch.eye(8))
    pixels = attention.norm([x])[0].flatten(2).transpose(1, 2)
    q, k, v = F.linear(pixels, attention.qkv.weight, attention.qkv.bias).float().chunk(3, dim=-1)
    expected = x + (torch.softmax(q @ k.transpose(1, 2) / 8**0.5, -1) @ v).transpose(1, 2).view_as(x)
    rounding, few = (0.05, [3, 3]) if dtype == torch.bfloat16 else (1e-5, [None])
    torch.testing.assert_close(attention(x).float(), expected, atol=rounding, rtol=0)
    assert calls == {(2, 4): [6], (6, 8): few, (12, 12): [None]}[size]


def test_a_skip_of_feature_maps_side_by_side_is_that_of_the_joined_one():
    torch.manual_seed(0)
    skip = Skip(6, 4).double()
    parts = [torch.randn(2, width, 3, 2, dtype=torch.float64, requires_grad=True) for width in (1, 2, 3)]
    inputs = [skip.weight, *parts]
    found, expected = skip(parts), F.conv2d(torch.cat(parts, 1), skip.weight)
    pull = torch.randn_like(found)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found, inputs, pull), torch.autograd.grad(expected, inputs, pull))
    assert torch.autograd.gradcheck(lambda *parts: skip(parts), parts)


def test_pooling_averages_what_there_is_and_repetition_undoes_its_size():
    x = torch.arange(15.0).view(1, 1, 3, 5)
    pooled = Downsample(1, "pool")(x)
    torch.testing.assert_close(pooled[0, 0], torch.tensor([[3.0, 5.0, 6.5], [10.5, 12.5, 14.0]]))
    repeated = Upsample(1, "pool")(pooled, size=(3, 5))
    assert repeated.shape == x.shape
    assert repeated[0, 0, 0].tolist() == [3.0, 3.0, 5.0, 5.0, 6.5]
    torch.testing.assert_close(Downsample(1, "pool", axes=3)(x[:, :, None]), pooled[:, :, None])


@pytest.mark.parametrize("size", [(6, 8), (5, 8), (5, 7)])
def test_upsampling_with_a_convolution_repeats_pixels_and_convolves(size):
    layer, x = Upsample(2, "conv"), torch.randn(3, 2, 3, 4)
    repeated = x.repeat_interleave(2, -2).repeat_interleave(2, -1)[..., : size[0], : size[1]]
    expected = F.conv2d(repeated, layer.conv.weight, layer.conv.bias, padding=1)
    torch.testing.assert_close(layer(x, size=size), expected, rtol=1e-4, atol=1e-6)
