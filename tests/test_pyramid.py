"""Coarse levels on small grids: the crop, who is seen at which depth, the network, and where it is refused."""

from __future__ import annotations

import math
from types import SimpleNamespace

import laws
import pytest
import torch
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode

from ihdm import evaluation, execution
from ihdm.config import load_config
from ihdm.constant import Constant
from ihdm.errors import UsageError
from ihdm.execution import Execution
from ihdm.heat import GridLaplacian, between_axes, smaller
from ihdm.model import Model
from ihdm.model_folder import ModelConfig
from ihdm.networks import pyramid, unet
from ihdm.networks.pyramid import by_counts, by_levels, counts, cropped, embedded
from ihdm.networks.unet import UNet
from ihdm.processes import Process
from ihdm.trainer import Trainer

GRIDS = [(8, 8), (9, 14), (5, 1)]
K, FIRST = 40, (15, 25)


def cosine(grid, frequency) -> torch.Tensor:
    """cos(pi m (i + 1/2) / H) cos(pi n (j + 1/2) / W), whatever the grid."""
    waves = [torch.cos(math.pi * m * (torch.arange(n).double() + 0.5) / n) for n, m in zip(grid, frequency)]
    return torch.outer(*waves)[None, None]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("grid", GRIDS)
def test_low_waves_are_the_same_waves_on_the_smaller_grid_and_high_ones_nothing(grid, depth):
    small = smaller(grid, depth)
    for frequency in [(m, n) for m in range(grid[0]) for n in range(grid[1])]:
        low = all(m < n for m, n in zip(frequency, small))
        expected = cosine(small, frequency) if low else torch.zeros(1, 1, *small).double()
        torch.testing.assert_close(cropped(cosine(grid, frequency), depth), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("grid", [*GRIDS, (2, 1025)])
def test_an_answer_keeps_its_coefficients_and_has_no_others(grid):
    answer = torch.randn(2, 3, *smaller(grid, 1), dtype=torch.float64)
    found, expected = GridLaplacian(grid).to_spectrum(embedded(answer, grid)), torch.zeros(2, 3, *grid).double()
    height, width = answer.shape[2:]
    expected[..., :height, :width] = GridLaplacian((height, width)).to_spectrum(answer)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


def test_no_matrix_is_as_large_as_a_long_sound():
    before = between_axes.cache_info().currsize
    sound, grid = torch.randn(1, 1, 1, 2**10, dtype=torch.float64), (1, 2**11)
    torch.testing.assert_close(cropped(embedded(sound, grid), 1) * math.sqrt(2), sound, atol=1e-12, rtol=0)
    assert between_axes.cache_info().currsize == before


def depth_of(level: int) -> int:
    return sum(level >= first for first in FIRST)


def test_images_are_found_by_their_levels():
    k = torch.tensor([30, 1, 15, 14, 24, 25, 40])
    parts = {part.depth: part.rows.tolist() for part in by_levels(k, FIRST)}
    assert parts == {0: [1, 3], 1: [2, 4], 2: [0, 5, 6]}
    assert by_levels(torch.tensor([16, 20]), FIRST) == [(None, 1)]
    assert by_levels(k, ()) == [(None, 0)]
    assert by_levels(k.to("meta"), FIRST) == [(None, 0)]  # memory is counted for the whole grid


@pytest.mark.parametrize("batch", [12, 16, 31, 64])
@pytest.mark.parametrize(("ranks", "accumulate"), [(1, 1), (2, 1), (1, 3), (1, 4), (2, 3)])
def test_by_counts_none_is_seen_at_a_greater_depth_than_its_level_allows(batch, ranks, accumulate):
    generator, missed = torch.Generator().manual_seed(0), 0
    for _ in range(100):
        k, _ = Process.draw(SimpleNamespace(K=K), (ranks * batch, 1), generator)
        for rank in range(ranks):
            for part in range(accumulate):
                own = k[rank::ranks][part::accumulate]
                depths = torch.zeros_like(own)
                for rows, depth in by_counts(own, K, FIRST):
                    depths[rows] = depth
                allowed = torch.tensor([depth_of(level) for level in own.tolist()])
                assert bool((depths <= allowed).all())
                assert depths.bincount(minlength=3).tolist() == counts(len(own), K, FIRST)
                missed = max(missed, int((depths < allowed).sum()))
    assert missed <= 3 * len(FIRST)  # as few as can be known beforehand, but for one or two


def awake(**options) -> UNet:
    torch.manual_seed(0)
    options = {"channels": 8, "multipliers": (1, 2, 3), "blocks": 1, "attention": (2,), "pyramid": FIRST} | options
    network = UNet(2, 2, **options)
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    return network.eval()


@pytest.mark.parametrize("resample", ["pool", "conv"])
@pytest.mark.parametrize("grid", [(8, 8), (9, 14), (1, 5)])
def test_a_network_neither_sees_nor_says_anything_beyond_its_grid(grid, resample):
    network, laplacian = awake(resample=resample), GridLaplacian(grid)
    u, k = torch.randn(3, 2, *grid), torch.tensor([1, 15, 25])
    answer = network(u, k).detach()
    for row, depth in enumerate((0, 1, 2)):
        inside = torch.zeros(grid, dtype=torch.bool)
        inside[tuple(slice(n) for n in smaller(grid, depth))] = True
        said = laplacian.to_spectrum(answer[row : row + 1])
        assert float(said[..., inside].abs().max()) > 1e-3
        assert said[..., ~inside].abs().sum() < 1e-3
        other = laplacian.from_spectrum(laplacian.to_spectrum(u[row : row + 1]) + 3 * torch.randn(grid) * ~inside)
        torch.testing.assert_close(network(other, k[row : row + 1])[0], answer[row], atol=1e-4, rtol=1e-4)
    blind = awake(resample=resample)
    blind.load_state_dict(network.state_dict())
    blind.pyramid = ()
    torch.testing.assert_close(blind(u[:1], k[:1]), answer[:1])  # at fine levels nothing has changed
    assert not torch.allclose(blind(u[2:], k[2:]), answer[2:], atol=1e-3)


def test_a_mixed_batch_is_answered_image_by_image():
    network, u, k = awake(), torch.randn(6, 2, 8, 8), torch.tensor([30, 1, 15, 40, 14, 20])
    single = [network(u[n : n + 1], k[n : n + 1], depth=depth_of(int(k[n]))) for n in range(6)]
    torch.testing.assert_close(network(u, k), torch.cat(single), atol=1e-5, rtol=1e-4)


def test_finer_blocks_are_left_out_and_the_others_are_shared():
    network = awake()
    for depth, (stem, head) in enumerate(zip([network.stem, *network.stems], [network.head, *network.heads])):
        network.zero_grad()
        network(torch.randn(2, 2, 8, 8), torch.tensor([1, 2]), depth=depth).square().sum().backward()
        used = [weight.grad is not None for block in network.down for weight in block.parameters()]
        assert sum(used) < len(used) if depth else all(used)
        assert all(weight.grad.any() for weight in [stem.weight, head.weight, *network.middle.parameters()])
        assert sum(layer.weight.grad is not None for layer in [network.stem, *network.stems]) == 1


def test_without_a_pyramid_there_are_no_other_weights_and_no_other_draws():
    one, other = awake(pyramid=()), awake()
    assert set(other.state_dict()) - set(one.state_dict()) == {
        f"{name}.{n}.{kind}" for name in ("stems", "head_norms", "heads") for n in (0, 1) for kind in ("weight", "bias")
    }
    assert not one(torch.randn(1, 2, 8, 8), torch.tensor([1])).isnan().any()


def test_in_bfloat16_small_images_are_not_rounded_before_their_noise_is_seen():
    """At a quarter of the size noise is a quarter, and near what bfloat16 rounds away beside the image's grey."""
    stem, u = awake().stems[1].bfloat16(), 0.7 + 0.01 * torch.randn(8, 2, 32, 32)
    stem.weight.data = torch.randint(-3, 4, stem.weight.shape).bfloat16()
    stem.weight.data[:, :, 1, 1] -= stem.weight.data.sum((2, 3))  # a filter that does not see grey, in exact numbers
    exact, rounded = (
        torch.nn.functional.conv2d(seen, stem.weight.float())  # away from the border
        for seen in (cropped(u, 2), cropped(u, 2).bfloat16().float())
    )
    found = (stem(u.bfloat16(), 2).float() - stem.bias[:, None, None])[..., 1:-1, 1:-1]
    assert (found - exact).norm() < 0.12 * exact.norm() and (rounded - exact).norm() > 0.3 * exact.norm()


@pytest.fixture
def trained(tiny_config, tiny_images) -> Model:
    """A model with random weights, that sees levels from 5 on, of 10, at 4x4."""
    torch.manual_seed(0)
    config = tiny_config.with_settings(["network.pyramid=5"])
    model = Model.from_images(ModelConfig.of(config, tiny_images.shape), tiny_images.train)
    for weight in model.network.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    return model.eval()


def blind(*arguments):
    raise AssertionError("a recording looked at levels")


def test_training_does_not_look_at_levels(tiny_config, tiny_images, tmp_path, monkeypatch):
    """As it must not while it is recorded: neither by this function nor, in the second part, at all."""
    monkeypatch.setattr(unet, "by_levels", blind)
    trainer = Trainer(tiny_config.with_settings(["network.pyramid=5"]), tiny_images, tmp_path / "run")
    loss, norm = trainer.train_step()
    assert bool(loss.isfinite() and norm > 0)
    assert all(weight.grad is not None for weight in trainer.model.network.parameters())
    monkeypatch.undo()

    network, k = awake(), torch.arange(1, 41)
    cropped(torch.randn(1, 2, 8, 8), 1), cropped(torch.randn(1, 2, 8, 8), 2)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        u, k = mode.from_tensor(torch.randn(40, 2, 8, 8)), mode.from_tensor(k)
        network.train().expect_levels(K, 40)
        assert network(u, k).shape == u.shape
        assert network.eval()(u, k, depth=1).shape == u.shape
        with pytest.raises(DynamicOutputShapeException):
            network(u, k)


def test_parts_of_a_batch_are_spread_over_all_levels(tiny_config, tiny_images, tmp_path, monkeypatch):
    """As `by_counts` needs it."""
    seen = []

    def watched(k, K, first):
        seen.append((k, by_counts(k, K, first)))
        return seen[-1][1]

    monkeypatch.setattr(unet, "by_counts", watched)
    config = tiny_config.with_settings(["network.pyramid=5", "trainer.batch_size=25", "trainer.accumulate=3"])
    trainer = Trainer(config, tiny_images, tmp_path / "run")
    for trainer.step in range(10):
        trainer.train_step()
    assert len(seen) == 30
    for k, parts in seen:
        assert all(bool((k[rows] >= 5).all()) for rows, depth in parts if depth == 1)


def test_constants_that_sampling_made_first_serve_training():
    constant, weight = Constant(torch.ones(2)), torch.ones(2, requires_grad=True)
    with torch.inference_mode():
        constant.like(weight)
    (constant.like(weight) * weight).sum().backward()
    assert weight.grad.tolist() == [1, 1]


def test_recorded_sampling_has_a_recording_for_each_depth(trained, monkeypatch):
    plain, made = trained.sample(5, seed=3, execution=Execution(compiled=False)), []

    def recorded(work, device):
        made.append(device)

        def replayed(*inputs):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(unet, "by_levels", blind)
                return work(*inputs)

        return replayed

    monkeypatch.setattr(execution, "recorded", recorded)
    torch.testing.assert_close(trained.sample(5, seed=3, execution=Execution(batch_size=2)), plain)
    assert len(made) == 2


def test_bounds_of_levels_that_differ_are_those_of_each_image(trained, tiny_images):
    images = tiny_images.train[:6]
    found = [
        evaluation.likelihood(trained, images, levels=3, execution=Execution(batch_size=size)).bounds[0].total
        for size in (6, 1)
    ]
    torch.testing.assert_close(*found, rtol=1e-4, atol=0)


def test_too_few_images_for_a_depth_are_refused(tiny_config, tiny_images, tmp_path):
    for settings in (["network.pyramid=11"], ["network.pyramid=5", "trainer.accumulate=4"]):
        with pytest.raises(UsageError, match="take larger batches"):
            Trainer(tiny_config.with_settings(settings), tiny_images, tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["process.skip=identity"], "process.skip=linear"),
        (["process.kind=ddpm"], "process.skip=linear"),
        (["process.kind=cold"], "process.skip=linear"),
        (["process.kind=blurring", "process.skip=plain"], "process.skip=linear"),
        (["network.pyramid=6,5"], "must grow"),
        (["network.pyramid=5,6,7"], "gives only 1"),
        (["network.pyramid=0"], "at least 1"),
    ],
)
def test_a_pyramid_that_cannot_be_is_refused(tiny_config, settings, words):
    with pytest.raises(UsageError, match=words):
        tiny_config.with_settings(["network.pyramid=5", *settings])


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, cases in laws.CASES.items() for name in cases])
def test_only_linear_skips_do_without_what_the_network_does_not_say(kind, name):
    """On Gaussian data, with the best network: at a coarse level its high frequencies are left out."""
    case = laws.CASES[kind][name]()
    lowest = torch.zeros(laws.GRID).double()
    lowest[tuple(slice(n) for n in smaller(laws.GRID, 1))] = 1

    def small(u, k):
        return laws.LAPLACIAN.from_spectrum(lowest * laws.LAPLACIAN.to_spectrum(case.network(u, k)))

    whole, without = (
        case.process.loss(network, laws.draws(200), torch.full((200,), case.process.K), laws.white(200, 1)).mean()
        for network in (case.network, small)
    )
    if case.process.predicts_alone(SimpleNamespace(skip="linear" if "linear" in name else "plain")):
        torch.testing.assert_close(without, whole)
    else:
        assert without > 1.0001 * whole  # of soft diffusion little more: it is judged after it was blurred again


def test_models_from_before_there_were_pyramids_load():
    assert load_config("mnist").network.pyramid == ()
    assert Model.from_pretrained("mnist-ready").network.pyramid == ()
    assert pyramid.parts_of(torch.nn.Linear(1, 1), torch.ones(2)) == [(None, None)]
