"""Exported models that know labels: programs that are told one for each image, and how much it counts."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import json
import runpy
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pytest
import torch
from test_export import CASES, CHROMIUM, EXAMPLES, PIXELS, UNET, WEB, Small, built, chain_of, with_onnx
from torch import Tensor
from torch.fx import GraphModule

from ihdm.cli import main
from ihdm.export import archives, folders, graphs
from ihdm.export.programs import programs, steps
from ihdm.labels import LabelledNoise
from ihdm.model import Model
from ihdm.noise import SeededNoise

EXPORTS = pytest.mark.exports
ASKED = torch.tensor([2, 0, 3, 1])  # right, left, none, middle
GUIDANCES = (0.0, 1.0, 1.5)
DRAWN_FROM = ["heat, the paper's steps", "ddpm, second order"]  # with starts that have labels, and without


class Knowing(Small):
    """A small network that is told labels."""

    def __init__(self) -> None:
        super().__init__()
        self.shades = torch.nn.Embedding(4, 1)

    def forward(self, u: Tensor, k: Tensor, condition: Tensor | None = None) -> Tensor:
        label = torch.full_like(k, 3) if condition is None else condition
        return super().forward(u + self.shades(label)[:, :, None, None], k)


@pytest.fixture
def unet(tiny_config, labelled) -> Model:
    return built(tiny_config, labelled, UNET)


def grown(model: Model, start, step, labels: Tensor, guidance: float, seed: int) -> list[Tensor]:
    """The images after each step, by programs."""
    noise = SeededNoise(seed, torch.arange(len(labels)), model.config.shape)
    state, _ = start(noise.choice(2**63 - 1), noise(model.process.K + 1), labels)
    images = []
    for levels in steps(model.process):
        k, j, i = torch.tensor(levels)
        state, image = step(state, k, j, i, noise(k), labels, torch.tensor(guidance))
        images.append(image)
    return images


def check(model: Model, start, step, atol: float) -> None:
    """That they are what the model makes, for any number of images and any guidance."""
    found = {}
    for n, guidance in ((1, 1.5), *((4, guidance) for guidance in GUIDANCES)):
        found[guidance] = grown(model, start, step, ASKED[:n], guidance, 3)
        ours = [u for _, u in model.trajectory(n, 3, labels=ASKED[:n], guidance=guidance)][1:]
        torch.testing.assert_close(found[guidance], ours, atol=atol, rtol=0)
    ends = [found[guidance][-1] for guidance in GUIDANCES]
    assert not ends[0].allclose(ends[1], atol=1e-3) and not ends[1].allclose(ends[2], atol=1e-3)


@pytest.mark.parametrize("name", [next(iter(CASES)), *(pytest.param(name, marks=EXPORTS) for name in [*CASES][1:])])
def test_programs_of_every_process_are_told_labels(name, tiny_config, labelled):
    model = built(tiny_config, labelled, CASES[name], Knowing())
    torch.nn.init.normal_(model.network.shades.weight, std=2)
    found = programs(model)
    check(model, *(found[name].traced().module() for name in ("start", "step")), 1e-5)


def test_a_guidance_of_1_calls_the_network_once(tiny_config, labelled):
    model = built(tiny_config, labelled, CASES["heat, the paper's steps"], Knowing())
    with torch.no_grad():
        model.network.shades.weight[3] = torch.nan  # which spoils the answer without a label
    found = programs(model)
    start, step = (found[name].traced().module() for name in ("start", "step"))
    *_, one = grown(model, start, step, ASKED[:2], 1.0, 3)
    *_, more = grown(model, start, step, ASKED[:2], 1.5, 3)
    assert one.isfinite().all() and more.isnan().all()


@dataclass(frozen=True)
class Drawn(LabelledNoise):
    """What somebody else drew, in that order."""

    chosen: Tensor
    eps: Iterator[Tensor]

    def __call__(self, k):
        return next(self.eps)

    def _stream(self, k):
        return self.chosen


def expected(model: Model, chosen: Tensor, eps: Iterable[Tensor], labels: Tensor, guidance: float) -> Tensor:
    """The images that the model makes of such draws."""
    noise = Drawn(0, torch.arange(len(labels)), model.config.shape, labels, model.start_labels, chosen, iter(eps))
    *_, (_, images) = model.path(model.process.start(noise), noise, labels=labels, guidance=guidance)
    return images.clamp(0, 1)


def by_chain(model: Model, chance: torch.Generator, n: int, labels: Tensor | None, guidance: float) -> Tensor:
    """Those that it makes of the draws of a `Chain`."""
    counts = torch.tensor(model.config.labels.counts)
    place = torch.randint(int(counts.sum()), (n,), generator=chance)
    drawn = torch.repeat_interleave(torch.arange(3), counts)[place]
    chosen = torch.randint(2**62, (n,), generator=chance)
    eps = (torch.randn(n, *model.config.shape, generator=chance) for _ in range(1 + len(steps(model.process))))
    return expected(model, chosen, eps, drawn if labels is None else labels, guidance)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def test_names_that_are_numbers_are_told_from_numbers_as_the_model_does():
    kind = chain_of(folders.CARRIED)
    chain = kind.__new__(kind)
    chain.__dict__ |= {"labels": ["1", "5"]}
    tensor = torch.tensor([1, 0, 2])  # of numbers, 2 for none
    assert chain._numbers(tensor).equal(tensor) and chain._numbers([5, "1", 2]).tolist() == [1, 0, 2]
    for wrong in ([0], torch.tensor([3]), torch.tensor([0.5])):
        with pytest.raises(ValueError, match=r"unknown label '0'; one of: 1, 5|whole numbers from 0 to 2"):
            chain._numbers(wrong)


@EXPORTS
def test_a_folder_for_torch_takes_labels(unet, tmp_path, monkeypatch):
    monkeypatch.setitem(folders.LAYOUTS, "torch", (archives, ("start", "step"), ("ihdm_chain.py",)))  # sooner done
    unet.save_pretrained(tmp_path / "model")
    out = tmp_path / "out"
    main(["export", str(tmp_path / "model"), str(out), "--format", "torch"])
    about, known = json.loads((out / "chain.json").read_text()), unet.config.labels
    assert about["labels"] == ["left", "middle", "right"] and about["counts"] == list(known.counts)
    with zipfile.ZipFile(out / "step.pt2") as archive:
        contents = [archive.read(name) for name in archive.namelist()]
    assert not [content for content in contents if b"/src/ihdm" in content or b"site-packages" in content]

    chain = chain_of(out).from_pretrained(out)
    assert chain.labels == about["labels"]
    asked = {"right": [2] * 4, 0: [0] * 4, 3: [3] * 4, ("right", 0, 3, "middle"): ASKED.tolist(), None: None}
    for given, numbers in asked.items():
        told = None if numbers is None else torch.tensor(numbers)
        labels = list(given) if isinstance(given, tuple) else given
        for guidance in (1.0, 2.5):
            theirs = chain.sample(4, seeded(), labels=labels, guidance=guidance)
            ours = by_chain(unet, seeded(), 4, told, guidance)
            torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=0)
    torch.testing.assert_close(chain.sample(4, seeded(), ASKED), chain.sample(4, seeded(), ["right", 0, 3, 1]))
    own = [torch.Generator().manual_seed(seed) for seed in (5, 6)]
    alone = chain.sample(1, [torch.Generator().manual_seed(6)])
    torch.testing.assert_close(chain.sample(2, own)[1:], alone, atol=1e-5, rtol=0)

    wrong = {
        "unknown label 'rigth'; did you mean 'right'?": {"labels": "rigth"},
        "unknown label '4'; one of: left, middle, right": {"labels": 4},
        "one for each of 2, not 1": {"labels": ["left"]},
        "guidance must be a number from 0 .* not -0.5": {"labels": "left", "guidance": -0.5},
        "guidance must be a number from 0 .* not nan": {"guidance": float("nan")},
    }
    for words, options in wrong.items():
        with pytest.raises(ValueError, match=words):
            chain.sample(2, **options)

    chain.to("meta")  # which knows no guidance to branch by: so all that is in a program is looked at, not run
    for program in (chain._start, chain._step):
        held = [tensor for part in program.modules() for tensor in vars(part).values() if isinstance(tensor, Tensor)]
        tensors = [*program.parameters(), *program.buffers(), *held]
        graphs = [part.graph for part in program.modules() if isinstance(part, GraphModule)]
        made = [node.kwargs["device"] for graph in graphs for node in graph.nodes if "device" in node.kwargs]
        assert {torch.device(place).type for place in (*(tensor.device for tensor in tensors), *made)} == {"meta"}


@with_onnx
@pytest.mark.parametrize("name", DRAWN_FROM)
def test_onnx_is_told_labels(name, tiny_config, labelled, tmp_path):
    model = built(tiny_config, labelled, CASES[name], Knowing())
    torch.nn.init.normal_(model.network.shades.weight, std=2)
    runs = []
    for program in (programs(model)[name] for name in ("start", "step")):
        assert graphs.write(program, tmp_path / program.name) < 1e-5
        runs.append(graphs.runner(tmp_path / program.name, list(program.example(1))))
    check(model, *runs, 1e-4)


@with_onnx
def test_onnx_samples_labels_as_the_model_does(unet, tmp_path):
    """By hand, and with the example that has NumPy and onnxruntime alone."""
    np = pytest.importorskip("numpy")
    differences = folders.write(unet, "onnx", tmp_path)
    assert set(differences) == {"start.onnx", "step.onnx", "network.onnx"} and max(differences.values()) < 1e-5
    found = programs(unet)
    runs = [graphs.runner(tmp_path / f"{name}.onnx", list(found[name].example(1))) for name in ("start", "step")]
    check(unet, *runs, 1e-4)
    for file in tmp_path.glob("*.onnx"):
        assert b"/src/ihdm" not in file.read_bytes() and b"site-packages" not in file.read_bytes()

    chances = [np.random.default_rng([5, i]) for i in range(4)]
    drawn = [int(chance.integers(32)) for chance in chances]
    chosen = torch.tensor([int(chance.integers(2**62)) for chance in chances])

    def normal() -> Iterator[Tensor]:
        while True:
            yield torch.stack([torch.from_numpy(one.standard_normal((1, 8, 8), np.float32)) for one in chances])

    sample = runpy.run_path(str(EXAMPLES / "onnx_sampling.py"))["sample"]
    ours = expected(unet, chosen, normal(), ASKED[[0, 1, 0, 1]], 1.5)
    theirs = torch.from_numpy(sample(tmp_path, 4, 5, 1, ("right", "0"), 1.5))
    torch.testing.assert_close(theirs, ours, atol=1e-4, rtol=0)
    of_places = torch.repeat_interleave(torch.arange(3), torch.tensor(unet.config.labels.counts))
    names = tuple(unet.config.labels.names[i] for i in of_places[drawn])
    np.testing.assert_array_equal(sample(tmp_path, 4, 5, 1), sample(tmp_path, 4, 5, 1, names))

    program = [sys.executable, str(EXAMPLES / "onnx_sampling.py"), str(tmp_path), "--out", str(tmp_path / "x.png")]
    done = subprocess.run([*program, "--n", "3", "--label", "right", "--guidance", "2"], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr and (tmp_path / "x.png").exists()
    for words, message in ((["--label", "rigth"], "unknown label 'rigth'"), (["--guidance", "-1"], "number from 0")):
        done = subprocess.run([*program, *words], capture_output=True, text=True)
        assert done.returncode == 1 and message in done.stderr


DIFFUSERS = """
import sys, torch
sys.modules["ihdm"] = None
from diffusers import DiffusionPipeline
pipeline = DiffusionPipeline.from_pretrained(sys.argv[1], custom_pipeline=sys.argv[1], trust_remote_code=True)
options = {"generator": torch.Generator().manual_seed(1), "output_type": "pt"}
torch.save(pipeline(4, labels=["right", 0, 3, "middle"], guidance=1.5, **options).images, sys.argv[2])
try:
    pipeline(4, labels="rigth")
