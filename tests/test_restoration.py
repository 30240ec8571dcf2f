from __future__ import annotations

import copy
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from safetensors.torch import save
from torch import nn

from ihdm.blurs import KINDS, axis_blur, sampled
from ihdm.cli import main
from ihdm.config import Config
from ihdm.disk import load_tensors
from ihdm.errors import IhdmError, UsageError
from ihdm.execution import Execution
from ihdm.familiar import Familiar, overheard
from ihdm.heat import GridLaplacian
from ihdm.judgement import ALLOWED, vertex
from ihdm.metrics.fidelity import psnr, ssim
from ihdm.model import Model
from ihdm.model_folder import CONFIG, FAMILIAR, READER, ModelConfig, read_calibrated, shipped
from ihdm.pixels import to_bytes, to_unit
from ihdm.processes import InverseHeat, LinearPredictor, LinearSkip, Spectrum
from ihdm.processes.inverse_heat import HeatSampling
from ihdm.restoration import (
    ROUNDING,
    Guess,
    Guided,
    Observation,
    Restored,
    lift,
    nearest_level,
    observation,
    observe,
)
from ihdm.restorer import Restorer
from ihdm.run import locked
from ihdm.sampler import chain, last, reverse_step
from ihdm.schedule import Schedule
from ihdm.studies.strangers import by_pillow, by_scipy
from ihdm.trainer import Trainer

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


def process(channels: int = 1, **sampling) -> InverseHeat:
    known = spectrum(channels)
    skip = LinearSkip(LinearPredictor(LAPLACIAN, SCHEDULE, 0.01, known))
    return InverseHeat(LAPLACIAN, SCHEDULE, 0.01, skip, HeatSampling(**sampling), spectra=(known,))


def guided(process: InverseHeat, seen: Observation) -> InverseHeat:
    return process.guided(Guided(process, seen))


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
        seen = observe(process(channels), y, 2.0)
        assert (seen.kind, seen.noise) == ("Gaussian", pytest.approx(ROUNDING))
        estimate, variance = seen.predict(t)
        errors.append((estimate - target).square())
    assert float((torch.stack(errors).mean(0) / variance).mean()) == pytest.approx(1, abs=0.05)


@pytest.mark.parametrize("sampler, noise", [("paper", 0.0125), ("exact", 0.01)])
def test_a_start_has_the_noise_of_its_level(sampler, noise, generator):
    """Estimate minus truth and added noise together: delta, or sigma in exact steps, where the image says enough."""
    u_0 = drawn(1, 1, generator)
    y = seen_through(u_0, 3.0, generator)[0]
    k = nearest_level(SCHEDULE.sigma_B, 3.0)
    t = float(SCHEDULE.t[k])
    eps = torch.randn(400, 1, *GRID, generator=generator, dtype=torch.float64)
    seen = observe(process(), y, 3.0)
    states = seen.start(process(sampler=sampler), eps)
    error = LAPLACIAN.to_spectrum(states - LAPLACIAN.dissipate(u_0, t))
    assert seen.level == k
    assert float(error.square().mean().sqrt()) == pytest.approx(noise, rel=0.05)


class Restoring:
    """An image of data that the linear skip explains fully, so that there is nothing for a network to learn."""

    def __init__(self, width: float, generator: torch.Generator, n: int = 20):
        self.u_0 = drawn(1, 3, generator)
        self.y = seen_through(self.u_0, width, generator)[0]
        self.seen = observe(process(3), self.y, width)
        levels = range(SCHEDULE.K + 1)
        self.eps = {j: torch.randn(n, 3, *GRID, generator=generator, dtype=torch.float64) for j in levels}

    def end(self, guide: InverseHeat, noise=None) -> torch.Tensor:
        """Samples, begun with the same noise, and with the same in every step unless another is given."""
        step = reverse_step(guide, nothing, noise or (lambda j: self.eps[int(j)]))
        start = self.seen.start(guide, self.eps[0])
        return last(chain(guide, step, start, guide.levels(self.seen.level)))

    def held(self, noise=None, **sampling) -> torch.Tensor:
        return self.end(guided(process(3, **sampling), self.seen), noise)


