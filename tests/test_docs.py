"""The documentation: links lead somewhere, commands are ones that ihdm understands, errors are ones that it has."""

from __future__ import annotations

import ast
import functools
import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import tyro

import ihdm
from ihdm.cli import AS_TYPED, VERBS
from ihdm.config import load_config, presets
from ihdm.studies import STUDIES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), ROOT / "benchmarks" / "README.md", *sorted(DOCS.rglob("*.md"))]
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:)([^)\s]*)\)")


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def prose(page: Path) -> str:
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """Of headings, as GitHub makes them; of a second one of the same words it makes another."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    found: list[str] = []
    for heading in headings:
        slug = re.sub(r"[^\w\- ]", "", LINK.sub("", heading).lower()).replace(" ", "-")
        found.append(f"{slug}-{found.count(slug)}" if slug in found else slug)
    return set(found)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_and_headings_that_are_there(page):
    for link in LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists() and target.is_relative_to(ROOT), f"{name(page)} links to {link}"
        shown = target.is_file() or (target / "README.md").exists() or page == ROOT / "README.md"  # not on the site
        assert shown, f"{name(page)} links to {link}, which is no page of the site"
        assert not anchor or anchor in anchors(target), f"{name(page)} links to {link}"


def commands() -> Iterator[tuple[str, list[str]]]:
    """Lines that begin with ihdm, or start it with torchrun, in blocks of any language."""
    for page in PAGES:
        for _, _, block in FENCED.findall(page.read_text(encoding="utf-8")):
            for line in block.splitlines():
                if found := re.match(r"(?:torchrun .* -- )?ihdm (\w.*)", line.strip()):
                    yield name(page), shlex.split(found[1], comments=True)


@pytest.mark.parametrize("page", sorted({page for page, _ in commands()}))
def test_commands_are_understood(page):
    """They are parsed, and settings of presets checked; nothing is run."""
    for words in (words for where, words in commands() if where == page):
        given: dict[str, object] = {}

        @functools.wraps(VERBS[words[0]])
        def remembered(*places, given=given, **options):
            given |= {"preset": next(iter(places), None)} | options

        tyro.cli(remembered, args=words[1:], config=AS_TYPED)
        preset = given.get("preset")
        if preset in presets():
            load_config(str(preset), itertools.chain(*given.get("settings", ())))


def messages() -> Iterator[str]:
    """The texts in the source, with dots for what is filled in."""
    for file in Path(ihdm.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_errors_that_are_explained_are_ones_that_ihdm_has():
    explained = re.findall(r"^### `(.+)`$", prose(DOCS / "faq.md"), re.MULTILINE)
    known = list(messages())
    missing = [text for text in explained if not any(text in message for message in known)]
    assert len(explained) >= 10 and not missing, missing


def test_every_study_of_the_paper_is_in_the_table_of_figures():
    listed = set(re.findall(r"^\| .* \| `([\w-]+)` \|$", prose(DOCS / "how-to" / "reproducing.md"), re.MULTILINE))
    assert listed == {study for study, about in STUDIES.items() if "beyond the paper" not in about}


def test_every_public_name_is_in_the_reference():
    listed = re.findall(r"^::: ihdm\.(\w+)$", prose(DOCS / "api.md"), re.MULTILINE)
    assert sorted(listed) == sorted(set(ihdm.__all__) - {"__version__"})


def test_the_python_of_the_guides_runs():
    for page in [DOCS / "api.md", *sorted((DOCS / "how-to").glob("*.md"))]:
        for _, language, code in FENCED.findall(page.read_text(encoding="utf-8")):
            if language == "python":
                exec(compile(code.replace("range(1000)", "range(2)"), str(page), "exec"), {})


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="the site is built with mkdocs: make docs")
def test_the_site_is_built_without_warnings_and_needs_no_other_host(tmp_path):
    words = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path)]
    surroundings = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(words, cwd=ROOT, env=surroundings, capture_output=True, text=True)
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > len(list(DOCS.rglob("*.md")))
    loaded = r"<(?:script|img|iframe)[^>]* src=\"?https?:|<link[^>]* href=\"?https?:"
    assert not [page for page in pages if re.search(loaded, page.read_text(encoding="utf-8"))]
