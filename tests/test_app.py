from __future__ import annotations

import asyncio
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ihdm import cli
from ihdm.app.door import Addresses, Door
from ihdm.app.film import MOST, Film
from ihdm.app.firsts import Firsts, Turns
from ihdm.app.numbers import whole
from ihdm.app.studio import MOST_PIXELS, Growth, Studio
from ihdm.app.ways import chosen, ways
from ihdm.errors import IhdmError, UsageError
from ihdm.labels import Labels
from ihdm.model import Model
from ihdm.model_folder import ModelConfig
from ihdm.pixels import to_bytes
from ihdm.processes import Process
from ihdm.registry import PROCESSES
from ihdm.sampler import last
from ihdm.settings import setting
from ihdm.verbs.app import shown_as

SETTINGS = ["process.K=6", "process.skip=linear", "network.channels=8", "network.multipliers=1,2", "network.blocks=1"]


@pytest.fixture
def studio(tiny_config, generator) -> Studio:
    """Colour images of 8x10 pixels."""
    config = tiny_config.with_settings(SETTINGS)
    images = torch.randint(0, 256, (30, 3, 8, 10), dtype=torch.uint8, generator=generator)
    return Studio(Model.from_images(ModelConfig.of(config, (3, 8, 10)), images))


def made(config, *settings: str) -> Studio:
    """Of a model for grey images of 8x8 pixels, with some settings."""
    changed = config.with_settings(settings)
    return Studio(Model.from_images(ModelConfig.of(changed, (1, 8, 8)), torch.zeros(2, 1, 8, 8).byte()))


def filmed(growth: Growth, exact: bool = False) -> Film:
    film = Film(growth.levels, exact)
    for k, u in growth:
        film.add(k, u)
    return film


def tabs(studio: Studio) -> list[str]:
    gr = pytest.importorskip("gradio", reason="the page needs gradio: pip install 'ihdm[app]'")
    from ihdm.app.page import build

    return [block.label for block in build({"tiny": studio}).blocks.values() if isinstance(block, gr.Tab)]


@pytest.mark.parametrize("value", [None, "7", float("nan"), -1, 2.5, 1e300])
def test_fields_that_hold_no_whole_number_are_refused_in_words(value):
    with pytest.raises(UsageError, match="The seed must be"):
        whole(value, "The seed")
    assert whole(7.0, "The seed") == 7


def test_generated_images_are_those_of_the_model(studio):
    for given, sampling in (
        ({"sampler": "paper", "steps": 3, "delta_ratio": 1.1, "eta": None}, {"delta_ratio": 1.1}),
        (
            {"sampler": "exact", "steps": 3, "delta_ratio": None, "eta": 0.2},
            {"sampler": "exact", "steps": 3, "eta": 0.2},
        ),
        ({}, {}),
    ):
        found = last(studio.grow(3, 5, **chosen(studio.process, given)))
        torch.testing.assert_close(found.clamp(0, 1), studio.model.sample(3, 5, **sampling))
    paper = {"sampler": "paper", "steps": 6}
    for n, seed, ratio in ((0, 0, 1), (65, 0, 1), (1, -1, 1), (1, 0, -0.1), (1, 0, 9), (1, 0, None), (None, 0, 1)):
        with pytest.raises(UsageError, match="must be a number"):
            studio.grow(n, seed, **chosen(studio.process, paper | {"delta_ratio": ratio}))
    for steps, eta in ((0, 1), (7, 1), (2.5, 1), (None, 1), (3, -0.1), (3, 1.1)):
        with pytest.raises(UsageError, match="must be a"):
            chosen(studio.process, {"sampler": "exact", "steps": steps, "eta": eta})