@pytest.mark.parametrize("width", [1.0, 2.0, 4.0])
def test_samples_blurred_again_are_the_image_that_was_given(width, generator):
    case = Restoring(width, generator)
    seen, u_0, held, free = case.seen, case.u_0, case.held(), case.end(process(3))
    assert seen.residual(held) < 1 / 255 < seen.residual(free)
    torch.testing.assert_close(seen.blurred(held), LAPLACIAN.dissipate(held, width**2 / 2))
    assert (held - u_0).square().mean() < (free - u_0).square().mean()


@pytest.mark.parametrize("width", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("steps", [None, 5, 2, 1])
@pytest.mark.parametrize("eta, order", [(0.0, 1), (0.0, 2), (0.5, 2), (1.0, 1), (1.0, 2)])
@pytest.mark.parametrize("corrected", [False, True])
def test_few_exact_steps_hold_samples_to_the_image_as_well(width, steps, eta, order, corrected, generator):
    case = Restoring(width, generator)
    exact = {"sampler": "exact", "steps": steps, "eta": eta, "order": order, "corrected": corrected}
    guide = process(3, **exact)
    assert len(guide.levels(case.seen.level)) == 1 + min(steps or case.seen.level, case.seen.level)
    held, free, paper = case.held(**exact), case.end(guide), case.held()
    assert case.seen.residual(held) < min(1 / 255, 1.02 * case.seen.residual(paper))
    assert case.seen.residual(held) < case.seen.residual(free)
    estimate, variance = case.seen.deconvolved(), case.seen.predict(0.0)[1].mean()
    assert (held.mean(0) - estimate).square().mean() < 0.1 * variance  # of twenty samples: a twentieth is chance


@pytest.mark.parametrize("width", [2.0, 4.0])
def test_by_exact_steps_of_second_order_samples_differ_nearly_as_they_should(width, generator):
    """The posterior of normal data is known: its mean is Wiener's estimate. The paper's steps show less than it has."""
    case = Restoring(width, generator, n=200)
    estimate, variance = case.seen.deconvolved(), case.seen.predict(0.0)[1].mean()

    def share(held):
        assert (held.mean(0) - estimate).square().mean() < 0.02 * variance
        return float(held.var(0).mean() / variance)

    paper = share(case.held())
    assert 0.5 < paper < 0.75
    assert 0.25 < share(case.held(sampler="exact", steps=5)) < 1.05
    for eta in (0.0, 0.5, 1.0):
        assert 0.85 < share(case.held(sampler="exact", eta=eta)) < 1.05


@pytest.mark.parametrize("steps", [None, 5])
def test_without_fresh_noise_the_start_decides_everything(steps, generator):
    case = Restoring(2.0, generator)
    other = {j: torch.randn(eps.shape, generator=generator, dtype=torch.float64) for j, eps in case.eps.items()}
    ends = {
        eta: [case.held(noise, sampler="exact", steps=steps, eta=eta) for noise in (None, lambda j: other[int(j)])]
        for eta in (0.0, 1.0)
    }
    torch.testing.assert_close(*ends[0.0], rtol=0, atol=1e-12)
    assert (ends[1.0][0] - ends[1.0][1]).abs().max() > 0.01
    assert ends[0.0][0].std(0).mean() > 0.003  # but each of the twenty starts has an end of its own


def test_the_pull_is_the_average_by_precision(generator):
    """For a coefficient known exactly it ends where the image says; for one that says nothing it stays."""
    u_0 = drawn(1, 1, generator)
    seen = observe(process(), seen_through(u_0, 3.0, generator)[0], 3.0)
    u_k, k = torch.randn(1, 1, *GRID, generator=generator, dtype=torch.float64), torch.tensor([9])
    mu = process().mean(nothing, u_k, k)
    sharp = guided(process(), replace(seen, N=torch.full_like(seen.N, 1e-22))).mean(nothing, u_k, k)
    implied = seen.y_hat[0] * torch.exp(SCHEDULE.t[8] * LAPLACIAN.eigenvalues) / seen.T
    strong = seen.T > 1e-4
    torch.testing.assert_close(LAPLACIAN.to_spectrum(sharp)[0, 0][strong], implied[strong])
    torch.testing.assert_close(guided(process(), replace(seen, N=seen.N * 1e20)).mean(nothing, u_k, k), mu)
    pulled = LAPLACIAN.to_spectrum(guided(process(), seen).mean(nothing, u_k, k))[0, 0]
    average = by_precision(seen, LAPLACIAN.to_spectrum(mu)[0, 0], 9, 8)
    torch.testing.assert_close(pulled[strong], average[strong])
    exact, u_hat = process(sampler="exact"), LAPLACIAN.to_spectrum(u_k)
    for j in (8, 5, 1, 0):  # from level 9, in exact steps of any length
        free, held = (p.predict(nothing, u_k, u_hat, k, torch.tensor([j]))[0, 0] for p in (exact, guided(exact, seen)))
        torch.testing.assert_close(held[strong], by_precision(seen, free, 9, j)[strong])


def by_precision(seen, m_hat, k, j):
    """What is predicted of level j from level k, and what the image implies: their average."""
    P, E = spectrum().power[0], {i: torch.exp(SCHEDULE.t[i] * LAPLACIAN.eigenvalues) for i in (j, k)}
    v, r = P * E[j] ** 2 * 1e-4 / (P * E[k] ** 2 + 1e-4), seen.N[0] * E[j] ** 2 / seen.T**2
    return m_hat + v / (v + r) * (seen.y_hat[0] * E[j] / seen.T - m_hat)


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
    return Model.from_images(ModelConfig.of(config, (1, SIDE, SIDE)), shapes[20:]).eval()


def by_heat(image: torch.Tensor, width: float) -> torch.Tensor:
    blurred = GridLaplacian((SIDE, SIDE)).dissipate(to_unit(image)[None].double(), width**2 / 2)[0]
    return to_unit(to_bytes(blurred))


@pytest.mark.parametrize("blur", [by_heat, by_pillow])
@pytest.mark.parametrize("width", [1.0, 3.0, 6.0])
def test_the_blur_width_is_estimated(shapes_model, shapes, blur, width):
    found = [shapes_model.restorer().observation(blur(image, width)).width for image in shapes[:3]]
    known = shapes_model.config.process.skip == "linear"  # the spectrum of the data; else it is guessed
    assert float(np.median(found)) == pytest.approx(width, rel=0.15 if known else 0.3)


def test_an_image_that_is_sharp_is_left_as_it_is(shapes_model, shapes):
    image = to_unit(shapes[0])
    restored = shapes_model.restore(image, 2, blur_width=0.0)
    assert restored.seen.level == 0 and psnr(restored.images, image[None]).min() > 40
    assert shapes_model.restorer().observation(image).width < 0.6


@pytest.mark.parametrize("width", [0.7, 2.3, 6.0])
def test_three_boxes_are_pillows_blur(shapes, width):
    """Up to its rounding, which it does six times."""
    rows, laplacian = axis_blur("three boxes", SIDE, width).matrix, GridLaplacian((SIDE, SIDE))
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
    again = shapes_model.restore(y, 5, seed=3, blur_width=2.0, execution=Execution(batch_size=2))
    torch.testing.assert_close(restored.images, again.images, atol=1e-5, rtol=0)
    states = list(shapes_model.restorer().states(restored.seen, 5, seed=3))
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
    seen = shapes_model.restorer().observation(y, 2.0)
    states = dict(shapes_model.restorer().states(seen, 4))
    assert seen.residual(states[0]) < 1 / 255
    assert psnr(states[0], to_unit(shapes[1])[None]).min() > psnr(y[None], to_unit(shapes[1])[None]).max() + 3


@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
def test_a_model_holds_its_samples_in_exact_steps_of_any_number(shapes_model, shapes, eta):
    y, truth = by_heat(shapes[1], 2.0), to_unit(shapes[1])[None]
    seen = shapes_model.restorer().observation(y, 2.0)
    paper = dict(shapes_model.restorer().states(seen, 4))[0]
    ends = []
    for steps in (None, 5):
        states = dict(shapes_model.restorer().states(seen, 4, sampler="exact", steps=steps, eta=eta))
        visited = list(states)
        assert (visited[0], visited[-2:], len(visited)) == (seen.level, [1, 0], 1 + (steps or seen.level))
        assert seen.residual(states[0]) < min(1 / 255, 1.05 * seen.residual(paper))
        if shapes_model.config.process.skip == "linear":  # untrained, the other knows nothing of the images
            blurred = float(psnr(y[None], truth))
            assert psnr(states[0], truth).min() > blurred + 2  # less than by the paper's steps: samples differ more
            assert psnr(states[0].mean(0, keepdim=True), truth).min() > blurred + 3
        ends.append(states[0])
    assert not torch.equal(*ends) and not torch.equal(ends[0], paper)


def test_restoring_by_exact_steps_is_the_same_in_any_batch(shapes_model, shapes):
    y, exact = by_heat(shapes[0], 2.0), {"blur_width": 2.0, "sampler": "exact", "steps": 4, "eta": 0.5}
    restored = shapes_model.restore(y, 5, seed=3, **exact)
    again = shapes_model.restore(y, 5, seed=3, execution=Execution(batch_size=2), **exact)
    torch.testing.assert_close(restored.images, again.images, atol=1e-5, rtol=0)
    assert len({image.numpy().tobytes() for image in restored.images}) == 5
    quick = shapes_model.sampled(sampler="exact", steps=4, eta=0.5)  # restores by the paper's steps all the same
    paper = shapes_model.restore(y, 5, seed=3, blur_width=2.0)
    assert quick.restore(y, 5, seed=3, blur_width=2.0).images.equal(paper.images)
    assert quick.restore(y, 5, seed=3, blur_width=2.0, steps=4, eta=0.5).images.equal(restored.images)


def test_mean_and_spread(shapes_model, shapes):
    seen = shapes_model.restorer().observation(by_heat(shapes[0], 2.0), 2.0)
    images = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1)
    assert Restored(images, seen).mean.item() == 0.5
    assert Restored(images, seen).spread.item() == pytest.approx(math.sqrt(0.5))
    assert Restored(images[:1], seen).spread.item() == 0


