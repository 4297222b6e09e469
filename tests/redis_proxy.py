"""An address that stands for a Redis: it may lead elsewhere, or nowhere, from one moment on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


class RedisProxy:
    """A loopback port in front of a server's socket.

    Args:
        target: The socket that new connections lead to; None closes them at once.

    Attributes:
        is_black_hole: Whether bytes are swallowed, in both directions, and nothing is closed.
        port: Where it listens.
    """

    def __init__(self, target: Path | None) -> None:
        self.target = target
        self.is_black_hole = False
        self.port = 0
        self.open: set[asyncio.Transport] = set()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def lead_to(self, target: Path | None) -> None:
        """Close what is open; what connects from now on reaches `target`."""
        self.target = target
        self.cut()

    def cut(self) -> None:
        """Close every connection."""
        for transport in tuple(self.open):
            transport.abort()


class _End(asyncio.Protocol):
    """One end of a connection; what it reads goes out at the other."""

    def __init__(self, proxy: RedisProxy, other: _End | None = None) -> None:
        self._proxy = proxy
        self._other = other
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._proxy.open.add(transport)
        if self._other is None:
            self._lead_on(transport)

    def _lead_on(self, transport: asyncio.Transport) -> None:
        upstream = socket.socket(socket.AF_UNIX)
        try:
            upstream.connect(str(self._proxy.target))
        except OSError:
            upstream.close()
            transport.abort()
            return
        upstream.setblocking(False)
        self._other = _End(self._proxy, self)
        transport.pause_reading()
        self._joining = asyncio.create_task(self._join(transport, upstream))

    async def _join(self, transport: asyncio.Transport, upstream: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self._other, sock=upstream)
        if transport.is_closing():
            self.connection_lost(None)
        else:
            transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        other = self._other.transport if self._other else None
        if other is not None and not self._proxy.is_black_hole:
            other.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        assert self.transport is not None
        self._proxy.open.discard(self.transport)
        if self._other is not None and self._other.transport is not None:
            self._other.transport.abort()


@asynccontextmanager
async def running_proxy(target: Path | None) -> AsyncIterator[RedisProxy]:
    """A proxy on this loop."""
    proxy = RedisProxy(target)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _End(proxy), "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        while proxy.open:
            proxy.cut()
            await asyncio.sleep(0)
        await server.wait_closed()
