from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFilter

from ihdm.config import Config
from ihdm.errors import UsageError
from ihdm.heat import GridLaplacian
from ihdm.metrics.fidelity import psnr, ssim
from ihdm.model import Model
from ihdm.model_folder import ModelConfig
from ihdm.pixels import to_bytes, to_unit
from ihdm.processes import InverseHeat, LinearSkip, Spectrum
from ihdm.restoration import KINDS, ROUNDING, Guided, Restored, lift, nearest_level, observe
from ihdm.sampler import chain, last, reverse_step
from ihdm.schedule import Schedule

GRID = (16, 12)
LAPLACIAN = GridLaplacian(GRID)
SCHEDULE = Schedule(30, 10.0)


def spectrum(channels: int = 1) -> Spectrum:
    """A made-up one: power falls with frequency; with colours, along turned axes."""
    power = (0.05 / (0.05 - LAPLACIAN.eigenvalues)).expand(channels, *GRID) * 0.5 ** torch.arange(channels)[
        :, None, None
    ]
    axes = torch.linalg.qr(torch.randn(channels, channels, generator=torch.Generator().manual_seed(3)).double())[0]
    mean = torch.zeros(channels, *GRID, dtype=torch.float64)
    mean[:, 0, 0] = 0.5 * math.sqrt(math.prod(GRID))
    return Spectrum(mean, axes, power)


def process(channels: int = 1) -> InverseHeat:
    return InverseHeat(LAPLACIAN, SCHEDULE, 0.01, 0.0125, LinearSkip(LAPLACIAN, SCHEDULE, 0.01, spectrum(channels)))


def drawn(count: int, channels: int, generator: torch.Generator) -> torch.Tensor:
    """Images that have the spectrum exactly: normal coefficients."""
    known = spectrum(channels)
    along = known.power.sqrt() * torch.randn(count, channels, *GRID, generator=generator, dtype=torch.float64)
    return LAPLACIAN.from_spectrum(known.mean + torch.einsum("nc...,dc->nd...", along, known.axes))


def seen_through(u_0: torch.Tensor, width: float, generator: torch.Generator) -> torch.Tensor:
    """Blurred, with the noise of 8 bits."""
    noise = torch.randn(u_0.shape, generator=generator, dtype=torch.float64)
    return LAPLACIAN.dissipate(u_0, width**2 / 2) + ROUNDING * noise


def nothing(u, k):
    """A network that leaves everything to the linear skip."""
    return torch.zeros_like(u)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_linear_estimate_has_the_error_that_it_says(channels, generator):
    u_0, t = drawn(60, channels, generator), float(SCHEDULE.t[3])
    targets = torch.einsum(
        "nc...,cd->nd...", LAPLACIAN.to_spectrum(LAPLACIAN.dissipate(u_0, t)), spectrum(channels).axes
    )
    errors = []
    for target, y in zip(targets, seen_through(u_0, 2.0, generator)):
        seen = observe(process(channels), [spectrum(channels)], y, 2.0)
        assert (seen.kind, seen.noise) == ("Gaussian", pytest.approx(ROUNDING))
        estimate, variance = seen.predict(t)
        errors.append((estimate - target).square())
    assert float((torch.stack(errors).mean(0) / variance).mean()) == pytest.approx(1, abs=0.05)


def test_a_start_has_the_noise_of_its_level(generator):
    """Estimate minus truth and added noise together: delta where the image says enough, no less anywhere."""
    u_0 = drawn(1, 1, generator)
    y = seen_through(u_0, 3.0, generator)[0]
    k = nearest_level(SCHEDULE.sigma_B, 3.0)
    t = float(SCHEDULE.t[k])
    eps = torch.randn(400, 1, *GRID, generator=generator, dtype=torch.float64)
    states = observe(process(), [spectrum()], y, 3.0).start(t, eps, 0.0125)
    error = LAPLACIAN.to_spectrum(states - LAPLACIAN.dissipate(u_0, t))
    assert float(error.square().mean().sqrt()) == pytest.approx(0.0125, rel=0.05)