def test_what_cannot_be_restored_is_refused(shapes_model, shapes, tiny_config, tiny_images):
    y = by_heat(shapes[0], 2.0)
    for width in (-1.0, math.nan, math.inf, 22.0):
        with pytest.raises(UsageError, match="from 0 to 21 pixels"):
            shapes_model.restorer().observation(y, width)
    for image in (y[:, :-1], y.expand(3, -1, -1), shapes[0]):
        with pytest.raises(UsageError, match="1x28x28"):
            shapes_model.restore(image)
    for image in (y * 255, y * math.nan):
        with pytest.raises(UsageError, match=r"outside of \[0, 1\]"):
            shapes_model.restore(image)
    for n in (0, 2.5):
        with pytest.raises(UsageError, match=f"n must be a whole number of at least 1, not {n}"):
            shapes_model.restore(y, n)
    given = {"uint8 of 1x28x28": np.zeros((1, 28, 28), np.uint8), "list": y.tolist(), r"str \(ihdm restore": "file.png"}
    for words, image in given.items():
        with pytest.raises(UsageError, match=f"as a tensor or a NumPy array, not {words}"):
            shapes_model.restore(image)
    others = {
        "process.kind=ddpm": "denoising diffusion cannot restore what is blurred",
        "process.blur=gaussian": "heat equation",
    }
    for setting, message in others.items():
        config = tiny_config.with_settings(["process.skip=identity"]).with_settings([setting])
        other = Model.from_images(ModelConfig.of(config, tiny_images.shape), tiny_images.train)
        for call in (other.restore, other.restorer().observation):
            with pytest.raises(UsageError, match=message):
                call(to_unit(tiny_images.train[0]))
    with pytest.raises(UsageError, match="take 5 exact steps"):
        shapes_model.restore(y, 1, blur_width=2.0, steps=5)
    with pytest.raises(UsageError, match="delta_ratio is for the sampler 'paper'"):
        shapes_model.restore(y, 1, blur_width=2.0, sampler="exact", delta_ratio=1.0)


