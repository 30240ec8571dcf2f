"""The web page in a real browser: every tab, by clicks."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import runpy
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from PIL import Image

from ihdm.config import Config
from ihdm.model import Model
from ihdm.model_folder import ModelConfig

pytest.importorskip("gradio", reason="the page needs gradio: pip install 'ihdm[app]'")
playwright = pytest.importorskip("playwright.sync_api", reason="tests in a browser need playwright: pip install it")
CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="tests in a browser need chromium: apt-get install chromium")

SERVER = """
import json, sys
log = open(sys.argv[1], "a", buffering=1)
def watch(event, arguments):  # every attempt of the server to reach a machine by name or address
    if event == "socket.getaddrinfo":
        print(json.dumps(str(arguments[0])), file=log)
    elif event == "socket.connect" and isinstance(arguments[1], tuple):
        print(json.dumps(str(arguments[1][0])), file=log)
sys.addaudithook(watch)
from ihdm.cli import main
main(["app", *sys.argv[2:], "--device", "cpu"])
"""
HERE = {"127.0.0.1", "localhost", "::1", "None", "b'localhost'", "b'127.0.0.1'"}
SLOW = {"timeout": 30_000}


def saved(folder: Path, *settings: str) -> Path:
    """An untrained model of colour images, with levels enough to be cancelled on the way."""
    network = ["network.channels=16", "network.multipliers=1,2", "network.attention=1", "network.blocks=1"]
    config = Config().with_settings(["process.K=60", *settings, *network])
    images = torch.randint(0, 256, (40, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    Model.from_images(ModelConfig.of(config, (3, 8, 8)), images).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def address(tmp_path_factory) -> Iterator[str]:
    with served(saved(tmp_path_factory.mktemp("browser") / "tiny", "process.skip=linear")) as found:
        yield found


@contextlib.contextmanager
def served(model_folder: Path) -> Iterator[str]:
    """The page, served by a process of its own, which in the end has asked no other machine for anything."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log, out = model_folder.parent / "asked", model_folder.parent / "out"
    words = [sys.executable, "-c", SERVER, str(log), str(model_folder), "--port", str(port)]
    temporary = model_folder.parent / "temporary"
    temporary.mkdir()
    options = {"stderr": subprocess.STDOUT, "env": os.environ | {"TMPDIR": str(temporary)}}
    with out.open("w") as file, subprocess.Popen(words, stdout=file, **options) as server:
        try:
            for _ in range(600):
                if "shows the page" in out.read_text() or server.poll() is not None:
                    break
                time.sleep(0.1)
            assert server.poll() is None, out.read_text()
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
    asked = {json.loads(line) for line in log.read_text().splitlines()}
    assert asked <= HERE, f"the server asked {asked - HERE}"
    assert not [*temporary.glob("ihdm-app-*")], "files of visitors are still there"
    assert "Traceback" not in out.read_text(), out.read_text()


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def page(browser, address) -> Iterator[playwright.Page]:
    with visitor(browser, address) as found:
        yield found


