from __future__ import annotations

import socket

import pytest
import torch
from PIL import Image

from ihdm import cli
from ihdm.app.film import MOST, Film
from ihdm.app.studio import MOST_PIXELS, Studio, whole
from ihdm.errors import IhdmError, UsageError
from ihdm.model import Model
from ihdm.model_folder import ModelConfig
from ihdm.pixels import to_bytes
from ihdm.sampler import last

SETTINGS = ["process.K=6", "process.skip=linear", "network.channels=8", "network.multipliers=1,2", "network.blocks=1"]


@pytest.fixture
def studio(tiny_config, generator) -> Studio:
    """Colour images of 8x10 pixels."""
    config = tiny_config.with_settings(SETTINGS)
    images = torch.randint(0, 256, (30, 3, 8, 10), dtype=torch.uint8, generator=generator)
    return Studio(Model.from_images(ModelConfig(config.process, config.network, (3, 8, 10)), images))


@pytest.mark.parametrize("value", [None, "7", float("nan"), -1, 2.5, 1e300])
def test_fields_that_hold_no_whole_number_are_refused_in_words(value):
    with pytest.raises(UsageError, match="The seed must be"):
        whole(value, "The seed")
    assert whole(7.0, "The seed") == 7


def test_generated_images_are_those_of_the_model(studio):
    torch.testing.assert_close(last(studio.grow(3, 5, 1.1)).clamp(0, 1), studio.model.sample(3, 5, delta_ratio=1.1))
    for n, seed, ratio in ((0, 0, 1), (65, 0, 1), (1, -1, 1), (1, 0, -0.1), (None, 0, 1)):
        with pytest.raises(UsageError, match="must be a number"):
            studio.grow(n, seed, ratio)


def test_the_first_start_has_the_colour_asked_for_and_the_others_differ(studio):
    colours = studio.model.prior.colours()
    wanted = colours[17]
    starts = studio.starts(wanted.tolist(), 4)
    assert starts[0] == 17 and len(set(starts.tolist())) == 4
    light = colours[starts[1:]].mean(1)
    assert bool((light.diff() >= 0).all())


def test_rows_of_the_table_share_their_start_and_columns_their_noise(studio):
    starts = torch.tensor([3, 9])
    states = list(studio.matrix(starts, [4, 5, 6]))
    table = states[0][1].unflatten(0, (2, 3))
    assert torch.equal(table[:, 0], table[:, 2])
    torch.testing.assert_close(table[:, 0], studio.model.prior.means(starts), atol=0.1, rtol=0)
    one_cell = last(studio.matrix(starts[1:], [6]))[0]
    torch.testing.assert_close(states[-1][1].unflatten(0, (2, 3))[1, 2], one_cell, atol=1e-5, rtol=0)


def test_interpolation_ends_in_the_first_images_of_both_seeds(studio):
    strip = last(studio.between(3, 8, 5))
    for end, seed in ((0, 3), (-1, 8)):
        torch.testing.assert_close(strip[end].clamp(0, 1), studio.model.sample(1, seed)[0], atol=1e-4, rtol=0)
    with pytest.raises(UsageError, match="nothing in between"):
        studio.between(3, 3, 5)


def test_a_walk_goes_on_from_one_of_its_futures(studio):
    path = Film(studio.K, exact=True)
    for k, u in studio.grow(1, 0):
        path.add(k, u)
    futures = Film(studio.K, exact=True)
    for k, u in studio.futures(path.states[3], 3, 4, 0, 0):
        futures.add(k, u)
    assert futures.levels == [3, 2, 1, 0]
    assert not torch.equal(futures.last[0], futures.last[1])
    walked = path.then(futures.only(2))
    assert walked.levels == path.levels
    for k, u in walked.states.items():
        assert torch.equal(u, path.states[k] if k >= 3 else futures.states[k][2:3])


def test_a_film_keeps_few_states_of_many_levels_and_both_ends():
    film = Film(200)
    for k in range(200, -1, -1):
        film.add(k, torch.full((1, 1, 2, 2), k / 200))
    assert len(film.levels) == MOST and film.levels[0] == 200 and film.levels[-1] == 0
    assert [int(u.flatten()[0]) for u in film.some(3)] == [255, int(to_bytes(torch.tensor(0.5))), 0]


def test_uploads_are_brought_to_the_models_size_with_a_note(studio, tmp_path):
    path = tmp_path / "picture.png"
    for size, words in (
        ((10, 8), ""),
        ((40, 32), "shrunk"),
        ((30, 80), "cut to its middle and shrunk"),
        ((5, 4), "enlarged"),
    ):
        Image.new("RGBA", size, (255, 0, 0, 255)).save(path)
        upload = studio.upload(path)
        assert upload.image.shape == (3, 8, 10)
        torch.testing.assert_close(upload.image.mean((1, 2)), torch.tensor([1.0, 0.0, 0.0]), atol=1e-2, rtol=0)
        assert words in upload.note and bool(upload.note) == bool(words)


def test_uploads_that_are_no_pictures_or_too_large_are_refused(studio, tmp_path):
    path = tmp_path / "picture.png"
    path.write_bytes(b"not a picture")
    with pytest.raises(IhdmError, match="not a picture that can be read"):
        studio.upload(path)
    Image.new("L", (100, 100)).save(path)
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(IhdmError, match="not a picture that can be read"):
        studio.upload(path)
    Image.new("1", (MOST_PIXELS // 1000 + 1, 1000)).save(path)
    with pytest.raises(UsageError, match="limit is 50 million"):
        studio.upload(path)
    with pytest.raises(UsageError, match="choose a picture"):
        studio.upload(None)


def test_an_example_to_restore_is_a_blurred_image_of_the_model(studio):
    blurred, sharp = studio.blurred(4, 4), studio.model.sample(1, 4)
    expected = studio.model.process.blur(sharp, torch.tensor([4]))[0].clamp(0, 1)
    torch.testing.assert_close(blurred, expected)


def test_a_port_in_use_is_named_before_the_model_is_read(capsys):
    pytest.importorskip("gradio", reason="the page needs gradio: pip install 'ihdm[app]'")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit) as stopped:
            cli.main(["app", "no-such-model", "--port", str(port)])
    assert stopped.value.code == 1
    assert f"port {port}" in capsys.readouterr().err


def test_the_diffusion_baseline_has_no_page(tmp_path, tiny_config, capsys):
    pytest.importorskip("gradio", reason="the page needs gradio: pip install 'ihdm[app]'")
    config = tiny_config.with_settings(["process.kind=ddpm", "process.skip=identity", "process.delta_ratio=1"])
    model = Model.from_images(ModelConfig(config.process, config.network, (1, 8, 8)), torch.zeros(2, 1, 8, 8).byte())
    model.save_pretrained(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        cli.main(["app", str(tmp_path), "--port", "0"])
    assert stopped.value.code == 2
    assert "inverse heat" in capsys.readouterr().err


def test_colours_are_read_as_browsers_write_them():
    pytest.importorskip("gradio", reason="the page needs gradio: pip install 'ihdm[app]'")
    from ihdm.app.tabs.colour_and_shape import parse_colour

    for text in ("#ff0080", "rgba(255, 0, 128, 1)", "rgb(255, 0, 128)"):
        assert parse_colour(text) == pytest.approx([1, 0, 128 / 255])
    for text in ("blurple", "", None, "rgba(1)", "rgba(300, 0, 0, 1)", "rgba(a, b, c)"):
        with pytest.raises(UsageError, match="not a colour"):
            parse_colour(text)