@pytest.mark.parametrize("K", [1, 2, 3])
def test_a_model_of_few_levels_restores_and_is_judged_in_as_many_steps(K, tiny_config, tiny_images):
    config = tiny_config.with_settings([f"process.K={K}", "process.sigma_B_max=4"])
    model = Model.from_images(ModelConfig.of(config, tiny_images.shape), tiny_images.train)
    assert model.restorer().judge().process.levels() == list(range(K, -1, -1))
    image = GridLaplacian((8, 8)).dissipate(to_unit(tiny_images.train[:1]).double(), 3.0**2 / 2)[0]
    assert bool(model.restore(image, 2).images.isfinite().all())


def test_a_model_without_noise_restores_by_a_given_width(tiny_config, tiny_images, tmp_path, monkeypatch, capsys):
    """It cannot judge one, and is asked for none where nothing is to be judged."""
    settings = ["process.skip=identity", "process.sigma=0"]
    config = ModelConfig.of(tiny_config.with_settings(settings), tiny_images.shape, "blobs")
    model = Model.from_images(config, tiny_images.train)
    image = GridLaplacian((8, 8)).dissipate(to_unit(tiny_images.train[:1]).double(), 2.0**2 / 2)[0]
    found = model.restore(image, 2, blur_width=2.0, sampler="paper")
    assert bool(found.images.isfinite().all()) and found.seen.level > 0
    assert model.restore(to_unit(tiny_images.train[0]), 1).seen.level == 0  # by its spectrum alone
    monkeypatch.chdir(tmp_path)
    model.save_pretrained("model")
    Image.fromarray(to_bytes(image)[0].numpy()).save("blurred.png")
    restore = ["restore", "model", "blurred.png", "--n", "2", "--out", "new/restored"]
    main([*restore, "--blur-width", "2", "--sampler", "paper"])
    assert "was not calibrated" in capsys.readouterr().out and (tmp_path / "new/restored/01.png").exists()
    monkeypatch.setattr(Restorer, "states", lambda *_, **options: pytest.fail("work was begun"))
    with pytest.raises(SystemExit, match="2"):
        main([*restore[:-1], "other"])
    assert not (tmp_path / "other").exists()
    assert "needs the width of the blur (--blur-width, or" in capsys.readouterr().err
    np.savez("blobs.npz", train=tiny_images.train[:, 0].numpy(), test=torch.cat([tiny_images.train] * 2)[:, 0].numpy())
    with pytest.raises(SystemExit, match="2"):
        main(["calibrate", "model", "--data", "blobs.npz", "--n", "40"])
    assert "calibrating needs a model with noise" in capsys.readouterr().err


