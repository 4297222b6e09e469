"""One answer on its way out: headers added, status noted, errors rendered."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Scope, Send

from app.limits import RateLimited, Standing
from app.protocol.errors import error_body, http_headers, public
from app.protocol.ids import new_id
from app.protocol.json_codec import encode

# Counted for a caller who left before the request was whole; nobody reads an answer.
CLIENT_LEFT = 499
_PREFLIGHT_MAX_AGE_S = "600"
_ALLOWED_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
_RATE_HEADERS = [
    f"x-ratelimit-{what}-{name}"
    for what in ("limit", "remaining", "reset")
    for name in ("requests", "tokens")
]
_EXPOSED_HEADERS = ", ".join(["x-request-id", "retry-after", "retry-after-ms", *_RATE_HEADERS])
_REQUESTED = "access-control-request-headers"


class EdgeAnswer:
    """See the module.

    Args:
        scope: The request.
        send: The connection.
        allowed_origin: The request's origin, if it may read the answer.

    Attributes:
        standings: Where the caller stands with the rate limits, once that is known.
        status: Of the answer; 0 before it.
        request_id: Of the request.
    """

    def __init__(self, scope: Scope, send: Send, allowed_origin: str | None) -> None:
        self._scope = scope
        self._send = send
        self._allowed_origin = allowed_origin
        self._started = False
        self.standings: list[Standing] = []
        self.status = 0
        self.request_id = new_id("req_")

    async def send(self, message: Message) -> None:
        """Pass one message of the application on."""
        kind = message["type"]
        if kind in ("http.response.start", "websocket.http.response.start"):
            self._started = True
            self.status = message["status"]
            self._add_headers(MutableHeaders(scope=message))
        elif kind == "websocket.accept":
            self._started = True
            self.status = 101
        await self._send(message)

    async def preflight(self, headers: Headers) -> None:
        """Answer a browser's question, whose origin is already known to be allowed."""
        answer = {
            "access-control-allow-methods": _ALLOWED_METHODS,
            "access-control-allow-headers": headers.get(_REQUESTED, ""),
            "access-control-max-age": _PREFLIGHT_MAX_AGE_S,
            "vary": f"{_REQUESTED}, access-control-request-method",
        }
        await self._respond(204, b"", answer)

    async def fail(self, error: Exception) -> None:
        """Answer with an error, unless an answer is under way."""
        if self._started:
            return
        known = public(error)
        if isinstance(known, RateLimited):
            self.standings[:] = [known.standing]
        headers = {
            "content-type": "application/json",
            "cache-control": "no-store",
            **http_headers(known),
        }
        if known.http_status == 401:
            headers["www-authenticate"] = "Bearer"
        await self._respond(known.http_status, encode(error_body(known)), headers)

    async def _respond(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        kind = "websocket.http.response" if self._scope["type"] == "websocket" else "http.response"
        headers["content-length"] = str(len(body))
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        await self.send({"type": f"{kind}.start", "status": status, "headers": raw})
        body = b"" if self._scope.get("method") == "HEAD" else body
        await self._send({"type": f"{kind}.body", "body": body})

    def _add_headers(self, headers: MutableHeaders) -> None:
        headers["x-request-id"] = self.request_id
        headers.setdefault("x-content-type-options", "nosniff")
        headers.add_vary_header("Origin")
        for each in self.standings:
            headers.update(each.headers())
        if self._allowed_origin is not None:
            headers["access-control-allow-origin"] = self._allowed_origin
            headers["access-control-expose-headers"] = _EXPOSED_HEADERS