def test_what_can_be_chosen_of_sampling_is_what_the_process_does_not_refuse(tiny_config):
    def offered(*settings: str) -> dict[str | None, set[str]]:
        return {way.sampler: set(way.free) for way in ways(made(tiny_config, *settings).process)}

    both = {"paper": {"delta_ratio"}, "exact": {"steps", "eta"}}
    assert offered() == offered("sampling.sampler=exact", "sampling.steps=4") == both
    assert offered("process.skip=identity", "process.sigma=0") == {"paper": {"delta_ratio"}}
    assert offered("process.skip=identity", "process.blur=gaussian") == {"paper": {"delta_ratio"}}
    assert offered("process.kind=ddpm") == {None: {"steps", "eta"}}
    assert offered("process.kind=ddpm", "process.K=1") == {None: {"eta"}}
    assert offered("process.kind=soft") == {"momentum": {"steps"}, "exact": {"steps", "eta"}}
    assert offered("process.kind=cold") == {None: {"steps"}}


def test_models_that_make_their_pictures_in_few_steps_can_be_told_to_take_the_papers(tiny_config):
    studio = made(tiny_config, "sampling.sampler=exact", "sampling.steps=4")
    assert studio.grow(1, 0).levels == [10, 7, 4, 1, 0]
    paper = chosen(studio.process, {"sampler": "paper", "steps": 10, "delta_ratio": 1.0, "eta": 0.5})
    assert studio.grow(1, 0, **paper).levels == list(range(10, -1, -1))


def test_the_first_start_has_the_colour_asked_for_and_the_others_differ(studio):
    colours = studio.process.prior.colours()
    wanted = colours[17]
    starts = studio.starts(wanted.tolist(), 4)
    assert starts[0] == 17 and len(set(starts.tolist())) == 4
    light = colours[starts[1:]].mean(1)
    assert bool((light.diff() >= 0).all())


def test_columns_of_the_table_share_their_start_and_rows_their_noise_as_in_the_study(studio):
    starts = torch.tensor([3, 9])
    states = list(studio.matrix(starts, [4, 5, 6]))
    table = states[0][1].unflatten(0, (3, 2))
    assert torch.equal(table[0], table[2])
    torch.testing.assert_close(table[0], studio.process.prior.means(starts), atol=0.1, rtol=0)
    one_cell = last(studio.matrix(starts[1:], [6]))[0]
    torch.testing.assert_close(states[-1][1].unflatten(0, (3, 2))[2, 1], one_cell, atol=1e-5, rtol=0)


def test_interpolation_ends_in_the_first_images_of_both_seeds(studio):
    strip = last(studio.between(3, 8, 5))
    for end, seed in ((0, 3), (-1, 8)):
        torch.testing.assert_close(strip[end].clamp(0, 1), studio.model.sample(1, seed)[0], atol=1e-4, rtol=0)
    with pytest.raises(UsageError, match="nothing in between"):
        studio.between(3, 3, 5)


