"""`/livez`, `/readyz` and `/metrics`."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from app.gateway.metrics import GatewayMetrics
from app.gateway.responses import Responses
from app.protocol.json_codec import encode

_NO_STORE = {"cache-control": "no-store"}


class HealthRoutes:
    """The routes' handlers.

    Args:
        responses: Knows the engine, and whether this gateway is stopping.
        metrics: What `/metrics` shows.
    """

    def __init__(self, responses: Responses, metrics: GatewayMetrics) -> None:
        self._responses = responses
        self._metrics = metrics

    async def live(self, request: Request) -> Response:
        """200 as long as the process serves at all."""
        return Response(b'{"status":"live"}', media_type="application/json", headers=_NO_STORE)

    async def ready(self, request: Request) -> Response:
        """200 if a request sent now would be served, else 503; the body says why."""
        engine = self._responses.engine
        draining = self._responses.is_draining
        ready = engine.ready() and not draining
        body = {
            "status": "ready" if ready else "not ready",
            "draining": draining,
            **engine.health(),
        }
        return Response(
            encode(body),
            status_code=200 if ready else 503,
            media_type="application/json",
            headers=_NO_STORE,
        )

    async def metrics(self, request: Request) -> Response:
        """Prometheus text."""
        return Response(
            self._metrics.render(), headers={"content-type": CONTENT_TYPE_LATEST, **_NO_STORE}
        )