@contextlib.contextmanager
def visitor(browser, address: str) -> Iterator[playwright.Page]:
    """A visitor, whose browser in the end has asked nobody but the server."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    page = context.new_page()
    page.goto(address)
    playwright.expect(button(page, "Make pictures")).to_be_visible(**SLOW)
    yield page
    context.close()
    assert asked and not [url for url in asked if not url.startswith((address, "data:", "blob:"))]


def button(page, name: str):
    return page.get_by_role("button", name=name, exact=True)


def tab(page, name: str) -> None:
    page.get_by_role("tab", name=name).click()


def fill(page, label: str, value: str) -> None:
    """The number beside a slider of the open tab."""
    page.get_by_label(f"number input for {label}").locator("visible=true").fill(value)
    page.keyboard.press("Tab")


def scrub(page, key: str, words: str) -> None:
    page.get_by_role("slider", name="From nothing").focus()
    page.keyboard.press(key)
    playwright.expect(page.locator(".words:visible").first).to_contain_text(words, **SLOW)


def says(page, words: str | re.Pattern[str]) -> None:
    """Wait for the status line of the open tab."""
    playwright.expect(page.locator(".block.status:visible")).to_contain_text(words, **SLOW)


def shown(page, name: str):
    """The picture of that name, once it is there and loaded."""
    image = page.locator(f"#{name} img")
    playwright.expect(image).to_be_visible(**SLOW)
    page.wait_for_function("name => document.querySelector(`#${name} img`).naturalWidth > 0", arg=name)
    return image


def nothing_shown(page, *names: str) -> None:
    """Neither pictures nor words about them, and nothing to save."""
    for name in names:
        playwright.expect(page.locator(f"#{name} img")).to_have_count(0)
    for words in page.locator(".words:visible").all():
        playwright.expect(words).to_have_text("")
    for save in page.locator(".save:visible").all():
        playwright.expect(save).to_be_disabled()


def test_visitors_find_pictures_in_every_tab(page):
    for name, pictures in (
        ("Generate", ["generated"]),
        ("Colour and shape", ["table"]),
        ("Interpolate", ["strip", "moving"]),
        ("Branch", ["path", "state"]),
    ):
        tab(page, name)
        for picture in pictures:
            shown(page, picture)
    playwright.expect(page.locator("#futures .thumbnail-item")).to_have_count(8, **SLOW)
    says(page, "")


def test_browsers_are_told_to_ask_no_other_host(page):
    fetched = "url => fetch(url, {mode: 'no-cors'}).then(() => 'answered', error => String(error))"
    refused = []
    page.on("console", lambda message: refused.append(message.text))
    assert "TypeError" in page.evaluate(fetched, "http://localhost:9/")  # another host, if not another machine
    assert any("Content Security Policy" in text for text in refused)


def test_the_server_answers_only_at_its_own_address_and_only_its_own_pages(address):
    own = address.removeprefix("http://")
    upload = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\nhello\r\n--x--\r\n'
    form = {"Content-Type": "multipart/form-data; boundary=x"}
    for path, headers, sent, status, words in (
        ("/", {}, None, 200, b"<!doctype html>"),
        ("/", {"Host": "evil.example"}, None, 403, b"answers only at its own addresses"),
        ("/gradio_api/upload", form | {"Origin": address}, upload, 200, b"a.png"),
        ("/gradio_api/upload", form | {"Origin": "http://evil.example"}, upload, 403, b"only from itself"),
        ("/gradio_api/queue/data?session_hash=a", {"Origin": "null"}, None, 403, b"only from itself"),
        ("/config", {"Sec-Fetch-Site": "cross-site"}, None, 403, b"only from itself"),
        ("/gradio_api/file=/etc/passwd", {}, None, 403, b"not allowed"),
        ("/monitoring", {}, None, 403, b"not enabled"),
    ):
        connection = http.client.HTTPConnection(own, timeout=30)
        connection.request("GET" if sent is None else "POST", path, sent, headers)
        answer = connection.getresponse()
        assert (answer.status, words in answer.read()) == (status, True), (path, headers)
        assert answer.headers["Access-Control-Allow-Origin"] in (None, address)
        connection.close()


def test_generate_scrub_and_save(page, tmp_path):
    button(page, "Make pictures").click()
    says(page, "Done")
    sharp = shown(page, "generated").get_attribute("src")
    scrub(page, "Home", "Step 0 of 60: as if blurred over 6.0 pixels")
    assert shown(page, "generated").get_attribute("src") != sharp
    for name, form in (("Save PNG", "PNG"), ("Save GIF", "GIF")):
        with page.expect_download() as download:
            page.get_by_role("button", name=name).or_(page.get_by_role("link", name=name)).locator(
                "visible=true"
            ).click()
        download.value.save_as(tmp_path / form)
        with Image.open(tmp_path / form) as picture:
            assert picture.format == form


def test_how_to_sample_can_be_chosen(page):
    steps = page.get_by_role("slider", name="Number of steps").locator("visible=true")
    randomness = page.get_by_role("slider", name="Randomness").locator("visible=true")
    playwright.expect(steps).to_be_disabled()
    playwright.expect(randomness).to_have_attribute("max", "2.5")
    button(page, "Make pictures").click()
    says(page, "Done")
    before = shown(page, "generated").get_attribute("src")
    page.get_by_label("Exact").locator("visible=true").click()
    nothing_shown(page, "generated")
    playwright.expect(steps).to_be_enabled(**SLOW)
    playwright.expect(randomness).to_have_attribute("max", "1")
    fill(page, "Number of steps", "7")
    fill(page, "Randomness", "0.8")
    button(page, "Make pictures").click()
    playwright.expect(page.locator(".words:visible").first).to_contain_text("Step 7 of 7: sharp", **SLOW)
    assert shown(page, "generated").get_attribute("src") != before
    scrub(page, "Home", "Step 0 of 7")
    page.get_by_label("The paper's").locator("visible=true").click()
    playwright.expect(steps).to_be_disabled(**SLOW)
    playwright.expect(randomness).to_have_attribute("max", "2.5")
    button(page, "Make pictures").click()
    playwright.expect(page.locator(".words:visible").first).to_contain_text("Step 60 of 60: sharp", **SLOW)
    playwright.expect(page.get_by_label("number input for From nothing").locator("visible=true")).to_have_value("60")


@pytest.mark.slow
def test_diffusion_has_the_tabs_that_it_can_fill(browser, tmp_path):
    folder = saved(tmp_path / "noise", "process.kind=ddpm", "sampling.steps=9")
    with served(folder) as address, visitor(browser, address) as page:
        playwright.expect(page.locator("h1")).to_have_text("Pictures grown from noise")
        names = page.get_by_role("tab").filter(visible=True).all_text_contents()
        assert [name.strip() for name in names] == ["Generate", "Interpolate", "Branch"]
        assert not page.get_by_label("Kind of steps").count()
        button(page, "Make pictures").click()
        says(page, "Done")
        scrub(page, "Home", "Step 0 of 9: 100 % noise")
        fill(page, "Number of steps", "30")
        fill(page, "Randomness", "0")
        button(page, "Make pictures").click()
        playwright.expect(page.locator(".words:visible").first).to_contain_text("Step 30 of 30", **SLOW)
        scrub(page, "ArrowLeft", "Step 29 of 30")
        tab(page, "Interpolate")
        button(page, "Go from one to the other").click()
        says(page, "Done")
        shown(page, "strip")
        tab(page, "Branch")
        button(page, "1. Grow one picture").click()
        says(page, "Grown")
        button(page, "2. Show its futures").click()
        says(page, "8 futures of step 3 of 9")


def test_wrong_numbers_get_a_message_and_the_page_goes_on(page):
    field = page.get_by_label("Seed").locator("visible=true").first
    shown(page, "generated")
    field.fill("-3")
    nothing_shown(page, "generated")
    field.press("Enter")
    says(page, "The seed must be a number from 0")
    nothing_shown(page, "generated")
    button(page, "Random seed").locator("visible=true").click()
    says(page, "Done")
    assert int(field.input_value()) >= 0
    before = shown(page, "generated").get_attribute("src")
    amount = page.get_by_label("number input for How many pictures")
    amount.fill("3")
    nothing_shown(page, "generated")
    amount.press("Enter")
    says(page, "Done")
    assert shown(page, "generated").get_attribute("src") != before


def test_cancel_stops_the_work_and_lets_the_next_begin(page):
    fill(page, "How many pictures", "64")
    button(page, "Make pictures").click()
    says(page, re.compile("step [1-9]"))
    button(page, "Cancel").locator("visible=true").click()
    says(page, "Cancelled")
    page.wait_for_timeout(1500)
    says(page, "Cancelled")
    nothing_shown(page, "generated")
    button(page, "Make pictures").click()
    says(page, re.compile("step [1-9]"))
    fill(page, "How many pictures", "63")  # what it would give belongs to other settings
    says(page, "Cancelled")
    page.wait_for_timeout(500)
    nothing_shown(page, "generated")


@pytest.mark.slow
def test_two_visitors_do_not_disturb_each_other(page, browser, address):
    other = browser.new_page()
    other.goto(address)
    for one, count in ((page, "9"), (other, "4")):
        fill(one, "How many pictures", count)
        button(one, "Make pictures").click()
    for one in (page, other):
        says(one, "Done")
    sizes = [shown(one, "generated").evaluate("image => image.naturalWidth") for one in (page, other)]
    assert sizes[0] != sizes[1]
    other.close()


def test_colour_and_shape(page):
    tab(page, "Colour and shape")
    button(page, "Make the table").click()
    says(page, "Done")
    shown(page, "table")


def test_interpolate(page):
    tab(page, "Interpolate")
    button(page, "Go from one to the other").click()
    says(page, "Done")
    shown(page, "strip")
    assert ".gif" in shown(page, "moving").get_attribute("src")
    page.get_by_label("To seed").fill(page.get_by_label("From seed").input_value())
    nothing_shown(page, "strip", "moving")
    button(page, "Go from one to the other").click()
    says(page, "nothing in between")


def test_branch_and_walk_on(page):
    tab(page, "Branch")
    shown(page, "path")
    page.get_by_label("Seed").locator("visible=true").fill("5")
    nothing_shown(page, "path", "state", "futures")
    button(page, "2. Show its futures").click()
    says(page, "First grow one picture")
    button(page, "1. Grow one picture").click()
    says(page, "Grown")
    before = shown(page, "path").get_attribute("src")
    button(page, "2. Show its futures").click()
    says(page, "8 futures")
    futures = page.locator("#futures .thumbnail-item")
    playwright.expect(futures).to_have_count(8, **SLOW)
    futures.nth(2).click()
    says(page, "along future 3")
    playwright.expect(page.locator("#path img")).not_to_have_attribute("src", before, **SLOW)
    fill(page, "Stop at this percentage of the way", "60")
    playwright.expect(futures).to_have_count(0)
    shown(page, "state")
    button(page, "2. Show its futures").click()
    says(page, "8 futures")


def test_restore(page, tmp_path):
    tab(page, "Restore")
    playwright.expect(page.locator(".block.status:visible")).to_have_text("", **SLOW)  # an example, if there is one
    clear = page.locator("#upload").get_by_label("Clear")
    if clear.count():
        clear.click()
    nothing_shown(page, "summary", "versions")
    button(page, "Restore").click()
    says(page, "First choose a picture")
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"this is no picture")
    page.locator("#upload input[type=file]").set_input_files(broken)
    playwright.expect(page.locator("#upload")).to_contain_text("broken", **SLOW)
    button(page, "Restore").click()
    says(page, "not a picture that can be read")
    page.locator("#upload").get_by_label("Clear").click()
    button(page, "Blur one for me").click()
    says(page, "Here is a blurred picture")
    fill(page, "Blur width in pixels", "2")
    button(page, "Restore").click()
    says(page, "Done")
    shown(page, "summary")
    shown(page, "versions")
    words = page.locator(".words:visible").first
    playwright.expect(words).to_contain_text("Blur: 2.00 pixels wide")
    page.get_by_label("Exact").locator("visible=true").click()
    playwright.expect(page.get_by_role("slider", name="Number of steps").locator("visible=true")).to_be_enabled(**SLOW)
    fill(page, "Number of steps", "5")
    button(page, "Restore").click()
    playwright.expect(words).to_contain_text("it took 5 steps", **SLOW)
    page.locator("#upload").get_by_label("Clear").click()
    nothing_shown(page, "summary", "versions")


@pytest.mark.slow
def test_restoring_goes_between_the_papers_steps_and_the_models_own(browser, tmp_path):
    folder = saved(tmp_path / "exact", "process.skip=linear", "sampling.sampler=exact", "sampling.steps=9")
    with served(folder) as address, visitor(browser, address) as page:
        steps = page.get_by_role("slider", name="Number of steps").locator("visible=true")
        randomness = page.get_by_role("slider", name="Randomness").locator("visible=true")
        exact, paper = ("9", "1", True), ("60", "2.5", False)
        for choose, (value, most, enabled) in (
            (lambda: None, exact),
            (lambda: tab(page, "Restore"), paper),
            (lambda: page.get_by_label("Exact").locator("visible=true").click(), exact),
            (lambda: page.get_by_label("The paper's").locator("visible=true").click(), paper),
        ):
            choose()
            playwright.expect(randomness).to_have_attribute("max", most, **SLOW)
            playwright.expect(steps).to_have_value(value, **SLOW)
            playwright.expect(steps).to_be_enabled(enabled=enabled)
        button(page, "Blur one for me").click()
        says(page, "Here is a blurred picture")
        fill(page, "Blur width in pixels", "2")
        button(page, "Restore").click()
        says(page, "Done")
        words = page.locator(".words:visible").first
        level = re.search(r"level (\d+) of 60", words.inner_text())
        assert level
        playwright.expect(words).to_contain_text(f"it took {level[1]} steps")


def test_narrow_screens_have_all_tabs_and_the_picture_at_the_top(page):
    page.set_viewport_size({"width": 420, "height": 800})
    for name, picture in (
        ("Colour and shape", "table"),
        ("Interpolate", "strip"),
        ("Branch", "path"),
        ("Restore", "summary"),
        ("Generate", "generated"),
    ):
        tab(page, name)
        where = page.locator(f"#{picture}").bounding_box()
        assert where["y"] + min(where["height"], 300) < 800, (name, where)
        assert page.evaluate("document.documentElement.scrollWidth") <= 420
    shown(page, "generated")


def test_the_script_for_the_pictures_in_the_docs_makes_all_of_them(page):
    docs = Path(__file__).parent.parent / "docs"
    script = runpy.run_path(str(docs / "app" / "pictures.py"))
    tabs = [name for tabs in script["PAGES"].values() for name in tabs]
    names = [name.replace("Brightness", "Colour") for name in tabs]  # the model of these tests has colours
    assert names == [name.strip() for name in page.get_by_role("tab").filter(visible=True).all_text_contents()]
    made = {name.lower().replace(" ", "-") for name in tabs} | {"narrow"}
    assert made == {path.stem for path in (docs / "app").glob("*.png")}
    assert made == set(re.findall(r"\(app/([a-z-]+)\.png\)", (docs / "app.md").read_text()))