def test_an_array_is_restored_like_the_tensor(shapes_model, shapes):
    y = by_heat(shapes[0], 2.0).float()
    one = shapes_model.restore(y, 2, blur_width=2.0)
    for array in (y.numpy(), y.double().numpy(), np.asfortranarray(y.numpy()), y.numpy().astype(">f4")):
        assert shapes_model.restore(array, 2, blur_width=2.0).images.equal(one.images)
    mirrored = shapes_model.restorer().observation(y.numpy()[..., ::-1], 2.0)
    assert mirrored.image.equal(y.double().flip(-1))


def test_what_was_restored_is_shown_in_a_line(shapes_model, shapes):
    restorer = shapes_model.restorer()
    restored = restorer.restore(by_heat(shapes[0], 2.0), 2, blur_width=2.0)
    assert "(2, 1, 28, 28)" in repr(restored) and "width=2.0" in repr(restored)
    assert all(len(repr(shown)) < 200 for shown in (restored, restored.seen, restorer))


def test_fidelity_on_what_is_known(shapes):
    u = to_unit(shapes[:3])
    assert psnr(u + 0.1, u).tolist() == pytest.approx([20, 20, 20], abs=1e-3)
    assert ssim(u, u).tolist() == pytest.approx([1, 1, 1])
    noisy = (u + 0.2 * torch.randn(u.shape, generator=torch.Generator().manual_seed(0))).clamp(0, 1)
    image = pytest.importorskip("torchmetrics.functional.image")
    theirs = image.structural_similarity_index_measure(noisy, u, data_range=1.0, reduction="none")
    torch.testing.assert_close(ssim(noisy, u), theirs, atol=0.05, rtol=0)  # they leave out the border


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_blur_is_diagonal_between_bases_of_its_own(kind):
    blur = axis_blur(kind, 13, 2.2)
    for basis in (blur.left, blur.right):
        torch.testing.assert_close(basis.mT @ basis, torch.eye(13, dtype=torch.float64))
    if (pixels := KINDS[kind]) is not None:
        axis, u = GridLaplacian((13,)), torch.rand(1, 1, 13, dtype=torch.float64)
        expected = axis.to_spectrum(u @ pixels(13, 2.2).mT)
        torch.testing.assert_close(axis.to_spectrum(u) @ blur.matrix.mT, expected)


