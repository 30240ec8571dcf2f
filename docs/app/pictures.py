"""Takes the pictures in docs/app.md again: python docs/app/pictures.py

It needs chromium, playwright, and the package with the extra app: pip install -e '.[app]' playwright.
"""

from __future__ import annotations

import io
import shutil
import socket
import subprocess
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

HERE = Path(__file__).parent
WIDE, NARROW = {"width": 1280, "height": 860}, {"width": 420, "height": 860}
COLOURS = 256  # of the saved pictures, which halves their size
PAGES = {  # for each address: its tabs, and a picture in each of them
    "": {"Generate": "generated"},
    "mnist-ready": {"Brightness and shape": "table", "Interpolate": "moving", "Branch": "path", "Restore": "versions"},
}


def main() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "ihdm", "app", "--port", str(port), "--device", "cpu", "--precision", "float32"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as driver:
        try:
            assert server.stdout and "shows the page" in server.stdout.readline(), "the page did not start"
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport=WIDE)
            for address, tabs in PAGES.items():
                page.goto(f"http://127.0.0.1:{port}/{address}")
                for name, picture in tabs.items():
                    page.get_by_role("tab", name=name).click(timeout=60_000)
                    expect(page.locator(f"#{picture} img")).to_be_visible(timeout=120_000)
                    save(page, name.lower().replace(" ", "-"))
            page.set_viewport_size(NARROW)
            page.get_by_role("tab", name="Generate").click()
            expect(page.locator("#generated img")).to_be_visible(timeout=120_000)
            save(page, "narrow", whole=False)
            browser.close()
        finally:
            server.terminate()


def save(page: Page, name: str, whole: bool = True) -> None:
    page.mouse.move(0, 0)
    page.wait_for_timeout(1000)  # until transitions have ended
    with Image.open(io.BytesIO(page.screenshot(full_page=whole))) as shot:
        small = shot.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        small.save(HERE / f"{name}.png", optimize=True)
    print(HERE / f"{name}.png")


if __name__ == "__main__":
    main()
