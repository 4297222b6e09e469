"""Request bodies, read up to a limit."""

from __future__ import annotations

from starlette.requests import ClientDisconnect, Request

from app.protocol.errors import RequestTooLarge


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body.

    Raises:
        RequestTooLarge: as soon as it is known to be longer than `max_bytes`.
        ClientDisconnect: the caller left.
    """
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced[:20]) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise _too_large(max_bytes)
    return bytes(body)


def _too_large(max_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(f"The request body is longer than {max_bytes} bytes.")


__all__ = ["ClientDisconnect", "read_body"]