@pytest.mark.parametrize("width", [1.0, 2.0, 4.0])
def test_samples_blurred_again_are_the_image_that_was_given(width, generator):
    """With data that the linear skip explains fully there is nothing for a network to learn."""
    u_0 = drawn(1, 3, generator)
    y = seen_through(u_0, width, generator)[0]
    seen, k = observe(process(3), [spectrum(3)], y, width), nearest_level(SCHEDULE.sigma_B, width)
    eps = {j: torch.randn(20, 3, *GRID, generator=generator, dtype=torch.float64) for j in range(k + 1)}
    start = seen.start(float(SCHEDULE.t[k]), eps[0], 0.0125)

    def end(guide):
        return last(chain(reverse_step(guide, nothing, lambda j: eps[int(j)]), start, k))

    held, free = end(Guided(process(3), seen)), end(process(3))
    assert seen.residual(held) < 1 / 255 < seen.residual(free)
    torch.testing.assert_close(seen.blurred(held), LAPLACIAN.dissipate(held, width**2 / 2))
    assert (held - u_0).square().mean() < (free - u_0).square().mean()


def test_the_pull_is_the_average_by_precision(generator):
    """For a coefficient known exactly it ends where the image says; for one that says nothing it stays."""
    u_0 = drawn(1, 1, generator)
    seen = observe(process(), [spectrum()], seen_through(u_0, 3.0, generator)[0], 3.0)
    u_k, k = torch.randn(1, 1, *GRID, generator=generator, dtype=torch.float64), torch.tensor([9])
    mu = process().mean(nothing, u_k, k)
    sharp = Guided(process(), replace(seen, N=torch.full_like(seen.N, 1e-22))).mean(nothing, u_k, k)
    implied = seen.y_hat[0] * torch.exp(SCHEDULE.t[8] * LAPLACIAN.eigenvalues) / seen.T
    strong = seen.T > 1e-4
    torch.testing.assert_close(LAPLACIAN.to_spectrum(sharp)[0, 0][strong], implied[strong])
    torch.testing.assert_close(Guided(process(), replace(seen, N=seen.N * 1e20)).mean(nothing, u_k, k), mu)
    P, E = spectrum().power[0], [torch.exp(SCHEDULE.t[j] * LAPLACIAN.eigenvalues) for j in (8, 9)]
    v, r = P * E[0] ** 2 * 1e-4 / (P * E[1] ** 2 + 1e-4), seen.N[0] * E[0] ** 2 / seen.T**2
    mu_hat = LAPLACIAN.to_spectrum(mu)[0, 0]
    pulled = LAPLACIAN.to_spectrum(Guided(process(), seen).mean(nothing, u_k, k))[0, 0]
    torch.testing.assert_close(pulled[strong], (mu_hat + v / (v + r) * (implied - mu_hat))[strong])


SIDE = 28


@pytest.fixture(scope="module")
def shapes() -> torch.Tensor:
    """White strokes and rings on black, uint8."""
    rng, images = np.random.default_rng(0), []
    for _ in range(220):
        page = Image.new("L", (4 * SIDE, 4 * SIDE))
        for draw in (ImageDraw.Draw(page).line, ImageDraw.Draw(page).arc):
            (left, right), (top, bottom) = np.sort(rng.integers(20, 92, (2, 2)), axis=1).tolist()
            box = (left, top, right + 4, bottom + 4)
            draw(box, fill=255, width=10) if draw.__name__ == "line" else draw(box, 0, 330, fill=255, width=10)
        images.append(np.asarray(page.reduce(4)))
    return torch.from_numpy(np.stack(images))[:, None]


