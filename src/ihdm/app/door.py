"""Which requests the page answers: those to one of its own addresses that do not come from another site's page.

Another site can make its own name point to this machine (DNS rebinding), or send forms and files to an address that it
guesses. Browsers reveal this in the headers Host, Origin and Sec-Fetch-Site. Programs other than browsers can send
whatever headers they like, but gain nothing by it.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from ihdm.errors import UsageError

ADDRESS = (
    "This page answers only at its own addresses, and this is not one of them. If it should be reachable by this name, "
    "start it with: ihdm app --allow-host NAME\n"
)
ELSEWHERE = (
    "This page takes requests only from itself, and this one came from a page at another address. If that is this same "
    "page behind a proxy, start it with: ihdm app --allow-host NAME, where NAME is the name in the address bar.\n"
)
WRITTEN = re.compile(r"(?:\[([0-9a-f:.]+)\]|([a-z0-9._-]+))(?::[0-9]+)?")
HEADERS = [(b"content-type", b"text/plain; charset=utf-8"), (b"x-content-type-options", b"nosniff")]


@dataclass(frozen=True)
class Addresses:
    """The names of the page, in lower case: on this machine, on other machines if it listens to them, and added ones.

    listens: the address that it listens on. added: further names, each with a port or for any port.
    """

    listens: str
    added: frozenset[str] = frozenset()

    @classmethod
    def of(cls, listens: str, added: Iterable[str] = ()) -> Addresses:
        names = frozenset(name.lower() for name in added)
        for name in sorted(names):
            if not _name(name):
                raise UsageError(
                    f"--allow-host takes a name as in the address bar, such as pictures.example.org or localhost:8888, "
                    f"not '{name}'"
                )
        return cls(listens.lower(), names)

    def has(self, authority: str) -> bool:
        """Whether a name, with or without a port, is one of the page's.

        Any port will do, because there may be a tunnel. Nobody can make localhost or an IP address point elsewhere, so
        these are safe; but a page that listens only to this machine has only loopback addresses.
        """
        authority = authority.lower()
        name = _name(authority)
        if self.added & {authority, name} or name in ("localhost", self.listens):
            return True
        try:
            number = ip_address(name)
        except ValueError:
            return self.open and name == socket.gethostname().lower()
        return self.open or number.is_loopback

    @property
    def open(self) -> bool:
        """Whether it listens to other machines."""
        try:
            return not ip_address(self.listens).is_loopback
        except ValueError:
            return self.listens != "localhost"

    def refusal(self, scope: Mapping[str, Any]) -> str | None:
        """Why a request is refused; None if it is answered."""
        headers: dict[str, list[str]] = {}
        for key, value in scope["headers"]:
            headers.setdefault(key.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        hosts = headers.get("host", [])
        if len(hosts) != 1 or not self.has(hosts[0]):
            return ADDRESS
        for origin in headers.get("origin", []):
            scheme, _, authority = origin.lower().partition("://")
            known = authority == hosts[0].lower() or bool(self.added & {authority, _name(authority)})
            if scheme not in ("http", "https") or not known:
                return ELSEWHERE
        foreign = not set(headers.get("sec-fetch-site", [])) <= {"same-origin", "none"}
        return ELSEWHERE if foreign and not _visit(scope, headers) else None


class Door:
    """Refuses requests with a 403 and, unless they are for a websocket, a sentence that says why."""

    def __init__(self, app: Callable[..., Awaitable[None]], addresses: Addresses):
        self.app, self.addresses = app, addresses

    async def __call__(self, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        why = self.addresses.refusal(scope) if scope["type"] in ("http", "websocket") else None
        if why is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": ""})  # closed before it is open: 403
        else:
            await send({"type": "http.response.start", "status": 403, "headers": HEADERS})
            await send({"type": "http.response.body", "body": why.encode()})


def _name(authority: str) -> str:
    """The name without its port, and without brackets as in [::1]; empty if it is not written like a name."""
    found = WRITTEN.fullmatch(authority)
    return (found[1] or found[2]) if found else ""


def _visit(scope: Mapping[str, Any], headers: Mapping[str, list[str]]) -> bool:
    """Whether somebody follows a link to the page, the only request that another site may cause."""
    page = scope["type"] == "http" and scope["method"] in ("GET", "HEAD") and scope["path"] == "/"
    return page and headers.get("sec-fetch-mode") == ["navigate"] and headers.get("sec-fetch-dest") == ["document"]
