"""What every request passes first: host, origin, key; and what every answer gets last.

One wrapper around the whole application, so that no route can be without it, and so
that errors of any kind carry the same headers as answers do.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.auth import Authenticator, credential_of, offered_subprotocols
from app.gateway.metrics import GatewayMetrics
from app.gateway.origins import OriginPolicy
from app.protocol.errors import UnknownRoute, error_body, http_headers, public
from app.protocol.ids import new_id
from app.protocol.json_codec import encode
from engine.contract import PermissionDenied, ReparteeError
from engine.contract.logs import log_context

logger = logging.getLogger(__name__)

PRINCIPAL = "repartee.principal"
# Everything else (the page's files, /livez, /readyz) is open to all.
PROTECTED_PREFIXES = ("/v1", "/metrics")
SOCKET_PATHS = ("/v1/realtime",)
# Counted for a caller who left before the request was whole; nobody reads an answer.
CLIENT_LEFT = 499
_PREFLIGHT_MAX_AGE_S = "600"
_ALLOWED_METHODS = "GET, POST, OPTIONS"
_EXPOSED_HEADERS = "x-request-id, retry-after"


class Edge:
    """See the module.

    Args:
        app: The application inside.
        authenticator: Knows callers by their credentials.
        origins: Which pages may call.
        metrics: Counts answers by route and status.
        routes: Paths that may serve as a metric's label; all others share one.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        authenticator: Authenticator,
        origins: OriginPolicy,
        metrics: GatewayMetrics,
        routes: Iterable[str],
    ) -> None:
        self._app = app
        self._authenticator = authenticator
        self._origins = origins
        self._metrics = metrics
        self._routes = frozenset(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        answer = _Answer(scope, send, self._allowed_origin(origin, headers))
        try:
            with log_context(request_id=answer.request_id):
                self._check_caller(scope, headers, origin)
                if _is_preflight(scope, headers):
                    await answer.preflight(headers)
                else:
                    await self._app(scope, receive, answer.send)
        except ReparteeError as error:
            await answer.fail(error)
        except ClientDisconnect:
            answer.status = CLIENT_LEFT
        except Exception as error:
            logger.exception("%s %.200r failed", answer.request_id, scope["path"])
            await answer.fail(error)
        finally:
            path = scope["path"]
            route = path if path in self._routes else "other"
            self._metrics.http_requests.labels(route, str(answer.status)).inc()

    def _allowed_origin(self, origin: str | None, headers: Headers) -> str | None:
        return origin if origin and self._origins.allows(origin, headers.get("host", "")) else None

    def _check_caller(self, scope: Scope, headers: Headers, origin: str | None) -> None:
        """Refuse before anything is read or accepted.

        Raises:
            PermissionDenied: wrong host or origin; AuthenticationFailed: no valid key.
        """
        host = headers.get("host", "")
        if not self._origins.allows_host(host):
            raise PermissionDenied(
                "Without API keys this gateway answers only to a loopback host name.",
                code="host_not_allowed",
            )
        if not self._origins.allows(origin, host):
            raise PermissionDenied("This origin is not allowed.", code="origin_not_allowed")
        path = scope["path"]
        if scope["type"] == "websocket" and path not in SOCKET_PATHS:
            raise UnknownRoute("There is no WebSocket at this path.")
        if _is_protected(path) and not _is_preflight(scope, headers):
            offered = offered_subprotocols(headers.get("sec-websocket-protocol"))
            credential = credential_of(headers.get("authorization"), offered)
            scope["state"][PRINCIPAL] = self._authenticator.authenticate(credential)


class _Answer:
    """One answer on its way out: headers added, status noted, errors rendered."""

    def __init__(self, scope: Scope, send: Send, allowed_origin: str | None) -> None:
        self._scope = scope
        self._send = send
        self._allowed_origin = allowed_origin
        self._started = False
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
            "access-control-allow-headers": headers.get("access-control-request-headers", ""),
            "access-control-max-age": _PREFLIGHT_MAX_AGE_S,
        }
        await self._respond(204, b"", answer)

    async def fail(self, error: Exception) -> None:
        """Answer with an error, unless an answer is under way."""
        if self._started:
            return
        known = public(error)
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
        if self._allowed_origin is not None:
            headers["access-control-allow-origin"] = self._allowed_origin
            headers["access-control-expose-headers"] = _EXPOSED_HEADERS


def _is_protected(path: str) -> bool:
    return any(path == prefix or path.startswith(prefix + "/") for prefix in PROTECTED_PREFIXES)


def _is_preflight(scope: Scope, headers: Headers) -> bool:
    return (
        scope["type"] == "http"
        and scope["method"] == "OPTIONS"
        and "origin" in headers
        and "access-control-request-method" in headers
    )