@pytest.mark.parametrize("border", ["reflect", "nearest", "constant", "mirror", "wrap"])
@pytest.mark.parametrize("width", [0.6, 3.0, 7.5])
def test_a_sampled_gaussian_is_scipys(border, width):
    ndimage = pytest.importorskip("scipy.ndimage")
    u = np.random.default_rng(0).random((21, 17))
    rows, columns = (sampled(n, width, border).numpy() for n in u.shape)
    np.testing.assert_allclose(rows @ u @ columns.T, ndimage.gaussian_filter(u, width, mode=border), atol=1e-12)
    eight_bit = (255 * u).astype(np.uint8)
    expected = to_unit(torch.from_numpy(ndimage.gaussian_filter(eight_bit, width, mode=border)))
    assert torch.equal(by_scipy(torch.from_numpy(eight_bit)[None], width, border)[0], expected)


@pytest.mark.parametrize("kind", list(KINDS))
def test_samples_under_any_blur_are_the_image_when_blurred_again(kind, generator):
    """The estimate and the pull are exact in a blur's own basis, whatever it does at the border."""
    u_0 = drawn(1, 1, generator)
    rows, columns = (axis_blur(kind, n, 2.0).matrix for n in GRID)
    noise = ROUNDING * torch.randn(1, *GRID, generator=generator, dtype=torch.float64)
    y = LAPLACIAN.from_spectrum(rows @ LAPLACIAN.to_spectrum(u_0) @ columns.mT)[0] + noise
    seen = observation(process(), y, Guess(0.0, 2.0, kind, ROUNDING, 0))
    eps = {j: torch.randn(10, 1, *GRID, generator=generator, dtype=torch.float64) for j in range(SCHEDULE.K + 1)}
    guide = guided(process(), seen)
    step = reverse_step(guide, nothing, lambda j: eps[int(j)])
    held = last(chain(guide, step, seen.start(guide, eps[0]), guide.levels(seen.level)))
    assert seen.residual(held) < 1 / 255
    assert (seen.deconvolved() - u_0[0]).square().mean() < 0.8 * (y - u_0[0]).square().mean()


