"""A stand-in for the Hugging Face hub: serves the files of one folder as a data set, by the hub's protocol."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlparse

REVISION = "a" * 40


@contextlib.contextmanager
def served(root: Path) -> Iterator[tuple[str, list[str]]]:
    """The address of a hub on which every data set has the files below `root`, and the list of what is asked of it."""
    asked: list[str] = []
    handler = type("Handler", (Hub,), {"root": root, "asked": asked})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


class Hub(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    root: Path
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(f"{self.path} {self.headers.get('Range') or ''}")
        path = unquote(urlparse(self.path).path)
        if found := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)(/revision/.*)?", path):
            names = [{"rfilename": str(file.relative_to(self.root))} for file in self.root.rglob("*.*")]
            self._tell({"id": found[1], "sha": REVISION, "private": False, "tags": [], "siblings": names})
        elif found := re.fullmatch(r"/api/datasets/[^/]+/[^/]+/tree/[^/]+/?(.*)", path):
            self._tell([self._entry(file) for file in sorted((self.root / found[1]).glob("*"))])
        elif found := re.fullmatch(r"/datasets/[^/]+/[^/]+/resolve/[^/]+/(.*)", path):
            self._send_file(self.root / found[1])
        else:
            self._send(404, b"nothing here")

    do_HEAD = do_GET

    def _entry(self, file: Path) -> dict[str, object]:
        kind, size = ("directory", 0) if file.is_dir() else ("file", file.stat().st_size)
        return {"type": kind, "path": str(file.relative_to(self.root)), "size": size, "oid": "0" * 40}

    def _send_file(self, path: Path) -> None:
        if not path.is_file():
            self._send(404, b"Entry not found", {"X-Error-Code": "EntryNotFound"})
            return
        content, facts = path.read_bytes(), {"X-Repo-Commit": REVISION, "ETag": '"1"', "Accept-Ranges": "bytes"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if not asked:
            self._send(200, content, facts)
            return
        first, last = int(asked[1]), min(int(asked[2] or len(content)), len(content) - 1)
        facts["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
        self._send(206, content[first : last + 1], facts)

    def _tell(self, facts: object) -> None:
        self._send(200, json.dumps(facts).encode(), {"Content-Type": "application/json"})

    def _send(self, code: int, content: bytes, facts: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in (facts or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""