@pytest.fixture(scope="module", params=["linear", "identity"])
def shapes_model(request, shapes) -> Model:
    """Untrained: with the linear skip, it still is the best linear one."""
    config = Config().with_settings(
        [
            *(f"process.skip={request.param}", "process.K=30", "network.channels=8"),
            *("network.multipliers=1,2", "network.attention=1", "network.blocks=1"),
        ]
    )
    return Model.from_images(ModelConfig(config.process, config.network, (1, SIDE, SIDE)), shapes[20:]).eval()


def by_heat(image: torch.Tensor, width: float) -> torch.Tensor:
    blurred = GridLaplacian((SIDE, SIDE)).dissipate(to_unit(image)[None].double(), width**2 / 2)[0]
    return to_unit(to_bytes(blurred))


def by_pillow(image: torch.Tensor, width: float) -> torch.Tensor:
    blurred = Image.fromarray(image[0].numpy()).filter(ImageFilter.GaussianBlur(width))
    return to_unit(torch.from_numpy(np.array(blurred)))[None]


@pytest.mark.parametrize("blur", [by_heat, by_pillow])
@pytest.mark.parametrize("width", [1.0, 3.0, 6.0])
def test_the_blur_width_is_estimated(shapes_model, shapes, blur, width):
    found = [shapes_model.observation(blur(image, width)).width for image in shapes[:3]]
    known = shapes_model.config.process.skip == "linear"  # the spectrum of the data; else it is guessed
    assert float(np.median(found)) == pytest.approx(width, rel=0.15 if known else 0.3)


def test_an_image_that_is_sharp_is_left_as_it_is(shapes_model, shapes):
    image = to_unit(shapes[0])
    restored = shapes_model.restore(image, 2, blur_width=0.0)
    assert restored.seen.level == 0 and psnr(restored.images, image[None]).min() > 40
    assert shapes_model.observation(image).width < 0.6


@pytest.mark.parametrize("width", [0.7, 2.3, 6.0])
def test_three_boxes_are_pillows_blur(shapes, width):
    """Up to its rounding, which it does six times."""
    rows, laplacian = KINDS["three boxes"](SIDE, width), GridLaplacian((SIDE, SIDE))
    blurred = laplacian.from_spectrum(rows @ laplacian.to_spectrum(to_unit(shapes[:4]).double()) @ rows.mT)
    expected = torch.stack([by_pillow(image, width) for image in shapes[:4]])
    assert (blurred - expected).abs().max() < 2.5 / 255


def test_levels_are_chosen_on_a_logarithmic_scale():
    sigma_B = torch.tensor([0.0, 0.5, 1.0, 2.0, 8.0])
    widths = {0.0: 0, 0.24: 0, 0.26: 1, 0.7: 1, 0.72: 2, 1.42: 3, 3.9: 3, 4.1: 4, 8.0: 4}
    assert {width: nearest_level(sigma_B, width) for width in widths} == widths


