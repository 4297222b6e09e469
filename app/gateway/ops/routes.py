"""`/ops/state`, and the button that drains a worker."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from app.gateway.ops.access import OpsAccess
from app.gateway.ops.board import OpsBoard
from app.protocol.json_codec import encode
from app.routing import EngineClient
from engine.contract import WorkerState


class OpsRoutes:
    """The routes' handlers.

    Args:
        engine: Knows the workers.
        board: Knows the gateways.
        access: Who may ask.
    """

    def __init__(self, engine: EngineClient, board: OpsBoard, access: OpsAccess) -> None:
        self._engine = engine
        self._board = board
        self._access = access

    async def state(self, request: Request) -> Response:
        """Every gateway and every worker, now."""
        self._access.check(request.headers.getlist("authorization"))
        engine = self._engine
        workers = [_worker(state, engine.status(state.worker_id)) for state in engine.workers()]
        return _json({"now": time.time(), "gateways": await self._board.read(), "workers": workers})

    async def drain(self, request: Request) -> Response:
        """Ask one worker to end or hand over its answers, and to leave."""
        self._access.check(request.headers.getlist("authorization"))
        worker_id = request.path_params["id"]
        await self._engine.drain(worker_id)
        return _json({"id": worker_id, "status": "draining"})


def _worker(state: WorkerState, status: str) -> dict[str, Any]:
    now = time.time()
    return {
        "id": state.worker_id,
        "model": state.card.id,
        "status": status,
        "running": state.num_running,
        "waiting": state.num_waiting,
        "used_blocks": state.used_blocks,
        "blocks": state.num_blocks,
        "decode_tokens_per_s": state.decode_tokens_per_s,
        "beat_age_s": max(0.0, now - state.beat_at),
        "step_age_s": max(0.0, now - state.last_step_at),
        "metrics": dict(state.metrics),
    }


def _json(body: dict[str, Any]) -> Response:
    return Response(
        encode(body), media_type="application/json", headers={"cache-control": "no-store"}
    )