except ValueError as error:
    print(error)
"""


@pytest.mark.skipif(not importlib.util.find_spec("diffusers"), reason="needs diffusers: pip install 'ihdm[diffusers]'")
def test_diffusers_takes_labels(unet, tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    folders.write(unet, "diffusers", out)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    words = [sys.executable, "-c", DIFFUSERS, str(out), str(tmp_path / "images.pt")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "unknown label 'rigth'; did you mean 'right'?" in done.stdout
    found = torch.load(tmp_path / "images.pt", weights_only=True)
    torch.testing.assert_close(found, by_chain(unet, seeded(), 4, ASKED, 1.5), atol=1e-5, rtol=0)


DRAWS = """async ([seed, images, size, steps, counts]) => {
  const page = await import("./page.js");
  const chances = Array.from({ length: images }, (_, image) => page.chance(seed, image));
  const numbers = [page.labels(chances, counts), page.choices(chances)].map((values) => [...values].map(Number));
  return [...numbers, Array.from({ length: steps + 1 }, () => [...page.normal(chances, size)])];
}"""


@with_onnx
@pytest.mark.skipif(CHROMIUM is None, reason="tests in a browser need chromium: apt-get install chromium")
@pytest.mark.skipif(not WEB.is_dir(), reason="needs npm install --no-save onnxruntime-web@1.30.0 beside README.md")
def test_a_page_has_buttons_for_labels(unet, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api")
    folders.write(unet, "web", tmp_path)
    (tmp_path / "node_modules").symlink_to(WEB.parent)
    served = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), served) as server, playwright.sync_playwright() as driver:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()

        def made() -> list[int]:
            playwright.expect(page.locator("#grow")).to_be_enabled(timeout=60_000)
            playwright.expect(page.get_by_role("status")).to_contain_text("16 images in")
            return page.evaluate(PIXELS)

        page.goto(f"http://127.0.0.1:{server.server_port}/")
        pictures = {(None, 1.0): made()}
        buttons = page.get_by_role("group", name="What they show").get_by_role("button")
        assert buttons.all_inner_texts() == ["any", "left", "middle", "right"]
        assert [button.get_attribute("aria-pressed") for button in buttons.all()] == ["true", *["false"] * 3]
        page.get_by_role("button", name="right").click()
        pictures[2, 1.0] = made()
        assert page.locator("[aria-pressed=true]").all_inner_texts() == ["right"]
        page.get_by_label("Guidance").fill("2.5")
        page.get_by_role("button", name="left").click()
        pictures[0, 2.5] = made()
        page.get_by_label("Guidance").fill("-1")
        page.get_by_role("button", name="Grow 16 images").click()
        assert page.get_by_label("Guidance").evaluate("field => field.validationMessage")
        assert page.evaluate(PIXELS) == pictures[0, 2.5]
        counts = list(unet.config.labels.counts)
        drawn, chosen, draws = page.evaluate(DRAWS, [0, 16, 64, len(steps(unet.process)), counts])
        browser.close()
        server.shutdown()
    assert len(set(drawn)) == 3
    for (label, guidance), pixels in pictures.items():
        told = torch.tensor(drawn) if label is None else torch.full((16,), label)
        eps = torch.tensor(draws).view(-1, 16, 1, 8, 8)
        images = expected(unet, torch.tensor(chosen), eps, told, guidance)
        rows = torch.tensor(pixels).view(4, 8, 4, 8, 4).permute(0, 2, 4, 1, 3).reshape(16, 4, 8, 8)
        assert (rows[:, :3] - 255 * images).abs().max() <= 1
