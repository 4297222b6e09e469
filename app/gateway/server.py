"""The gateway's application, and the process that serves it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import cast

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from app.auth import (
    Authenticator,
    GrantStore,
    KeyAuthenticator,
    OpenAuthenticator,
    TokenVerifier,
)
from app.gateway.chat import ChatRoute
from app.gateway.config import GatewayConfig
from app.gateway.edge import Edge
from app.gateway.failed_logins import FailedLogins
from app.gateway.garbage import GarbageSchedule
from app.gateway.gate import Gate, raise_file_limit
from app.gateway.grants import GrantRoutes
from app.gateway.health import HealthRoutes
from app.gateway.keepalive import PingWheel
from app.gateway.ledger import AnswerLedger
from app.gateway.log_bounds import server_lines
from app.gateway.metrics import GatewayMetrics
from app.gateway.models import ModelRoutes
from app.gateway.ops import OpsAccess, OpsBoard, OpsRoutes
from app.gateway.pages import PageFiles
from app.gateway.partials import PartialMessages
from app.gateway.realtime import RealtimeRoute
from app.gateway.responses import Responses
from app.gateway.responses_api import ResponsesRoutes
from app.gateway.responses_maker import ResponseMaker
from app.gateway.responses_socket import ResponsesSocketRoute
from app.gateway.sessions_api import SessionRoutes
from app.gateway.socket_connection import SocketConnection
from app.gateway.throttle import TenantThrottles
from app.gateway.tracing import make_tracing
from app.gateway.transport import HttpConnection, bound_connections
from app.limits import Limiter
from app.protocol.errors import UnknownRoute, UpgradeRequired, WrongMethod
from app.protocol.ids import new_id
from app.routing import EngineClient
from app.sessions import SessionStore
from app.settings import GatewaySettings
from engine.contract import InvalidRequest

logger = logging.getLogger(__name__)


class Gateway:
    """One gateway: the application and what it holds on to.

    Args:
        config: Its settings.
        engine: The way to the workers; the gateway starts and closes it.
        sessions: The conversations; the gateway closes it.
        grants: Client secrets and tickets; the gateway closes it.
        limiter: What callers may ask for; the gateway closes it.
    """

    def __init__(
        self,
        config: GatewayConfig,
        engine: EngineClient,
        sessions: SessionStore,
        grants: GrantStore,
        limiter: Limiter,
    ) -> None:
        self.config = config
        self.gate = Gate(config.max_connections, minds_strangers=config.needs_key)
        self.metrics = GatewayMetrics(engine.workers)
        self._tracing = make_tracing(config.otlp_endpoint)
        self._ledger = AnswerLedger(config.redis_url, engine.gateway_id)
        self.responses = Responses(
            *(engine, self.metrics, limiter, config.answer_timeout_s),
            tracing=self._tracing,
            ledger=self._ledger,
        )
        self._engine = engine
        self._sessions = sessions
        self._grants = grants
        self._limiter = limiter
        self._authenticator = _authenticator(config, grants)
        limits = (config, self.metrics, self._authenticator)
        throttles = TenantThrottles(config.max_tenant_events_per_s)
        self.realtime = RealtimeRoute(self.responses, sessions, *limits, throttles)
        maker = ResponseMaker(self.responses, sessions.responses)
        self._responses_socket = ResponsesSocketRoute(maker, *limits, throttles)
        self._socket_routes = (self.realtime, self._responses_socket)
        for file in config.watched_files:
            file.on_change += [route.look_again for route in self._socket_routes]
        self.board = OpsBoard(
            *(config.redis_url, engine.gateway_id, self.metrics),
            is_draining=lambda: self.responses.is_draining,
        )
        self._ops_access = OpsAccess(lambda: config.current_ops_token, is_open=not config.needs_key)
        self.app = self._build()

    def _build(self) -> Starlette:
        chat = ChatRoute(self.responses, self.config, self.metrics)
        health = HealthRoutes(self.responses, self.metrics)
        models = ModelRoutes(self.responses)
        failures = FailedLogins()
        grants = GrantRoutes(self._grants, self.responses, self.config, failures)
        sessions = SessionRoutes(self._sessions, self.responses, self.config)
        responses = ResponsesRoutes(
            self.responses, self._sessions.responses, self.config, self.metrics
        )
        ops = OpsRoutes(self._engine, self.board, self._ops_access)
        routes = [
            _route("GET", "/livez", health.live),
            _route("GET", "/readyz", health.ready),
            _route("GET", "/metrics", health.metrics),
            _route("GET", "/v1/models", models.list),
            _route("GET", "/v1/models/{model:path}", models.one),
            _route("POST", "/v1/chat/completions", chat.__call__),
            _route("GET", "/v1/sessions", sessions.list),
            _methods(
                "/v1/sessions/{id}",
                {"GET": sessions.one, "POST": sessions.rename, "DELETE": sessions.delete},
            ),
            _route("GET", "/v1/sessions/{id}/export", sessions.export),
            _route("POST", "/v1/responses", responses.create),
            _methods("/v1/responses/{id}", {"GET": responses.one, "DELETE": responses.delete}),
            _route("POST", "/v1/responses/{id}/cancel", responses.cancel),
            _route("GET", "/v1/responses/{id}/input_items", responses.input_items),
            _route("POST", "/v1/realtime/client_secrets", grants.client_secret),
            _route("POST", "/v1/realtime/tickets", grants.ticket),
            _route("GET", "/ops/state", ops.state),
            _route("POST", "/ops/workers/{id}/drain", ops.drain),
            _route("GET", "/v1/realtime", _upgrade_required),
            Mount("/v1", _unknown_route),
        ]
        files = Mount("/", PageFiles(self.config.web_dir), name="page")
        app = Starlette(
            routes=[*routes, files],
            exception_handlers={HTTPException: _raise_known},
            lifespan=self._lifespan,
        )
        app.router.redirect_slashes = False
        app.add_middleware(
            Edge,
            authenticator=self._authenticator,
            failures=failures,
            limiter=self._limiter,
            origins=self.config.origin_policy,
            metrics=self.metrics,
            ops=self._ops_access,
            sockets={"/v1/realtime": self.realtime, "/v1/responses": self._responses_socket},
            routes=[route.path for route in routes if isinstance(route, Route)],
        )
        return app

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        await self._engine.start()
        await self.realtime.start()
        work = [asyncio.create_task(file.watch()) for file in self.config.watched_files]
        work.append(asyncio.create_task(self._limiter.connections.renew_forever()))
        work.append(asyncio.create_task(self.board.run()))
        work.append(asyncio.create_task(self._ledger.run(self.responses.count_for_another)))
        try:
            yield
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            await self.responses.close()
            await self.realtime.stop()
            await self.board.close()
            await self._grants.close()
            await self._limiter.close()
            await self._engine.close()
            await self._ledger.close()
            await self._sessions.close()
            # Its last spans go over the network.
            await asyncio.to_thread(self._tracing.close)

    async def drain(self) -> None:
        """Take no more work, let answers end within the grace, then say goodbye."""
        self.responses.is_draining = True
        for route in self._socket_routes:
            route.drain()
        await self.responses.drain(self.config.grace_s)
        for route in self._socket_routes:
            route.close_all()
        self.responses.closing.set()

    def stop_draining(self) -> None:
        """Let `drain` return at once."""
        self.responses.stop_draining()


def create_gateway(config: GatewayConfig) -> Gateway:
    """A gateway with its own clients of Redis."""
    engine = EngineClient(config.redis_url, new_id("gw_"))
    limiter = Limiter(
        config.redis_url,
        lambda: config.current_limits,
        response_lease_s=config.answer_timeout_s,
    )
    sessions = SessionStore(
        config.redis_url, scopes_of=lambda owner: config.current_limits.storage.scopes(owner)
    )
    return Gateway(config, engine, sessions, GrantStore(config.redis_url), limiter)


class GatewayServer(uvicorn.Server):
    """uvicorn, with a drain before its shutdown and plain signals.

    Args:
        gateway: What it serves.

    Attributes:
        partials: Messages that its sockets have begun to receive.
    """

    def __init__(self, gateway: Gateway) -> None:
        self.partials = PartialMessages()
        # uvicorn's own lines would show query strings and headers.
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        logging.getLogger("uvicorn.error").addFilter(server_lines)
        config = gateway.config
        super().__init__(
            uvicorn.Config(
                gateway.app,
                http=cast("type[HttpConnection]", partial(HttpConnection, gate=gateway.gate)),
                ws=cast(
                    "type[SocketConnection]",
                    partial(
                        SocketConnection,
                        pings=PingWheel(config.ping_interval_s, config.ping_timeout_s),
                        partials=self.partials,
                    ),
                ),
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                ws_max_size=config.max_frame_bytes,
                timeout_graceful_shutdown=5,
            )
        )
        self._gateway = gateway

    def stop(self) -> None:
        """Drain and end; the second call ends the drain."""
        # uvicorn's own `force_exit` would leave the application's clients open.
        if self.should_exit:
            self._gateway.stop_draining()
        self.should_exit = True

    async def serve_on(self, listener: socket.socket) -> None:
        """Serve connections of `listener` until `stop`."""
        bound_connections(listener)
        host, port = listener.getsockname()[:2]
        logger.info("listening on %s port %d", host, port)
        await self.serve(sockets=[listener])

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to `serve`; uvicorn would raise them again at the end."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain while still listening, so that `/readyz` can say so; then stop."""
        await self._gateway.drain()
        await super().shutdown(sockets)


