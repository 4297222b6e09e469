"""What a socket costs without us: the same deltas from servers that do nothing else.

python -m load_tests.sockets.plain_servers starlette --port 9000

`starlette` is starlette on uvicorn and the websockets library, as our gateway is, with one
task a socket that sends. `socketio` is python-socketio on uvicorn, a common real-time
server. No sessions, no Redis, no log, no back-pressure: a lower bound, not a rival.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence

import socketio
import uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket, WebSocketDisconnect

CHUNK_TOKENS = 4


async def chunks(num_tokens: int, rate: float) -> AsyncIterator[str]:
    """Texts of four stamped tokens each, at `rate` tokens a second."""
    due_at = time.monotonic()
    for _ in range(num_tokens // CHUNK_TOKENS):
        due_at += CHUNK_TOKENS / rate
        await asyncio.sleep(due_at - time.monotonic())
        yield f"@{time.monotonic_ns()} " * CHUNK_TOKENS


async def _serve(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text('{"type":"session.created"}')
    try:
        while True:
            asked = json.loads(await websocket.receive_text())
            async for text in chunks(asked["num_tokens"], asked["rate"]):
                await websocket.send_text(
                    json.dumps({"type": "response.output_text.delta", "delta": text})
                )
            await websocket.send_text('{"type":"response.done"}')
    except WebSocketDisconnect:
        return


def starlette_app() -> ASGIApp:
    """One WebSocket route."""
    return Starlette(routes=[WebSocketRoute("/socket", _serve)])


def socketio_app() -> ASGIApp:
    """One event, `ask`."""
    server = socketio.AsyncServer(async_mode="asgi", cors_allowed_origins="*")

    async def ask(sid: str, asked: dict[str, float]) -> None:
        async for text in chunks(int(asked["num_tokens"]), asked["rate"]):
            await server.emit("delta", {"delta": text}, to=sid)
        await server.emit("done", {}, to=sid)

    server.on("ask", ask)
    return socketio.ASGIApp(server)


APPS = {"starlette": starlette_app, "socketio": socketio_app}


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=APPS)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args(argv)
    uvicorn.run(
        APPS[options.kind](),
        port=options.port,
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        log_level="warning",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