def test_the_strip_shows_as_many_pictures_as_were_asked_for():
    pytest.importorskip("gradio", reason="the page needs gradio: pip install 'ihdm[app]'")
    from ihdm.app.tabs.interpolate import draw

    for count in (2, 8, 13):
        page = np.asarray(draw(torch.zeros(count, 1, 8, 8)).convert("L"))
        columns, rows = min(count, 8), -(-count // 8)
        cell = 700 // columns // 8 * 8
        assert (page == 0).sum() == count * cell**2 and page.shape[0] < (rows + 1) * cell


def test_each_model_has_a_page_with_its_own_tabs(studio, tiny_config):
    gr = pytest.importorskip("gradio", reason="the page needs gradio: pip install 'ihdm[app]'")
    from ihdm.app.page import build

    page = build({"tiny": studio, "Runs 2 ä": made(tiny_config, "process.kind=ddpm"), "å": made(tiny_config)})
    assert [(path, name) for path, name, _ in page.pages] == [("", "Home"), ("runs-2", "Runs 2 ä"), ("model", "å")]
    shown = [(block.page, block.label) for block in page.blocks.values() if isinstance(block, gr.Tab)]
    assert [label for path, label in shown if path == ""] == tabs(studio)
    assert [label for path, label in shown if path == "runs-2"] == ["Generate", "Interpolate", "Branch"]
    names = [block.main_page_name for block in page.blocks.values() if isinstance(block, gr.Navbar)]
    assert names == ["tiny"] * 3


def test_models_may_be_called_like_gradios_own_addresses(tiny_config):
    pytest.importorskip("gradio", reason="the page needs gradio: pip install 'ihdm[app]'")
    from ihdm.app.page import build

    names = ["tiny", "Config", "config-model", "config", "static"]
    page = build(dict.fromkeys(names, made(tiny_config)))
    assert [(path, name) for path, name, _ in page.pages][1:] == [
        ("config-model", "Config"),
        ("_config-model", "config-model"),
        ("__config-model", "config"),
        ("static-model", "static"),
    ]


@pytest.mark.parametrize("count", [2, 30])
def test_a_model_that_knows_labels_lets_one_choose(tiny_config, count, tmp_path):
    """By buttons, or from a list if they are many; pictures are as `sample` has them."""
    gr = pytest.importorskip("gradio", reason="the page needs gradio: pip install 'ihdm[app]'")
    from ihdm.app.page import build

    names, firsts = tuple(map(str, range(count))), Firsts()
    config = ModelConfig.of(tiny_config, (1, 8, 8), labels=Labels(names, (1,) * count))
    studio = Studio(Model.from_images(config, torch.zeros(2, 1, 8, 8).byte()))
    for weight in studio.model.network.parameters():
        torch.nn.init.normal_(weight, std=0.1)
    blocks = build({"tiny": studio}, firsts).blocks.values()
    shown = {block.label: block for block in blocks if isinstance(block, gr.Radio | gr.Dropdown | gr.Slider)}
    assert isinstance(shown["What they show"], gr.Radio if count == 2 else gr.Dropdown) and "Guidance" in shown
    assert [name for name, _ in shown["What they show"].choices] == ["any", *names]
    generate = firsts.all[0]
    _, seed, label, guidance, *how = generate.given
    assert (label, guidance) == ("", 1)
    for name, strength, options in (("", 1, {}), ("1", 2.0, {"labels": "1", "guidance": 2.0})):
        *_, (*_, film) = generate.work(tmp_path, 2, seed, name, strength, *how)
        assert torch.equal(film.last, to_bytes(studio.model.sample(2, seed, **options)))


def test_models_of_one_name_can_be_told_apart(tmp_path):
    one, other = tmp_path / "a" / "run" / "model", tmp_path / "b" / "run"
    shown = {shown_as(str(one), {}): 1}
    assert [*shown, shown_as(str(other), shown), shown_as("mnist-ready", shown)] == ["run", "run 2", "mnist-ready"]


def test_the_first_results_are_those_of_the_first_settings(studio, tmp_path):
    pytest.importorskip("gradio", reason="the page needs gradio: pip install 'ihdm[app]'")
    from ihdm.app.page import build

    firsts = Firsts()
    build({"tiny": studio}, firsts)
    firsts.make(tmp_path)
    generated, table, strip, branches = firsts.all[:4]
    assert all(first.ready for first in firsts.all)
    film = generated.found[-1]
    assert torch.equal(film.last, to_bytes(studio.model.sample(studio.usual, 0)))
    assert table.found and strip.found and len(branches.found[4]) == 8
    for value in (generated.found[5]["value"], strip.found[2]):
        assert Path(value).is_file()


def test_first_results_that_cannot_be_had_keep_nobody_waiting(tmp_path, capsys):
    def refused(folder):
        yield "Growing", 1
        raise UsageError("That picture looks sharp already.")

    def broken(folder):
        raise ZeroDivisionError

    firsts = Firsts()
    for work in (refused, broken, lambda folder: iter([("Done", 2)])):
        firsts.add(work, [])
    firsts.make(tmp_path)
    assert [(first.ready, first.found) for first in firsts.all] == [(True, None), (True, None), (True, ("Done", 2))]
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_what_is_shown_at_first_waits_for_visitors_and_ends_with_the_page():
    turns, order = Turns(), []
    ours = turns.own(iter("abc"))
    order.append(next(ours))
    visitor = turns.visitor(iter("xy"))
    order.append(next(visitor))
    waiting = threading.Thread(target=lambda: order.append(next(ours)))
    waiting.start()
    time.sleep(0.05)
    order.append(next(visitor))
    waiting.join()
    assert order == ["a", "x", "y", "b"]
    turns.ended.set()
    assert not list(ours)


def test_a_walk_goes_on_from_one_of_its_futures(studio):
    path = filmed(studio.grow(1, 0), exact=True)
    futures = filmed(studio.futures(path.states[3], 3, 4, 0, 0), exact=True)
    assert futures.levels == [3, 2, 1, 0]
    assert not torch.equal(futures.last[0], futures.last[1])
    walked = path.then(futures.only(2))
    assert walked.levels == path.levels == walked.visited
    for k, u in walked.states.items():
        assert torch.equal(u, path.states[k] if k >= 3 else futures.states[k][2:3])


def test_a_walk_in_few_steps_goes_on_through_the_levels_of_its_future(tiny_config):
    studio = made(tiny_config, "sampling.sampler=exact", "sampling.steps=4")
    path = filmed(studio.grow(1, 0), exact=True)
    futures = filmed(studio.futures(path.states[4], 4, 2, 0, 0), exact=True)
    walked = path.then(futures.only(1))
    assert walked.levels == [10, 7, *futures.levels] and futures.levels[0] == 4
    assert (walked.step(4), walked.steps) == (2, 2 + futures.steps)


def test_a_film_keeps_few_states_of_many_levels_and_both_ends():
    for visited, kept in ((range(200, -1, -1), MOST), (range(200, -1, -2), MOST), ([200, 77, 3, 0], 4)):
        film = Film(visited)
        for k in visited:
            film.add(k, torch.full((1, 1, 2, 2), k / 200))
        assert len(film.levels) == kept and film.levels[0] == 200 and film.levels[-1] == 0
        assert [film.step(200), film.step(0)] == [0, film.steps] == [0, len(visited) - 1]
        ends = [int(u.flatten()[0]) for u in film.some(3)]
        assert ends[::2] == [255, 0] and len(ends) == 3
        assert [film.nearest(film.step(k)) for k in film.levels] == film.levels
        assert film.nearest(film.steps - 1) in visited[-3:]
        if len(visited) > MOST:
            assert ends[1] == int(to_bytes(torch.tensor(0.5)))


@pytest.mark.parametrize(("steps", "every"), [(1, 1), (50, 1), (100, 2), (200, 4), (75, 1)])
def test_the_slider_goes_by_the_steps_between_the_states_of_a_film(steps, every):
    film = Film(range(steps, -1, -1))
    for k in film.visited:
        film.add(k, torch.zeros(1, 1, 2, 2))
    assert film.every == every


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
        assert studio.upload(path, negative=True).image.equal(1 - upload.image)


def test_uploads_that_are_no_pictures_or_too_large_are_refused(studio, tiny_config, tmp_path):
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
    Image.new("L", (1, 1)).save(path)
    with pytest.raises(IhdmError, match=r"^That picture is .* 1 x 1 pixels say next to nothing\.$"):
        made(tiny_config).upload(path)
    Image.fromarray(np.full((8, 10), 7.5, np.float32)).save(tmp_path / "deep.tif")
    with pytest.raises(IhdmError, match=r"^That picture has floating point values from 7\.5"):
        studio.upload(tmp_path / "deep.tif")
    with pytest.raises(UsageError, match="choose a picture"):
        studio.upload(None)


def test_an_example_to_restore_is_a_blurred_image_of_the_model(studio):
    blurred, sharp = studio.blurred(4, 4), studio.model.sample(1, 4)
    expected = studio.model.process.blur(sharp, torch.tensor([4]))[0].clamp(0, 1)
    torch.testing.assert_close(blurred, expected)


def test_restoring_takes_the_steps_that_were_chosen(studio):
    seen = studio.model.restorer().observation(studio.blurred(4, 4), 2.0)
    few = chosen(studio.process, {"sampler": "exact", "steps": 2, "eta": 0.5})
    for sampling, steps in (({}, seen.level), (few, 2)):
        growth = studio.restore(seen, 3, 7, **sampling)
        assert growth.levels[0] == seen.level and len(growth.levels) == steps + 1
        states = list(growth)
        assert [k for k, _ in states] == growth.levels
        expected = studio.model.restore(seen.image.float(), 3, 7, blur_width=2.0, **sampling).images
        torch.testing.assert_close(states[-1][1].clamp(0, 1), expected)


def test_restoring_starts_as_the_process_restores_best_and_generating_as_the_model_samples(tiny_config):
    gr = pytest.importorskip("gradio", reason="the page needs gradio: pip install 'ihdm[app]'")
    from ihdm.app.page import build

    studio = made(tiny_config, "sampling.sampler=exact", "sampling.steps=4", "sampling.eta=0.7")
    page = build({"tiny": studio})
    assert any(
        "usually made in 4 steps" in str(block.value) for block in page.blocks.values() if type(block) is gr.HTML
    )
    kinds = {"Kind of steps", "Number of steps", "Randomness"}
    fields = [block for block in page.blocks.values() if getattr(block, "label", None) in kinds]
    found = [(field.value, field.visible, field.interactive) for field in fields]
    own = studio.process.sampling
    assert found[:4] == [("exact", True, None), (4, True, True), (own.delta_ratio, False, None), (0.7, True, None)]
    assert found[4:] == [("paper", True, None), (10, True, False), (own.delta_ratio, True, None), (0.7, False, None)]

    seen = studio.model.restorer().observation(torch.rand(1, 8, 8), 2.0)
    for sampling in ({}, chosen(studio.process, dict(zip(("sampler", "steps", "delta_ratio"), ("paper", 10, 1.25))))):
        growth = studio.restore(seen, 2, 0, **sampling)
        assert growth.levels == [k for k, _ in growth] == list(range(seen.level, -1, -1))


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


def asked(addresses: Addresses, method: str = "GET", path: str = "/config", kind: str = "http", **headers: str) -> str:
    """What the door answers: the status, or "let in"."""
    found = []

    async def inside(scope, receive, send):
        found.append("let in")

    async def send(message):
        found.append(str(message.get("status", message["type"])))

    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": kind, "method": method, "path": path, "headers": pairs}
    asyncio.run(Door(inside, addresses)(scope, None, send))
    return found[0]


def test_the_page_answers_only_at_its_own_addresses():
    own = {"localhost:7860", "127.0.0.1:7860", "[::1]:7860", "LOCALHOST", "localhost:9000"}  # the last by a tunnel
    others = {"192.168.1.5:7860", socket.gethostname()}
    strange = {
        "evil.example",
        "evil.example:7860",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "",
        "[::1",
        "a@b",
    }
    for listens, answered in (
        ("127.0.0.1", own),
        ("localhost", own),
        ("::1", own),
        ("0.0.0.0", own | others),
        ("192.168.1.5", own | others),
        ("box.local", own | others | {"box.local:7860"}),
    ):
        for host in own | others | strange | {"box.local:7860"}:
            expected = "let in" if host in answered else "403"
            assert asked(Addresses.of(listens), host=host) == expected, (listens, host)
    assert asked(Addresses.of("127.0.0.1")) == "403"  # without any
    named = Addresses.of("127.0.0.1", ["Pictures.example.org", "localhost:8888"])
    assert asked(named, host="pictures.example.org") == asked(named, host="pictures.example.org:443") == "let in"
    assert asked(named, host="example.org") == "403"


def test_requests_of_pages_elsewhere_are_refused():
    addresses, host = Addresses.of("127.0.0.1", ["pictures.example.org"]), "127.0.0.1:7860"
    for origin in ("http://127.0.0.1:7860", "https://pictures.example.org"):
        assert asked(addresses, "POST", "/gradio_api/upload", host=host, origin=origin) == "let in"
    for origin in ("http://evil.example", "null", "http://127.0.0.1:8888", "http://localhost:7860", "file://"):
        for method in ("GET", "POST", "DELETE", "OPTIONS"):
            assert asked(addresses, method, "/gradio_api/upload", host=host, origin=origin) == "403"
        assert asked(addresses, kind="websocket", host=host, origin=origin) == "websocket.close"
    for site, expected in (("same-origin", "let in"), ("none", "let in"), ("same-site", "403"), ("cross-site", "403")):
        assert asked(addresses, host=host, sec_fetch_site=site, sec_fetch_mode="no-cors") == expected
    link = {"host": host, "sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate"}
    assert asked(addresses, path="/", sec_fetch_dest="document", **link) == "let in"
    assert asked(addresses, path="/", sec_fetch_dest="iframe", **link) == "403"
    assert asked(addresses, path="/gradio_api/deep_link", sec_fetch_dest="document", **link) == "403"


def test_names_that_are_none_are_refused_before_the_model_is_read(capsys):
    pytest.importorskip("gradio", reason="the page needs gradio: pip install 'ihdm[app]'")
    for name in ("http://pictures.example.org/", "*", ""):
        with pytest.raises(SystemExit):
            cli.main(["app", "no-such-model", "--port", "0", "--allow-host", name])
        assert "--allow-host takes a name" in capsys.readouterr().err


def test_the_page_has_the_tabs_that_the_process_can_fill(studio, tiny_config):
    assert tabs(studio) == ["Generate", "Colour and shape", "Interpolate", "Branch", "Restore"]
    assert tabs(made(tiny_config, "process.skip=identity", "process.blur=gaussian")) == [
        "Generate",
        "Brightness and shape",
        "Interpolate",
        "Branch",
    ]
    assert tabs(made(tiny_config, "process.kind=ddpm")) == ["Generate", "Interpolate", "Branch"]
    assert tabs(made(tiny_config, "process.kind=ddpm", "sampling.eta=0")) == ["Generate", "Interpolate"]
    assert "Branch" in tabs(made(tiny_config, "process.kind=soft"))
    assert tabs(made(tiny_config, "process.kind=cold")) == ["Generate", "Interpolate"]  # whose steps take no noise


def test_a_process_of_ones_own_has_a_page(tiny_config, monkeypatch):
    """Fading to grey and back, in words that every process has."""

    @dataclass(frozen=True)
    class FadeSettings:
        K: int = setting(8, "number of levels")

    class Fade(Process):
        Settings = FadeSettings
        title = "fading"

        def __init__(self, settings, sampling, shape):
            self.K, self.sampling, self.shape = settings.K, sampling, shape

        def noised(self, u_0, k, eps):
            return torch.lerp(u_0, 0.5 + eps / 100, (k / self.K).view(-1, 1, 1, 1))

        def loss(self, network, u_0, k, eps):
            return (network(self.noised(u_0, k, eps), k) - u_0).square().flatten(1).mean(1)

        def step(self, network, u_k, k, j, eps):
            return u_k + (k - j) / self.K * network(u_k, k.expand(len(u_k)))

        def start(self, noise):
            return 0.5 + noise(self.K + 1) / 100

    monkeypatch.setattr(PROCESSES, "_classes", dict(PROCESSES._classes))
    PROCESSES.register("fade")(Fade)
    studio = made(tiny_config, "process.kind=fade", "sampling.steps=4")
    assert tabs(studio) == ["Generate", "Interpolate", "Branch"]
    assert [way.free for way in ways(studio.process)] == [{"steps"}]
    assert studio.grow(2, 0, **chosen(studio.process, {"steps": 2})).levels == [10, 5, 0]
    strip = last(studio.between(3, 8, 5))
    torch.testing.assert_close(strip[-1], last(studio.grow(1, 8))[0])


def test_colours_are_read_as_browsers_write_them():
    pytest.importorskip("gradio", reason="the page needs gradio: pip install 'ihdm[app]'")
    from ihdm.app.tabs.colour_and_shape import parse_colour

    for text in ("#ff0080", "rgba(255, 0, 128, 1)", "rgb(255, 0, 128)"):
        assert parse_colour(text) == pytest.approx([1, 0, 128 / 255])
    for text in ("blurple", "", None, "rgba(1)", "rgba(300, 0, 0, 1)", "rgba(a, b, c)"):
        with pytest.raises(UsageError, match="not a colour"):
            parse_colour(text)