def run(settings: GatewaySettings, listener: socket.socket) -> int:
    """Serve until SIGTERM or SIGINT; a second signal ends the grace.

    Args:
        settings: Of this process.
        listener: Already listening.

    Returns:
        The exit status.

    Raises:
        StartupError: for settings that do not fit together.
    """
    raise_file_limit()
    asyncio.run(serve(GatewayConfig.from_settings(settings), listener))
    return 0


async def serve(config: GatewayConfig, listener: socket.socket) -> None:
    """Serve until a signal; see `run`."""
    gateway = create_gateway(config)
    server = GatewayServer(gateway)
    garbage = GarbageSchedule(lambda: gateway.responses.num_running == 0)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    collecting = asyncio.create_task(garbage.run(), name="garbage-schedule")
    try:
        await server.serve_on(listener)
    finally:
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _authenticator(config: GatewayConfig, grants: GrantStore) -> Authenticator:
    if not config.needs_key:
        return OpenAuthenticator(grants)
    tokens = TokenVerifier(
        lambda: config.current_token_keys,
        audience=config.token_audience,
        issuer=config.token_issuer,
    )
    return KeyAuthenticator(
        lambda: config.current_api_keys, tokens if config.takes_tokens else None, grants
    )


Endpoint = Callable[[Request], Awaitable[Response]]


