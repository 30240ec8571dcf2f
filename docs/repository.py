"""Makes a site of the pages that GitHub shows: a hook for mkdocs, named in mkdocs.yml.

Pages link to files outside docs/. On the site these files are pages too, under source/, so that it needs no other host.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
NAMED = ["CHANGELOG.md", "CONTRIBUTING.md"]  # in the navigation
SOURCE = "source/"
CODE = "---\nhide: [toc]\nsearch: {{exclude: true}}\n---\n# {path}\n\n~~~~python\n{text}~~~~\n"
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)[^)\s#]+")
FENCE, ITEM = re.compile(r"```|~~~"), re.compile(r"[-*] |1\. ")


def on_files(files: Files, config: Any) -> Files:
    """Add a page for every file in NAMED and every file of the repository that a page links to."""
    waiting = [*NAMED, *(path_of(file.src_uri) for file in files.documentation_pages())]
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        text = (ROOT / path).read_text(encoding="utf-8")
        if uri_of(path).startswith(SOURCE):
            content = text if path.endswith(".md") else CODE.format(path=path, text=text)
            files.append(File.generated(config, uri_of(path), content=content))
        linked = {target(path, link) for link in LINK.findall(text)} if path.endswith(".md") else set()
        found = {new for new in linked - seen if not new.startswith("docs/")}
        waiting, seen = [*waiting, *found], seen | found
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links into those of the site, and put an empty line before each list, which GitHub does not need."""
    uri, lines, fenced = page.file.src_uri, [""], False
    for line in markdown.splitlines():
        fenced ^= bool(FENCE.match(line))
        if not fenced:
            line = LINK.sub(lambda link: moved(uri, link[0]), line)
            if ITEM.match(line) and lines[-1] and not (lines[-1].startswith(" ") or ITEM.match(lines[-1])):
                lines.append("")
        lines.append(line)
    return "\n".join(lines)


def target(path: str, link: str) -> str:
    """The file of the repository that a link in another file points to; for a folder, its README."""
    found = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    return f"{found}/README.md" if (ROOT / found).is_dir() else found


def moved(uri: str, link: str) -> str:
    """The link, in a page of the site, that leads to where a link between files of the repository led."""
    return posixpath.relpath(uri_of(target(path_of(uri), link)), posixpath.dirname(uri) or ".")


def uri_of(path: str) -> str:
    """Where a file of the repository is on the site."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return SOURCE + path if path.endswith(".md") else f"{SOURCE}{path}.md"


def path_of(uri: str) -> str:
    """The file of the repository that a page of the site shows."""
    if not uri.startswith(SOURCE):
        return f"docs/{uri}"
    path = uri.removeprefix(SOURCE)
    return path if (ROOT / path).exists() else path.removesuffix(".md")
