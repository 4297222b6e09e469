"""The real gateway in a thread, for a page to talk to."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine
from typing import Any

from app.gateway.config import GatewayConfig
from app.gateway.server import GatewayServer, create_gateway
from tests.spine import until


class GatewayThread:
    """See the module; the gateway can be stopped and started again on the same port.

    Args:
        redis_url: Where a worker already is.
        settings: Fields of `GatewayConfig`.
    """

    def __init__(self, redis_url: str, **settings: Any) -> None:
        self._config = GatewayConfig(redis_url=redis_url, grace_s=0.0, **settings)
        self._server: GatewayServer | None = None
        self._serving: asyncio.Task[None] | None = None
        self._port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.start()

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://127.0.0.1:{self._port}/"

    def start(self) -> None:
        """Start a gateway and wait until it has found a worker."""
        self._wait(self._start())

    def stop(self) -> None:
        """Stop the gateway."""
        self._wait(self._stop())

    def close(self) -> None:
        """Stop the gateway and the thread."""
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _wait(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _start(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self._port))
        listener.listen(128)
        listener.setblocking(False)
        self._port = listener.getsockname()[1]
        gateway = create_gateway(self._config)
        self._server = server = GatewayServer(gateway)
        self._serving = asyncio.create_task(server.serve_on(listener))
        await until(lambda: server.started and gateway.responses.engine.ready())

    async def _stop(self) -> None:
        if self._server is not None and self._serving is not None:
            self._server.stop()
            self._server.stop()
            await self._serving
        self._server = None