def _route(method: str, path: str, endpoint: Endpoint) -> Route:
    """A route of one method."""
    return _methods(path, {method: endpoint})


def _methods(path: str, endpoints: Mapping[str, Endpoint]) -> Route:
    """A route of some methods, HEAD along with GET; all others are told so."""
    allowed = dict(endpoints)
    if "GET" in allowed:
        allowed["HEAD"] = allowed["GET"]

    async def checked(request: Request) -> Response:
        endpoint = allowed.get(request.method)
        if endpoint is None:
            raise WrongMethod(f"{path} takes {', '.join(endpoints)}, not {request.method[:16]}.")
        return await endpoint(request)

    route = Route(path, checked)
    route.methods = set()
    return route


async def _unknown_route(scope: Scope, receive: Receive, send: Send) -> None:
    raise UnknownRoute(f"There is nothing at {scope['path'][:200]}.")


async def _upgrade_required(request: Request) -> Response:
    raise UpgradeRequired("This path is served as a WebSocket only.")


async def _raise_known(request: Request, error: Exception) -> Response:
    """The framework's own refusals as ours, for the edge to render."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    if status == 405:
        raise WrongMethod(f"{request.method[:16]} is not allowed here.")
    if status == 404:
        raise UnknownRoute(f"There is nothing at {request.url.path[:200]}.")
    raise InvalidRequest("The request could not be read.")