@pytest.mark.parametrize("factor", [2, 4])
def test_a_small_image_is_lifted_to_what_it_is_blurred(shapes, factor):
    """Area averages, brought to the grid, are the blurred image but for what they mix in, which is little."""
    laplacian = GridLaplacian((SIDE, SIDE))
    small = torch.nn.functional.avg_pool2d(to_unit(shapes[:20]), factor)
    for image, u_0 in zip(small, to_unit(shapes[:20])):
        lifted, width = lift(image, (SIDE, SIDE))
        error = lifted - laplacian.dissipate(u_0[None], width**2 / 2)[0]
        assert float(error.square().mean().sqrt()) < 1 / 255
        beyond = laplacian.to_spectrum(error[None])[..., SIDE // factor :, :]
        assert float(beyond.abs().max()) < 0.01  # the noise of the process
    smooth = laplacian.dissipate(to_unit(shapes[:1]).double(), (2.0 * factor) ** 2 / 2)  # no frequencies to mix in
    lifted, width = lift(torch.nn.functional.avg_pool2d(smooth, factor)[0], (SIDE, SIDE))
    torch.testing.assert_close(lifted, laplacian.dissipate(smooth, width**2 / 2)[0], atol=1e-4, rtol=0)


def test_restoring_is_the_same_in_any_batch_and_ends_in_the_samples(shapes_model, shapes):
    y = by_heat(shapes[0], 2.0)
    restored = shapes_model.restore(y, 5, seed=3, blur_width=2.0)
    again = shapes_model.restore(y, 5, seed=3, blur_width=2.0, batch_size=2)
    torch.testing.assert_close(restored.images, again.images, atol=1e-5, rtol=0)
    states = list(shapes_model.restoring(restored.seen, 5, seed=3))
    assert [k for k, _ in states] == list(range(restored.seen.level, -1, -1)) and states[0][1].shape == (
        5,
        1,
        SIDE,
        SIDE,
    )
    torch.testing.assert_close(states[-1][1].clamp(0, 1), restored.images, atol=1e-5, rtol=0)
    assert len({image.numpy().tobytes() for image in restored.images}) == 5
    assert restored.images.min() >= 0 and restored.images.max() <= 1 and restored.seen.width == 2.0
    free = shapes_model.restore(y, 5, seed=3, blur_width=2.0, consistent=False)
    assert not torch.equal(free.images, restored.images)


def test_a_model_holds_its_samples_to_the_image(shapes_model, shapes):
    y = by_heat(shapes[1], 2.0)
    seen = shapes_model.observation(y, 2.0)
    states = dict(shapes_model.restoring(seen, 4))
    assert seen.residual(states[0]) < 1 / 255
    assert psnr(states[0], to_unit(shapes[1])[None]).min() > psnr(y[None], to_unit(shapes[1])[None]).max() + 3


def test_mean_and_spread(shapes_model, shapes):
    seen = shapes_model.observation(by_heat(shapes[0], 2.0), 2.0)
    images = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1)
    assert Restored(images, seen).mean.item() == 0.5
    assert Restored(images, seen).spread.item() == pytest.approx(math.sqrt(0.5))
    assert Restored(images[:1], seen).spread.item() == 0


def test_what_cannot_be_restored_is_refused(shapes_model, shapes, tiny_config, tiny_images):
    y = by_heat(shapes[0], 2.0)
    for width in (-1.0, math.nan, math.inf, 22.0):
        with pytest.raises(UsageError, match="from 0 to 21 pixels"):
            shapes_model.observation(y, width)
    for image in (y[:, :-1], y.expand(3, -1, -1), shapes[0]):
        with pytest.raises(UsageError, match="1x28x28"):
            shapes_model.restore(image)
    for image in (y * 255, y * math.nan):
        with pytest.raises(UsageError, match=r"outside of \[0, 1\]"):
            shapes_model.restore(image)
    with pytest.raises(UsageError, match="cannot make 0"):
        shapes_model.restore(y, 0)
    for setting in (["process.kind=ddpm"], ["process.blur=gaussian"]):
        config = tiny_config.with_settings(["process.skip=identity", *setting])
        other = Model.from_images(ModelConfig(config.process, config.network, tiny_images.shape), tiny_images.train)
        for call in (other.restore, other.observation):
            with pytest.raises(UsageError, match="heat equation"):
                call(to_unit(tiny_images.train[0]))


def test_fidelity_on_what_is_known(shapes):
    u = to_unit(shapes[:3])
    assert psnr(u + 0.1, u).tolist() == pytest.approx([20, 20, 20], abs=1e-3)
    assert ssim(u, u).tolist() == pytest.approx([1, 1, 1])
    noisy = (u + 0.2 * torch.randn(u.shape, generator=torch.Generator().manual_seed(0))).clamp(0, 1)
    image = pytest.importorskip("torchmetrics.functional.image")
    theirs = image.structural_similarity_index_measure(noisy, u, data_range=1.0, reduction="none")
    torch.testing.assert_close(ssim(noisy, u), theirs, atol=0.05, rtol=0)  # they leave out the border
