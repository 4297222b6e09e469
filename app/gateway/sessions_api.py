"""`/v1/sessions`: a caller's conversations, listed, read, renamed, ended, taken along."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from weakref import WeakValueDictionary

from starlette.requests import Request
from starlette.responses import Response

from app.auth import Principal
from app.gateway.bodies import read_body
from app.gateway.config import GatewayConfig
from app.gateway.edge import PRINCIPAL
from app.gateway.responses import Responses
from app.gateway.session_views import (
    deleted_object,
    export_json,
    export_markdown,
    file_name,
    list_object,
    read_export_format,
    read_list_query,
    read_rename,
    session_object,
)
from app.protocol.json_codec import encode
from app.sessions import Session, SessionStore
from engine.contract import ReparteeError

logger = logging.getLogger(__name__)

# Searches, exports and readings at once, of which each tenant has one: each of them may
# be of megabytes, and is made on everybody's event loop.
MAX_READINGS = 2


class SessionRoutes:
    """The routes' handlers.

    Args:
        sessions: The conversations.
        responses: The way to the engine.
        config: Limits.
    """

    def __init__(self, sessions: SessionStore, responses: Responses, config: GatewayConfig) -> None:
        self._sessions = sessions
        self._responses = responses
        self._config = config
        self._readings = asyncio.Semaphore(MAX_READINGS)
        self._reading: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def list(self, request: Request) -> Response:
        """`GET /v1/sessions`."""
        wanted = read_list_query(request.query_params)
        principal = _principal(request)
        async with self._turn(principal) if wanted.query else nullcontext():
            page = await self._sessions.index.page(
                principal.owner,
                limit=wanted.limit,
                after=wanted.after,
                query=wanted.query,
            )
        return _json(list_object(page, await self._sessions.quota.use(principal.owner)))

    @asynccontextmanager
    async def _turn(self, principal: Principal) -> AsyncIterator[None]:
        """A tenant's readings wait for each other before they wait for anybody else's."""
        lock = self._reading.setdefault(principal.tenant, asyncio.Lock())
        async with lock, self._readings:
            yield

    async def one(self, request: Request) -> Response:
        """`GET /v1/sessions/{id}`."""
        async with self._turn(_principal(request)):
            return _json(session_object(await self._load(request)))

    async def rename(self, request: Request) -> Response:
        """`POST /v1/sessions/{id}`."""
        title = read_rename(await read_body(request, self._config.max_body_bytes))
        session_id, owner = request.path_params["id"], _principal(request).owner
        async with self._turn(_principal(request)):
            await self._sessions.rename(session_id, title, tenant=owner)
            return _json(session_object(await self._load(request)))

    async def delete(self, request: Request) -> Response:
        """`DELETE /v1/sessions/{id}`: its answer ends too, and its sockets close."""
        session_id, owner = request.path_params["id"], _principal(request).owner
        async with self._turn(_principal(request)):
            running = await self._sessions.delete(session_id, tenant=owner)
        try:
            if running is not None:
                await self._responses.engine.cancel(running)
            await self._responses.engine.release(session_id, everywhere=True)
        except ReparteeError as error:
            # The answer has nowhere to go any more, and ends at its deadline.
            logger.warning("what %s left in the engine stays a while: %s", session_id, error)
        return _json(deleted_object(session_id))

    async def export(self, request: Request) -> Response:
        """`GET /v1/sessions/{id}/export`."""
        kind = read_export_format(request.query_params)
        async with self._turn(_principal(request)):
            session = await self._load(request)
            if kind == "json":
                answer = _json(export_json(session))
            else:
                answer = Response(export_markdown(session), media_type="text/markdown")
        answer.headers["content-disposition"] = f'attachment; filename="{file_name(session, kind)}"'
        answer.headers["cache-control"] = "no-store"
        return answer

    async def _load(self, request: Request) -> Session:
        return await self._sessions.load(
            request.path_params["id"], tenant=_principal(request).owner
        )


def _principal(request: Request) -> Principal:
    principal: Principal = request.scope["state"][PRINCIPAL]
    return principal


def _json(value: object) -> Response:
    answer = Response(encode(value), media_type="application/json")
    answer.headers["cache-control"] = "no-store"
    return answer
