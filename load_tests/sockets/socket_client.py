"""A WebSocket client that costs so little that thousands fit beside what they measure.

It checks what a well-behaved server sends no further than it must: text frames from the
server, whole or fragmented, pings answered. RFC 6455.
"""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import struct
from collections.abc import Callable

_TEXT, _CLOSE, _PING, _PONG = 1, 8, 9, 10
_FINAL = 0x80
_MASKED = 0x80


class SocketClient(asyncio.Protocol):
    """One socket.

    Args:
        host: For the handshake.
        target: Path and query.
        on_text: Called with each text message's bytes.
        headers: Further lines of the handshake.

    Attributes:
        opened: Done once the handshake is; fails with ConnectionError if it is refused.
        closed: Done at the end, with the close code; 1006 for an end without one.
        transport: To pause reading with.
    """

    __slots__ = ("_buffer", "_handshake", "closed", "is_open", "on_text", "opened", "transport")

    def __init__(
        self,
        host: str,
        target: str,
        on_text: Callable[[bytes], None],
        headers: tuple[str, ...] = (),
    ) -> None:
        loop = asyncio.get_running_loop()
        key = base64.b64encode(os.urandom(16)).decode()
        self._handshake = "\r\n".join(
            [
                f"GET {target} HTTP/1.1",
                f"Host: {host}",
                "Connection: Upgrade",
                "Upgrade: websocket",
                "Sec-WebSocket-Version: 13",
                f"Sec-WebSocket-Key: {key}",
                *headers,
                "\r\n",
            ]
        ).encode()
        self.on_text = on_text
        self.opened: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[int] = loop.create_future()
        self.is_open = False
        self.transport: asyncio.Transport
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._handshake)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        if not self.opened.done():
            self.opened.set_exception(ConnectionError("closed during the handshake"))
            self.opened.exception()
        if not self.closed.done():
            self.closed.set_result(1006)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        buffer = self._buffer
        buffer += data
        if not self.is_open and not self._take_handshake():
            return
        while (frame := _take_frame(buffer)) is not None:
            self._on_frame(*frame)

    def _take_handshake(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        status = bytes(self._buffer[: self._buffer.find(b"\r\n")])
        if b" 101 " not in status + b" ":
            self.opened.set_exception(ConnectionError(status.decode("latin-1")))
            self.opened.exception()
            self.transport.abort()
            return False
        del self._buffer[: end + 4]
        self.is_open = True
        self.opened.set_result(None)
        return True

    def _on_frame(self, opcode: int, payload: bytes) -> None:
        if opcode <= _TEXT:
            self.on_text(payload)
        elif opcode == _PING:
            self._send(_PONG, payload)
        elif opcode == _CLOSE:
            code = struct.unpack("!H", payload[:2])[0] if len(payload) >= 2 else 1005
            if not self.closed.done():
                self.closed.set_result(code)
            self._send(_CLOSE, payload)
            self.transport.close()

    def send_text(self, text: str) -> None:
        """Send one message."""
        self._send(_TEXT, text.encode())

    def _send(self, opcode: int, payload: bytes) -> None:
        length = len(payload)
        if length < 126:
            head = struct.pack("!BB", _FINAL | opcode, _MASKED | length)
        elif length < 65536:
            head = struct.pack("!BBH", _FINAL | opcode, _MASKED | 126, length)
        else:
            head = struct.pack("!BBQ", _FINAL | opcode, _MASKED | 127, length)
        # A mask of zeros is a mask, and spares the masking.
        self.transport.write(head + b"\0\0\0\0" + payload)


def _take_frame(buffer: bytearray) -> tuple[int, bytes] | None:
    """Take the first whole frame off `buffer`: opcode and payload; None if there is none."""
    if len(buffer) < 2:
        return None
    length, start = buffer[1] & 0x7F, 2
    if length == 126:
        if len(buffer) < 4:
            return None
        length, start = int.from_bytes(buffer[2:4]), 4
    elif length == 127:
        if len(buffer) < 10:
            return None
        length, start = int.from_bytes(buffer[2:10]), 10
    if len(buffer) < start + length:
        return None
    opcode, payload = buffer[0] & 0x0F, bytes(buffer[start : start + length])
    del buffer[: start + length]
    return opcode, payload


async def connect(
    host: str,
    port: int,
    target: str,
    on_text: Callable[[bytes], None],
    *,
    headers: tuple[str, ...] = (),
    receive_buffer_bytes: int | None = None,
) -> SocketClient:
    """Open a socket.

    Args:
        receive_buffer_bytes: The kernel's buffer; small for a reader that is to be slow.

    Raises:
        ConnectionError: it was refused.
    """
    loop = asyncio.get_running_loop()
    raw = socket.socket()
    raw.setblocking(False)
    if receive_buffer_bytes is not None:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
    await loop.sock_connect(raw, (host, port))
    _, client = await loop.create_connection(
        lambda: SocketClient(f"{host}:{port}", target, on_text, headers), sock=raw
    )
    await client.opened
    return client
