"""A WebSocket's opening handshake: read, turned into an ASGI scope, answered.

The websockets library checks it. What it refuses is refused in JSON, as all else is.
"""

from __future__ import annotations

import asyncio
import logging
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

from starlette.types import Scope
from uvicorn.config import Config
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol

from app.gateway.transport import BAD_REQUEST
from engine.contract import InvalidRequest

# The library logs each connection; uvicorn's own logger is as quiet as it should be.
library_logger = logging.getLogger("uvicorn.error")


class SocketHandshake:
    """One connection's.

    Args:
        config: uvicorn's.
        state: What the application finds in its scope.
    """

    def __init__(self, config: Config, state: dict[str, Any]) -> None:
        self._config = config
        self._state = state
        self._protocol = ServerProtocol(logger=library_logger)
        self._response: Response | None = None

    @property
    def is_read(self) -> bool:
        """Whether the request has been read."""
        return self._response is not None

    def read(self, data: bytes, transport: asyncio.Transport) -> Scope:
        """Read the request, which uvicorn's HTTP protocol has read before and passes on whole.

        Args:
            data: All of it.
            transport: Where it came from.

        Returns:
            What the application is asked with.

        Raises:
            InvalidRequest: It is no request for a WebSocket.
        """
        self._protocol.receive_data(data)
        request = next(iter(self._protocol.events_received()), None)
        if not isinstance(request, Request):
            raise InvalidRequest(BAD_REQUEST.message, code=BAD_REQUEST.code)
        response = self._protocol.accept(request)
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            reason = str(self._protocol.handshake_exc)
            raise InvalidRequest(f"No WebSocket: {reason}.", code="invalid_handshake")
        self._response = response
        return self._scope(request, transport)

    def _scope(self, request: Request, transport: asyncio.Transport) -> Scope:
        raw_path, _, query = request.path.partition("?")
        offered = request.headers.get_all("Sec-WebSocket-Protocol")
        root = self._config.root_path
        return {
            "type": "websocket",
            "asgi": {"version": self._config.asgi_version, "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "wss" if is_ssl(transport) else "ws",
            "server": get_local_addr(transport),
            "client": get_remote_addr(transport),
            "root_path": root,
            "path": root + unquote(raw_path),
            "raw_path": (root + raw_path).encode("ascii"),
            "query_string": query.encode("ascii"),
            "headers": [
                (name.lower().encode("ascii"), value.encode("ascii", errors="surrogateescape"))
                for name, value in request.headers.raw_items()
            ],
            "subprotocols": [name.strip() for value in offered for name in value.split(",")],
            "state": self._state,
            "extensions": {"websocket.http.response": {}},
        }

    def acceptance(self, subprotocol: str | None) -> bytes:
        """The answer that opens the socket.

        Raises:
            RuntimeError: The request has not been read.
        """
        if self._response is None:
            raise RuntimeError("There is no handshake to be answered.")
        if subprotocol is not None:
            self._response.headers["Sec-WebSocket-Protocol"] = subprotocol
        return self._response.serialize()

    def close(self) -> None:
        """It has been answered; the parser's frame refers back to the parser."""
        self._protocol.parser.close()
