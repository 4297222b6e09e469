"""What every request passes first: host, origin, key; and what every answer gets last.

One wrapper around the whole application, so that no route can be without it, and so
that errors of any kind carry the same headers as answers do.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from app.auth import Authenticator, Credential, Principal, credential_of, offered_subprotocols
from app.gateway.edge_answer import CLIENT_LEFT, EdgeAnswer
from app.gateway.failed_logins import FailedLogins
from app.gateway.metrics import GatewayMetrics
from app.gateway.ops.access import OpsAccess
from app.gateway.origins import OriginPolicy
from app.gateway.socket_connection import SocketConnection
from app.gateway.socket_route import Handshake
from app.gateway.targets import tickets_of, to_origin_form
from app.gateway.tracing import trace_parent
from app.gateway.transport import CONNECTION, HttpConnection
from app.limits import Limiter, RateLimited
from app.limits.limiter import standing
from app.protocol.errors import RequestHeadTooLarge, UnknownRoute
from engine.contract import (
    AuthenticationFailed,
    InvalidRequest,
    PermissionDenied,
    ReparteeError,
)
from engine.contract.logs import log_context

logger = logging.getLogger(__name__)

PRINCIPAL = "repartee.principal"
# Everything else (the page's files, /livez, /readyz) is open to all.
PROTECTED_PREFIXES = ("/v1", "/metrics")
MAX_HEAD_BYTES = 64 * 1024
# Where each POST is a request that the caller's limits count.
LIMITED_PATHS = frozenset(
    {
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/realtime/client_secrets",
        "/v1/realtime/tickets",
    }
)


SocketHandler = Callable[[Handshake], Awaitable[None]]


class Edge:
    """See the module.

    Args:
        app: The application inside.
        authenticator: Knows callers by their credentials.
        failures: Slows down those whose credentials are wrong.
        limiter: Knows what they may still ask for.
        origins: Which pages may call.
        metrics: Counts answers by route and status.
        ops: Knows the operator, who may read `/metrics`.
        sockets: Serves WebSockets, by path.
        routes: Paths that may serve as a metric's label; all others share one.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        authenticator: Authenticator,
        failures: FailedLogins,
        limiter: Limiter,
        origins: OriginPolicy,
        metrics: GatewayMetrics,
        ops: OpsAccess,
        sockets: Mapping[str, SocketHandler],
        routes: Iterable[str],
    ) -> None:
        self._app = app
        self._authenticator = authenticator
        self._limiter = limiter
        self._origins = origins
        self._metrics = metrics
        self._ops = ops
        self._sockets = sockets
        self._routes = frozenset(routes)
        self._failures = failures

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        to_origin_form(scope)
        headers = Headers(scope=scope)
        answer = EdgeAnswer(scope, send, self._allowed_origin(headers))
        noted = standing.set(answer.standings)
        try:
            trace_parent.set(headers.get("traceparent", ""))
            with log_context(request_id=answer.request_id):
                await self._serve(scope, receive, headers, answer)
        except ReparteeError as error:
            await answer.fail(error)
        except ClientDisconnect:
            answer.status = CLIENT_LEFT
        except Exception as error:
            logger.exception("%s %.200r failed", answer.request_id, scope["path"])
            await answer.fail(error)
        finally:
            standing.reset(noted)
            path = scope["path"]
            route = path if path in self._routes else "other"
            self._metrics.http_requests.labels(route, str(answer.status)).inc()

    async def _serve(
        self, scope: Scope, receive: Receive, headers: Headers, answer: EdgeAnswer
    ) -> None:
        _check_head(scope)
        self._check_page(scope, headers)
        if _is_preflight(scope, headers):
            await answer.preflight(headers)
            return
        is_scrape = scope["path"] == "/metrics"
        is_operator = is_scrape and self._ops.holds(headers.getlist("authorization"))
        if is_operator or not _is_protected(scope["path"]):
            await self._app(scope, receive, answer.send)
            return
        principal = await self._caller(scope, headers)
        scope["state"][PRINCIPAL] = principal
        if scope["type"] == "websocket":
            leave = await self._limiter.connections.take(principal)
            handshake = Handshake(
                connection=scope["state"][CONNECTION],
                send=answer.send,
                principal=principal,
                subprotocols=scope["subprotocols"],
                query=scope["query_string"],
                leave=leave,
                authenticate=partial(self._authenticate, _address(scope)),
            )
            await self._sockets[scope["path"]](handshake)
            return
        await self._serve_limited(scope, receive, answer, principal)

    async def _serve_limited(
        self, scope: Scope, receive: Receive, answer: EdgeAnswer, principal: Principal
    ) -> None:
        """A request that counts is refused before its body is read, and counts if it is bad."""
        counts = scope["method"] == "POST" and scope["path"] in LIMITED_PATHS
        if counts:
            self._limiter.check(principal)
        try:
            await self._app(scope, receive, answer.send)
        except InvalidRequest:
            if counts and not answer.standings:
                with suppress(RateLimited):
                    await self._limiter.count(principal)
            raise

    def _allowed_origin(self, headers: Headers) -> str | None:
        origin = headers.get("origin")
        return origin if origin and self._origins.allows(origin, headers.get("host", "")) else None

    def _check_page(self, scope: Scope, headers: Headers) -> None:
        """Refuse before anything is read or accepted.

        Raises:
            PermissionDenied: wrong host or origin; UnknownRoute: no such socket.
        """
        host = headers.get("host", "")
        if not self._origins.allows_host(host):
            raise PermissionDenied(
                "Without API keys this gateway answers only to a loopback host name.",
                code="host_not_allowed",
            )
        origins = headers.getlist("origin")
        if len(origins) > 1 or not self._origins.allows(headers.get("origin"), host):
            raise PermissionDenied("This origin is not allowed.", code="origin_not_allowed")
        if scope["type"] == "websocket" and scope["path"] not in self._sockets:
            raise UnknownRoute("There is no WebSocket at this path.")

    async def _caller(self, scope: Scope, headers: Headers) -> Principal:
        """Who asks.

        Raises:
            AuthenticationFailed: nobody known; PermissionDenied: not for this;
            Overloaded: too many have failed from there.
        """
        is_socket = scope["type"] == "websocket"
        offered = headers.getlist("sec-websocket-protocol") if is_socket else ()
        credential = credential_of(
            headers.getlist("authorization"),
            offered_subprotocols(offered),
            tickets_of(scope["query_string"]) if is_socket else (),
        )
        if credential is None:
            principal = await self._authenticator.authenticate(None)
        else:
            principal = await self._authenticate(_address(scope), credential)
        connection: HttpConnection | SocketConnection = scope["state"][CONNECTION]
        if connection.place is not None:
            connection.place.prove()
        if principal.is_ephemeral and not is_socket:
            raise PermissionDenied(
                "Client secrets and tickets open sockets only.", code="ephemeral_credential"
            )
        return principal

    async def _authenticate(self, address: str, credential: Credential) -> Principal:
        """Ask the authenticator, unless too many wrong credentials came from there."""
        self._failures.check(address, credential)
        try:
            principal = await self._authenticator.authenticate(credential)
        except AuthenticationFailed:
            self._failures.note(address, credential)
            raise
        self._failures.remember(credential)
        return principal


def _address(scope: Scope) -> str:
    return scope["client"][0] if scope.get("client") else ""


def _check_head(scope: Scope) -> None:
    """The parser's own bound holds only for a head that arrives in pieces.

    Raises:
        RequestHeadTooLarge: target and headers are longer than MAX_HEAD_BYTES.
    """
    num_bytes = len(scope["raw_path"]) + len(scope["query_string"])
    num_bytes += sum(len(name) + len(value) for name, value in scope["headers"])
    if num_bytes > MAX_HEAD_BYTES:
        raise RequestHeadTooLarge(f"The request's head is longer than {MAX_HEAD_BYTES} bytes.")


def _is_protected(path: str) -> bool:
    return any(path == prefix or path.startswith(prefix + "/") for prefix in PROTECTED_PREFIXES)


def _is_preflight(scope: Scope, headers: Headers) -> bool:
    return (
        scope["type"] == "http"
        and scope["method"] == "OPTIONS"
        and "origin" in headers
        and "access-control-request-method" in headers
    )
