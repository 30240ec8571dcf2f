from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from safetensors.torch import save
from torch import nn
from torch.distributions import Bernoulli, Normal

from ihdm import width_reader
from ihdm.cli import main
from ihdm.errors import IhdmError
from ihdm.judgement import Judge
from ihdm.model import Model
from ihdm.model_folder import READER, shipped
from ihdm.pixels import to_bytes, to_unit
from ihdm.processes import restoring
from ihdm.restoration import Guess, likely, observation
from ihdm.studies.strangers import GAUSSIAN, by_pillow, by_rounding, by_scipy
from ihdm.width_reader import NOISE, Examples, Reading, WidthReader, filtered, nll, scaled, trained, widths_read

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.from_pretrained("mnist-ready")


@pytest.fixture(scope="module")
def digits(model) -> torch.Tensor:
    """Such as the model knows: its own, uint8."""
    return to_bytes(model.sample(6, seed=4))


def test_it_is_shown_what_the_best_linear_filter_makes_of_an_image(model, digits):
    process, width = restoring(model.process), 2.5
    y = by_pillow(digits[0], width).double()
    seen = filtered(process, y[None], torch.tensor([width]).double())[0]
    for shown, ratio in zip(seen, (0.95, 1.0, 1.05)):
        known = observation(process, y, Guess(0.0, ratio * width, "Gaussian", NOISE, 0))
        torch.testing.assert_close(shown.double(), known.deconvolved()[0], atol=1e-5, rtol=0)


def test_deviations_are_in_units_of_their_spread(model, generator):
    process, width = restoring(model.process), torch.full((400,), 2.0).double()
    spectrum, laplacian = process.spectra[0], process.laplacian
    noise = [torch.randn(400, 1, 28, 28, generator=generator).double() for _ in range(2)]
    u = laplacian.from_spectrum(spectrum.mean + spectrum.power.sqrt() * noise[0])
    y = laplacian.dissipate(u, 2.0) + NOISE * noise[1]
    z = laplacian.to_spectrum(2 * filtered(process, y, width)[:, 3:].double())
    torch.testing.assert_close(z.square().mean(0), torch.ones(1, 28, 28).double(), atol=0.4, rtol=0)
    assert float(z.square().mean()) == pytest.approx(1, abs=0.01)


def test_its_loss_is_the_density_of_what_it_is_asked(generator):
    means, errors = (torch.randn(5, 2, generator=generator) for _ in range(2))
    odds, ratio = (torch.randn(5, generator=generator) for _ in range(2))
    boxes = torch.tensor([True, False, True, True, False])
    rows, chosen = torch.arange(5), boxes.long()
    expected = Normal(means[rows, chosen], errors[rows, chosen].exp()).log_prob(ratio) + 0.5 * math.log(2 * math.pi)
    expected = expected + Bernoulli(logits=odds).log_prob(boxes.float())
    torch.testing.assert_close(nll((means, errors, odds), ratio, boxes), -expected)


def test_examples_are_blurred_as_they_say(digits, generator):
    examples = Examples(digits[:1], [partial(by_scipy, border="nearest")], [by_pillow])
    some = examples.draw(100, generator)
    assert some.y.shape == (100, 1, 28, 28) and some.width.shape == some.boxes.shape == (100,)
    assert 0 < int(some.boxes.sum()) < 100
    low, high = widths_read((28, 28))
    for y, width, boxes in zip(some.y, some.width.tolist(), some.boxes.tolist()):
        assert low <= width <= high
        expected = by_pillow(digits[0], width) if boxes else by_scipy(digits[0], width, "nearest")
        torch.testing.assert_close(y, expected.double())


def test_a_program_that_rounds_once_is_near_one_that_cuts_off_twice(digits):
    once, twice = (to_bytes(by(digits[0], 2.0, "reflect")).int() for by in (by_rounding, by_scipy))
    assert set((once - twice).flatten().tolist()) == {0, 1, 2}


@pytest.mark.parametrize("width", [1.6, 2.7, 3.6])
@pytest.mark.parametrize("blur", [by_pillow, partial(by_scipy, border="reflect")], ids=["Pillow", "scipy"])
def test_the_shipped_reader_reads_widths_to_a_percent_or_two(model, digits, blur, width):
    process, off = restoring(model.process), []
    for image in digits:
        y = blur(image, width).double()
        reading = model.reader.read(process, y, [guess.width for guess in likely(process, y)[:2]])
        assert reading is None or reading.boxes == (blur is by_pillow)
        if reading:
            off.append(abs(math.log(reading.width / width)))
    assert len(off) >= 5 and float(np.median(off)) < 0.012


class Told(WidthReader):
    """Reads widths that are wrong by known amounts."""

    def __init__(self, off, error):
        super().__init__(1)
        self.off, self.error = iter(off), error

    def read(self, process, y, likely):
        return Reading(False, likely[0] * math.exp(next(self.off)), self.error * float(self.scale))


class Searched(Exception):
    pass


