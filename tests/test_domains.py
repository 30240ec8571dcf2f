"""Data on other domains than images."""

from __future__ import annotations

import pytest
import torch

from ihdm.domains import ImageDomain, as_domain
from ihdm.errors import UsageError
from ihdm.networks.unet import UNet
from ihdm.registry import DOMAINS


def test_a_shape_is_that_of_images():
    domain = as_domain((3, 4, 6))
    assert domain == ImageDomain((3, 4, 6)) and as_domain(domain) is domain
    assert domain.grid == domain.laplacian.grid == (4, 6) and domain.laplacian.side == 6
    assert domain.words == "4x6 in 3 channels" and as_domain((1, 2, 2)).words == "2x2 in grey"
    with pytest.raises(ValueError, match="channels, height and width"):
        ImageDomain((3, 4))
    with pytest.raises(UsageError, match="unknown kind of data 'image'; did you mean 'images'"):
        DOMAINS["image"]


def test_a_laplacian_that_is_asked_for_where_nothing_has_memory_has_its_numbers():
    domain = ImageDomain((1, 4, 4))
    with torch.device("meta"):
        found = domain.laplacian.eigenvalues
    assert found.device.type == "cpu" and float(found[0, 0]) == 0


@pytest.mark.parametrize("resample", ["pool", "conv"])
@pytest.mark.parametrize(("grid", "weights"), [((13,), (1, 3)), ((9, 13), (3, 3)), ((5, 6, 7), (3, 3, 3))])
def test_the_u_net_has_as_many_axes_as_the_data(grid, weights, resample):
    network = UNet(2, 2, 8, (1, 2), 1, (1,), 0.0, resample, axes=len(grid))
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    u, k = torch.randn(3, 2, *grid), torch.tensor([1, 5, 9])
    answer = network(u, k)
    assert answer.shape == u.shape and network.stem.weight.shape[2:] == weights
    torch.testing.assert_close(network(u[1:2], k[1:2]), answer[1:2])
    answer.square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in network.parameters())


def test_a_signal_goes_through_as_an_image_of_height_1():
    """The middle row of 3x3 kernels sees all of it."""
    flat, line = UNet(1, 1, 8, (1, 2), 1, (1,), 0.0).eval(), UNet(1, 1, 8, (1, 2), 1, (1,), 0.0, axes=1).eval()
    weights = {name: torch.randn_like(weight) / 8 for name, weight in flat.state_dict().items()}
    flat.load_state_dict(weights)
    line.load_state_dict({n: w[:, :, 1:2] if w.shape[2:] == (3, 3) else w for n, w in weights.items()})
    u, k = torch.randn(2, 1, 12), torch.tensor([1, 4])
    torch.testing.assert_close(line(u, k), flat(u[:, :, None], k)[:, :, 0])
