"""Fields that several tabs have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

PAGE = 700  # the approximate width of a large picture, in pixels


def lead(text: str) -> gr.Markdown:
    """The text on top of a tab that says what it shows and why."""
    return gr.Markdown(text, elem_classes="lead")


def picture(name: str, **options: Any) -> gr.Image:
    return gr.Image(
        label=name,
        show_label=False,
        format="png",
        interactive=False,
        buttons=[],
        elem_classes="picture",
        elem_id=name,
        **options,
    )


def seed(label: str = "Seed", value: int = 0, info: str = "The same seed always gives the same pictures.") -> gr.Number:
    """The field has no limits: the seed is checked with everything else, where the message can be a plain one."""
    return gr.Number(value, label=label, info=info)


def random_seed(label: str = "Random seed") -> gr.Button:
    return gr.Button(label, size="sm")


def save_button(what: str) -> gr.DownloadButton:
    return gr.DownloadButton(f"Save {what}", interactive=False, size="sm", min_width=110, elem_classes="save")


def stacked(top: Image.Image, bottom: Image.Image) -> Image.Image:
    """One page above another."""
    page = Image.new("RGB", (max(top.width, bottom.width), top.height + bottom.height), "white")
    page.paste(top, (0, 0))
    page.paste(bottom, (0, top.height))
    return page


def saved(page: Image.Image, path: Path) -> Any:
    """Write a picture and let a button offer it."""
    page.save(path)
    return offered(path)


def offered(path: Path) -> Any:
    return gr.update(value=str(path), interactive=True)
