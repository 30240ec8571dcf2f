"""How the page looks. Fonts are those that come with gradio: nothing is loaded from elsewhere."""

from __future__ import annotations

import gradio as gr
from gradio.themes.utils.fonts import LocalFont

CSS = """
.gradio-container { width: 100% !important; max-width: 1180px !important; margin: 0 auto !important; }
.gradio-container main { padding-top: 0.6rem !important; }
.html-container { padding: 0 !important; }
.masthead h1 { font-size: 1.9rem; font-weight: 600; letter-spacing: -0.02em; margin: 0; line-height: 1.15; }
.masthead p, .masthead .aside { color: var(--body-text-color-subdued); margin: 0.35rem 0 0; }
.lead { max-width: 60rem; padding: 0.2rem 0 0.2rem; }
.lead p { font-size: 1.08rem; line-height: 1.55; margin: 0; }
.picture img { image-rendering: pixelated; border-radius: 6px; }
.picture { border: none !important; background: transparent !important; box-shadow: none !important; }
#generated img { max-height: 430px; }
#table img { max-height: 560px; }
.picture .icon-button-wrapper { display: none; }
.picture .empty { min-height: 9rem; border: 1px dashed var(--border-color-primary); border-radius: 6px; }
#generated .empty, #table .empty { min-height: 20rem; }
.picture .empty .icon, .futures .empty .icon { display: none; }
.picture .empty::after, .futures .empty::after { content: "Nothing here yet"; font-size: 0.9rem; }
.picture .empty::after, .futures .empty::after { color: var(--body-text-color-subdued); }
.status { min-height: 3.1rem; }
.status p { margin: 0 0 0.35rem; font-size: 0.95rem; color: var(--body-text-color-subdued); }
.status p.problem { color: #b3261e; font-weight: 600; }
.dark .status p.problem { color: #ff8a80; }
.track { height: 6px; border-radius: 3px; background: var(--border-color-primary); overflow: hidden; }
.track div { height: 100%; border-radius: 3px; background: var(--color-accent); transition: width 0.2s linear; }
.words p { color: var(--body-text-color-subdued); margin: 0; }
.futures img { image-rendering: pixelated; }
.futures { border: none !important; background: transparent !important; box-shadow: none !important; }
.futures .grid-wrap { min-height: 0 !important; height: auto !important; max-height: none !important; }
.futures .grid-wrap { padding: 0 !important; overflow: visible !important; }
.futures .grid-container { grid-template-columns: repeat(4, minmax(0, 1fr)) !important; }
#state img { max-height: 220px; }
.save { max-width: 11rem; }
@media (max-width: 640px) {
  .gradio-container main { padding: 0.4rem 0.8rem !important; }
  .masthead h1 { font-size: 1.35rem; }
  .masthead p { font-size: 0.85rem; margin-top: 0.2rem; }
  .masthead .aside { display: none; }
  .lead p { font-size: 0.92rem; line-height: 1.4; }
  .tabs { gap: 0.4rem !important; }
  .tabitem { padding-top: 0.4rem !important; }
  .tab-wrapper { height: auto !important; padding-bottom: 0 !important; }
  .tab-container:not(.visually-hidden) { flex-wrap: wrap; height: auto !important; overflow: visible !important; }
  .tab-container:not(.visually-hidden) button { height: auto !important; padding: 0.35rem 0.6rem !important; }
  .tab-container.visually-hidden button { width: 1px !important; padding: 0 !important; } /* by which it is measured */
  .sides { display: contents !important; }
  .lead { order: -2; }
  .results { order: -1; gap: 0.6rem !important; }
  .how { order: 1; }
  #table img { max-height: 420px; }
  #state img { max-height: 130px; }
}
@media (max-width: 1240px) and (max-resolution: 1.5dppx) { .picture img { image-rendering: auto; } }
"""

# Enter in a field presses the next large button after it.
ENTER_STARTS = """() => document.addEventListener("keydown", event => {
  const field = event.target;
  if (event.key !== "Enter" || !(field instanceof HTMLInputElement) || field.type === "file") return;
  const buttons = [...document.querySelectorAll("button.primary")].filter(button => button.offsetParent);
  const next = buttons.find(button => field.compareDocumentPosition(button) & Node.DOCUMENT_POSITION_FOLLOWING);
  if (!next) return;
  event.preventDefault();
  field.blur();
  setTimeout(() => next.click(), 50);
})"""


def theme() -> gr.themes.Base:
    """Warm paper, dark ink, one accent."""
    return gr.themes.Base(
        primary_hue=gr.themes.colors.orange,
        neutral_hue=gr.themes.colors.stone,
        radius_size=gr.themes.sizes.radius_md,
        font=[  # gradio has these two weights of it complete
            LocalFont("IBM Plex Sans", (400, 700)),
            "system-ui",
            "sans-serif",
        ],
        font_mono=["ui-monospace", "monospace"],
    ).set(
        body_background_fill="#faf8f5",
        body_background_fill_dark="#171412",
        body_text_color_subdued="#78716c",
        body_text_color_subdued_dark="#a8a29e",
        block_info_text_color="#78716c",
        block_border_width="1px",
        block_shadow="0 1px 2px rgba(40, 25, 10, 0.05)",
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_hover="*primary_700",
        button_primary_background_fill_dark="*primary_600",
        button_primary_text_color="white",
        slider_color="*primary_600",
    )
