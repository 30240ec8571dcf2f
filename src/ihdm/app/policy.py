"""What a browser that shows the page may load: only what the page's own server sends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

POLICY = (
    "default-src 'self' 'unsafe-inline' 'unsafe-eval' data: blob:; form-action 'self'; base-uri 'self'; "
    "frame-ancestors 'self'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"cross-origin-resource-policy", b"same-origin"),  # other sites must not show what is here
]


class OwnHostOnly:
    """Tells browsers with each answer to contact no other host, whatever some version of gradio may want to load."""

    def __init__(self, app: Callable[..., Awaitable[None]]):
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Callable[[Any], Awaitable[None]]) -> None:
        async def send_with_policy(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS]
            await send(message)

        await self.app(scope, receive, send_with_policy)
