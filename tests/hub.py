"""A stand-in for the Hugging Face hub: serves the files of one folder, by the hub's protocol, and takes new ones."""

from __future__ import annotations

import base64
import contextlib
import hashlib
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
    """The address of a hub on which every data set and model has the files below `root`, and what is asked of it."""
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
        if found := re.fullmatch(r"/api/(?:datasets|models)/([^/]+/[^/]+)(/revision/.*)?", path):
            names = [{"rfilename": str(file.relative_to(self.root))} for file in self.root.rglob("*.*")]
            self._tell({"id": found[1], "sha": REVISION, "private": False, "tags": [], "siblings": names})
        elif found := re.fullmatch(r"/api/(?:datasets|models)/[^/]+/[^/]+/tree/[^/]+/?(.*)", path):
            self._tell([self._entry(file) for file in sorted((self.root / found[1]).glob("*"))])
        elif found := re.fullmatch(r"(?:/datasets)?/[^/]+/[^/]+/resolve/[^/]+/(.*)", path):
            self._send_file(self.root / found[1])
        else:
            self._send(404, b"nothing here")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """A new model, and a commit: of small files as they are, of large ones by their digest, sent before."""
        self.asked.append(f"POST {self.path}")
        path, host = urlparse(self.path).path, self.headers["Host"]
        told = self.rfile.read(int(self.headers["Content-Length"]))
        if path == "/api/repos/create":
            name = json.loads(told)
            self._tell({"url": f"http://{host}/{name['organization']}/{name['name']}"})
        elif path == "/api/validate-yaml":
            self._tell({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            files = json.loads(told)["files"]
            modes = {file["path"]: "lfs" if file["path"].endswith(".safetensors") else "regular" for file in files}
            self._tell({"files": [{"path": p, "uploadMode": mode, "shouldIgnore": False} for p, mode in modes.items()]})
        elif path.endswith("/info/lfs/objects/batch"):
            objects = json.loads(told)["objects"]
            for one in objects:
                one["actions"] = {"upload": {"href": f"http://{host}/large/{one['oid']}", "header": {}}}
            self._tell({"transfer": "basic", "objects": objects})
        elif "/commit/" in path:
            for line in map(json.loads, told.splitlines()):
                self._take(line["key"], line["value"])
            self._tell({"commitUrl": f"http://{host}/owner/name/commit/{REVISION}", "commitOid": REVISION})
        else:
            self._send(404, b"nothing here")

    def _take(self, key: str, value: dict[str, str]) -> None:
        """One line of a commit."""
        if key == "file":
            (self.root / value["path"]).write_bytes(base64.b64decode(value["content"]))
        elif key == "lfsFile":
            (self.root / "large" / value["oid"]).rename(self.root / value["path"])

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        folder = self.root / "large"
        folder.mkdir(exist_ok=True)
        (folder / hashlib.sha256(content).hexdigest()).write_bytes(content)
        self._send(200, b"", {"ETag": '"1"'})

    def _entry(self, file: Path) -> dict[str, object]:
        kind, size = ("directory", 0) if file.is_dir() else ("file", file.stat().st_size)
        return {"type": kind, "path": str(file.relative_to(self.root)), "size": size, "oid": "0" * 40}

    def _send_file(self, path: Path) -> None:
        if not path.is_file():
            self._send(404, b"Entry not found", {"X-Error-Code": "EntryNotFound"})
            return
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        facts = {"X-Repo-Commit": REVISION, "ETag": f'"{digest}"', "Accept-Ranges": "bytes"}
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