def test_a_width_is_searched_where_it_cannot_be_read(model, digits, monkeypatch):
    """By a reader that is not sure, and of images with more noise than those that it has learned from."""

    def searched(*args):
        raise Searched

    monkeypatch.setattr(Judge, "_searched", searched)
    y, judge = by_pillow(digits[1], 3.0).double(), model.restorer().judge()
    for blur, boxes in ((by_pillow, True), (partial(by_scipy, border="reflect"), False)):
        seen = judge.observe(blur(digits[1], 3.0).double())
        assert seen.width == pytest.approx(3.0, rel=0.02) and (seen.kind == "three boxes") == boxes
    unsure = WidthReader(1).eval()
    nn.init.zeros_(unsure.head[2].weight)
    unsure.head[2].bias.data = torch.tensor([0.0, 0.0, -3.0, -3.0, 0.0])  # sure that it began at the true width
    assert unsure.read(judge.blurs, y, [3.0]) is None
    poor = copy.deepcopy(model.reader)
    poor.scale.fill_(100)
    noise = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).double()
    certain = Told([0.0, 0.0], 0.01)
    assert replace(judge, reader=certain).observe(y).interval is not None
    for reader, image in ((None, y), (unsure, y), (poor, y), (certain, (y + 4 / 255 * noise).clamp(0, 1))):
        with pytest.raises(Searched):
            replace(judge, reader=reader).observe(image)


def test_training_is_the_same_each_time_and_learns(model, digits, monkeypatch):
    monkeypatch.setattr(width_reader, "BATCH", 64)
    process, examples = restoring(model.process), Examples(digits, GAUSSIAN, [by_pillow])
    learn = partial(trained, process, examples, 1, device=CPU, precision=torch.float32)
    state = torch.random.get_rng_state()
    one, same = (learn(range(2), count=2).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert torch.equal(torch.random.get_rng_state(), state)
    some = examples.draw(64, torch.Generator().manual_seed(9))
    ratio = 0.02 * torch.randn(64, generator=torch.Generator().manual_seed(9))
    assumed = some.width * torch.exp(-ratio.double())
    seen, losses = filtered(process, some.y, assumed), []
    for steps in (1, 40):
        answer = learn(range(steps), count=steps)(seen, assumed.float())
        losses.append(float(nll(answer, ratio, some.boxes).mean().detach()))
    assert losses[1] < losses[0] - 0.2


def test_it_learns_the_logarithm_of_the_true_width_over_the_assumed_one(model, digits, monkeypatch):
    asked: dict[str, torch.Tensor] = {}

    class Recalled(Examples):
        def draw(self, n, generator):
            found = super().draw(n, generator)
            asked["width"] = found.width
            return found

    def shown(process, y, width):
        asked["assumed"] = width
        return filtered(process, y, width)

    def judged(answer, ratio, boxes):
        asked["ratio"] = ratio
        return nll(answer, ratio, boxes)

    monkeypatch.setattr(width_reader, "filtered", shown)
    monkeypatch.setattr(width_reader, "nll", judged)
    examples = Recalled(digits, GAUSSIAN, [by_pillow])
    trained(restoring(model.process), examples, 1, range(1), count=1, device=CPU, precision=torch.float32)
    expected = (asked["width"] / asked["assumed"]).log()
    torch.testing.assert_close(asked["ratio"].double(), expected, atol=1e-6, rtol=0)
    assert 0.01 < float(expected.std()) < 0.1


def test_errors_are_scaled_to_cover_other_images(model, digits):
    some = Examples(digits, GAUSSIAN, [by_pillow]).draw(16, torch.Generator().manual_seed(0))
    some = replace(some, boxes=torch.zeros(16, dtype=torch.bool))
    reader = scaled(Told(torch.linspace(0, 0.15, 16).tolist(), 0.5), None, some)
    assert float(reader.scale) == pytest.approx(0.135 / 0.5, rel=1e-3)


def test_odd_sizes_and_colours_are_read(generator):
    reader = WidthReader(3)
    answer = reader(torch.rand(2, 12, 9, 7, generator=generator), torch.tensor([1.0, 2.0]))
    assert [part.shape for part in answer] == [(2, 2), (2, 2), (2,)]


def test_a_folder_keeps_a_reader_and_refuses_a_damaged_one(model, tmp_path):
    model.save_pretrained(tmp_path)
    again = Model.from_pretrained(tmp_path)
    read, written = (one.reader.state_dict() for one in (again, model))
    assert read.keys() == written.keys() and all(torch.equal(read[name], written[name]) for name in read)
    assert model.sampled(steps=5).reader is model.reader
    whole = {name: tensor.clone() for name, tensor in model.reader.tensors().items()}
    name, tensor = "down.bias", whole["down.bias"]
    for wrong in ({name: tensor[:-1].clone()}, {name: tensor * math.nan}, {"other": tensor.clone()}):
        (tmp_path / READER).write_bytes(save(whole | wrong))
        with pytest.raises(IhdmError, match=r"widths\.safetensors is damaged .* run ihdm calibrate again"):
            Model.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="only be read off images"):
        WidthReader.of(whole, (1, 28))
    (tmp_path / READER).unlink()
    assert Model.from_pretrained(tmp_path).reader is None


def test_restore_prints_the_interval_that_was_read(model, digits, tmp_path, capsys):
    picture = Image.fromarray(digits[1, 0].numpy()).filter(ImageFilter.GaussianBlur(3))
    picture.save(tmp_path / "blurred.png")
    main(["restore", "mnist-ready", str(tmp_path / "blurred.png"), "--n", "1", "--out", str(tmp_path / "out")])
    said = capsys.readouterr().out
    low, high = map(float, said.split("blur width ")[1].split(" pixels")[0].split(" to "))
    assert low < 3.03 and high > 2.97 and high / low < 1.06
    seen = model.restorer().judge().observe(to_unit(torch.from_numpy(np.array(picture)))[None].double())
    assert (round(seen.interval[0], 2), round(seen.interval[1], 2)) == (low, high)


def test_the_shipped_reader_is_small():
    assert (shipped()["mnist-ready"] / READER).stat().st_size < 2**20