def test_the_width_of_a_large_image_is_found_with_few_blurs():
    """Each has to be decomposed, which is what takes the time."""
    laplacian, schedule = GridLaplacian((256, 256)), Schedule(30, 128.0)
    power = (0.01 / (0.01 - laplacian.eigenvalues))[None]
    known = Spectrum(torch.zeros_like(power), torch.eye(1, dtype=torch.float64), power)
    large = InverseHeat(laplacian, schedule, 0.01, spectra=(known,))
    u_hat = power.sqrt() * torch.randn(1, 256, 256, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = laplacian.dissipate(laplacian.from_spectrum(u_hat[None]), 4.0**2 / 2)[0].clamp(-2, 2)
    axis_blur.cache_clear()
    assert observe(large, (255 * y).round() / 255).width == pytest.approx(4.0, rel=0.05)
    assert axis_blur.cache_info().misses < 45


@pytest.fixture(scope="module")
def digits() -> tuple[Model, torch.Tensor]:
    """The shipped model, and digits such as it knows: its own."""
    model = Model.from_pretrained("mnist")
    return model, to_bytes(model.sample(2, seed=4))


def test_the_network_finds_the_width_that_the_spectrum_cannot(digits):
    """With a width that is wrong by 3 %, digits come back as scribbles or stripes."""
    model, images = digits
    seen = replace(model.restorer().judge(), reader=None).observe(by_pillow(images[1], 3.6).double())
    assert seen.width == pytest.approx(3.6, rel=0.03) and seen.kind == "three boxes"
    low, high = seen.interval
    assert low < seen.width < high < 1.06 * low and seen.width_words == f"{low:.2f} to {high:.2f}"


def test_the_width_is_read_with_weights_of_any_type(digits):
    model, images = digits
    y = by_pillow(images[1], 3.6).double()
    wide = copy.deepcopy(model).double().restorer().settled(y)
    assert wide.width == model.restorer().settled(y).width


def test_pictures_that_the_model_does_not_know_are_told_from_those_that_it_does(digits):
    model, images = digits

    def verdict(image, width=2.0):
        y = to_unit(to_bytes(GridLaplacian((SIDE, SIDE)).dissipate(to_unit(image)[None], width**2 / 2)))[0]
        return model.restorer().verdict(model.restorer().observation(y, width))

    known = [verdict(image) for image in images]
    assert sum(one.unusual for one in known) <= 1 and "this looks like" in min(known, key=lambda v: v.unusual).words
    usual = images[[one.unusual for one in known].index(False)]
    negative = verdict(255 - usual)
    assert negative.unusual and negative.inverted and "does not look like what the model knows" in negative.words
    noise = torch.randint(0, 256, images[0].shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for stranger in (noise, torch.zeros_like(noise)):
        found = verdict(stranger)
        assert found.unusual and not found.inverted


def test_what_to_do_about_a_negative_depends_on_whether_one_was_asked_for(digits, tmp_path, capsys):
    _, images = digits
    blurred = to_bytes(by_heat(images[1], 3.0))[0].numpy()
    Image.fromarray(blurred).save(tmp_path / "digit.png")
    Image.fromarray(255 - blurred).save(tmp_path / "negative.png")
    how = ["--blur-width", "3", "--n", "1", "--sampler", "exact", "--steps", "4", "--out", str(tmp_path / "out")]
    for name, options, advice in (
        ("negative", [], "; its negative does: try --invert"),
        ("digit", ["--invert"], "; the image itself does: leave out --invert"),
    ):
        main(["restore", "mnist-ready", str(tmp_path / f"{name}.png"), *how, *options])
        assert capsys.readouterr().out.splitlines()[-2].endswith(advice)


def test_only_a_users_own_model_is_calibrated_and_not_while_it_is_trained(tiny_config, tiny_images, tmp_path, capsys):
    run = tmp_path / "run"
    Trainer(tiny_config, tiny_images, run).train()
    before = (shipped()["mnist-ready"] / FAMILIAR).read_bytes()
    for name, words in (("mnist-ready", "a model or run folder of your own"), (str(run), "another process is working")):
        with pytest.raises(SystemExit, match="2"), locked(run):
            main(["calibrate", name, "--data", "digits", "--n", "40", "--width-steps", "0"])
        assert words in capsys.readouterr().err
    assert (shipped()["mnist-ready"] / FAMILIAR).read_bytes() == before


def test_a_model_is_calibrated_by_a_command_and_says_what_it_does_not_know(shapes_model, shapes, tmp_path, capsys):
    if shapes_model.config.process.skip != "linear":
        pytest.skip("once is enough")
    folder, data, image = tmp_path / "model", tmp_path / "shapes.npz", tmp_path / "colour.png"
    shapes_model.save_pretrained(folder)
    np.savez(data, train=shapes[20:40, 0].numpy(), test=shapes[:, 0].numpy())
    blurred = to_bytes(by_heat(shapes[0], 1.5))[0].numpy()
    Image.fromarray(np.stack([blurred] * 3, -1)).save(image)
    restore = ["restore", str(folder), str(image), "--blur-width", "1.5", "--n", "1", "--out", str(tmp_path / "out")]
    main(restore)
    said = capsys.readouterr().out
    assert "colour is dropped" in said and "not calibrated" in said
    main(["calibrate", str(folder), "--data", str(data), "--n", "48", "--width-steps", "2"])
    assert capsys.readouterr().out.split() == [str(folder / FAMILIAR), str(folder / READER)]
    assert Model.from_pretrained(folder).reader.tensors().keys() == load_tensors(folder / READER).keys()
    assert Model.from_pretrained(folder).familiar.tensors().keys() == load_tensors(folder / FAMILIAR).keys()
    main([*restore, "--invert"])
    assert "does not look like what the model knows" in capsys.readouterr().out
    assert np.array_equal(np.asarray(Image.open(tmp_path / "out" / "input.png")), 255 - blurred)
    config = (folder / CONFIG).read_text()
    (folder / CONFIG).write_text(config.replace('"steps": 0', '"steps": 7'))
    main(restore)
    assert "was trained further after it was calibrated" in capsys.readouterr().out
    (folder / CONFIG).write_text(config)
    whole = load_tensors(folder / FAMILIAR)
    for name, tensor in whole.items():
        for wrong in ({name: tensor[..., :-1]}, {name: tensor * math.nan}, {"other": tensor.clone()}):
            (folder / FAMILIAR).write_bytes(save({n: t.contiguous() for n, t in (whole | wrong).items()}))
            with pytest.raises(IhdmError, match=r"familiar\.safetensors is damaged"):
                read_calibrated(folder / FAMILIAR, Familiar.of)
    shutil.copy(shipped()["mnist-ready"] / FAMILIAR, folder)
    with pytest.raises(SystemExit):
        main(restore)
    assert "calibrated with another network; run ihdm calibrate again" in capsys.readouterr().err
    (folder / FAMILIAR).write_bytes(b"nothing")
    with pytest.raises(IhdmError, match="run ihdm calibrate again"):
        Model.from_pretrained(folder)
    with pytest.raises(SystemExit):
        main(["calibrate", str(folder), "--data", str(data), "--n", "3"])
    assert "--n must be at least 40" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["calibrate", str(folder), "--data", str(data), "--width-steps", "-1"])
    assert "--width-steps must be from 0 to" in capsys.readouterr().err


def test_distances_of_normal_features_are_calibrated(generator):
    """Whatever their covariance, and though it changes with the level, as many are as unusual as it says."""
    mix = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    levels = torch.rand(6000, generator=generator).double()
    features = torch.randn(6000, 5, generator=generator).double() @ mix + levels[:, None] * 3
    known = Familiar.calibrated(features[:4000], levels[:4000])
    shares = known.shares(features[4000:], levels[4000:])
    for limit in (0.05, 0.2, 0.5):
        assert float((shares < limit).double().mean()) == pytest.approx(limit, abs=0.03)
    deviation = torch.linalg.solve(mix.mT, features[4000:].mT - 3 * levels[4000:]).square().sum(0)
    found = known.distances(features[4000:], levels[4000:])
    torch.testing.assert_close(found * deviation.mean() / found.mean(), deviation, rtol=0.2, atol=0.1)
    assert float(known.shares(features[:1] + 100, levels[:1])) == 0


def test_the_last_of_the_coarsest_maps_is_overheard():
    u = torch.rand(3, 1, 8, 8)
    first, last = nn.AvgPool2d(2), nn.Conv2d(1, 5, 1)
    network = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Conv2d(2, 1, 1), first, last, nn.Upsample(scale_factor=2))
    with torch.no_grad(), overheard(network) as heard:
        network(u), network(u[:1])
        expected = last(first(network[1](network[0](u))))
    assert [len(h) for h in heard] == [3, 1]
    statistics = torch.cat([expected.mean((2, 3)), expected.std((2, 3), correction=0)], 1)
    torch.testing.assert_close(heard[0], statistics.double())
    network(u)
    assert len(heard) == 2  # nobody listens any more


def test_a_parabola_has_its_lowest_point_and_an_interval():
    x = torch.tensor([-0.02, -0.01, 0.0, 0.01, 0.02], dtype=torch.float64)
    at, half, least = vertex(x, 3 + 500 * (x - 0.004).square())
    assert (at, least) == (pytest.approx(0.004), pytest.approx(3)) and half == pytest.approx(math.sqrt(ALLOWED / 500))
    assert vertex(x, -x)[0] == pytest.approx(0.03) and vertex(x, x)[0] == pytest.approx(-0.03)  # on, beyond the edge
