"""`GET /v1/models` and `/v1/models/{id}`."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from app.gateway.responses import Responses
from app.protocol.json_codec import encode
from app.protocol.models import model_list, model_object


class ModelRoutes:
    """The routes' handlers.

    Args:
        responses: Knows the engine.
    """

    def __init__(self, responses: Responses) -> None:
        self._responses = responses

    async def list(self, request: Request) -> Response:
        """Models with a live worker."""
        cards = self._responses.engine.cards()
        return Response(encode(model_list(cards)), media_type="application/json")

    async def one(self, request: Request) -> Response:
        """One model; NotFound if there is none of the name."""
        card = self._responses.engine.card(request.path_params["model"])
        return Response(encode(model_object(card)), media_type="application/json")
