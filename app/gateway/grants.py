"""Credentials for browsers: `POST /v1/realtime/client_secrets` and `.../tickets`."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from app.auth import Credential, GrantStore, Principal
from app.gateway.bodies import read_body
from app.gateway.config import GatewayConfig
from app.gateway.edge import PRINCIPAL
from app.gateway.failed_logins import FailedLogins
from app.gateway.responses import Responses
from app.protocol.json_codec import decode_object, encode
from app.protocol.realtime.secrets import read_secret_request
from app.protocol.realtime.settings import session_object

_NO_STORE = {"cache-control": "no-store"}


class GrantRoutes:
    """The routes' handlers.

    Args:
        grants: Where they are kept.
        responses: Knows the models and the limits.
        config: The longest body.
        failures: Is told what was made, which others' wrong credentials may not hold up.
    """

    def __init__(
        self,
        grants: GrantStore,
        responses: Responses,
        config: GatewayConfig,
        failures: FailedLogins,
    ) -> None:
        self._grants = grants
        self._responses = responses
        self._config = config
        self._failures = failures

    async def client_secret(self, request: Request) -> Response:
        """A secret that opens sockets until its end, with the session's settings."""
        principal: Principal = request.scope["state"][PRINCIPAL]
        wanted = read_secret_request(await self._body(request), self._responses.engine.card)
        await self._responses.limiter.count(principal)
        settings = wanted.settings
        grant = await self._grants.make_secret(
            replace(principal, session=settings.to_dict()), wanted.ttl_s
        )
        self._failures.expect(Credential(grant.value))
        # No session is begun yet, so there is no id to show.
        session = session_object("", settings)
        del session["id"]
        return _answer({"value": grant.value, "expires_at": grant.expires_at, "session": session})

    async def ticket(self, request: Request) -> Response:
        """A ticket that opens one socket, soon."""
        principal: Principal = request.scope["state"][PRINCIPAL]
        wanted = read_secret_request(await self._body(request), self._responses.engine.card)
        await self._responses.limiter.count(principal)
        grant = await self._grants.make_ticket(
            replace(principal, session=wanted.settings.to_dict())
        )
        self._failures.expect(Credential(grant.value, is_ticket=True))
        return _answer({"ticket": grant.value, "expires_at": grant.expires_at})

    async def _body(self, request: Request) -> dict[str, object]:
        body = await read_body(request, self._config.max_body_bytes)
        return decode_object(body) if body else {}


def _answer(body: dict[str, object]) -> Response:
    return Response(encode(body), media_type="application/json", headers=_NO_STORE)
