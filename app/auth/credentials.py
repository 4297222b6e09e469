"""Where a request carries its credential: a header, or a subprotocol's element.

Never the query string: it would end up in logs and histories.
"""

from __future__ import annotations

from collections.abc import Iterable

KEY_SUBPROTOCOL = "openai-insecure-api-key."


def credential_of(authorization: str | None, subprotocols: Iterable[str] = ()) -> str | None:
    """The caller's credential, or None.

    Args:
        authorization: The Authorization header; only the Bearer scheme counts.
        subprotocols: What a WebSocket client offered.
    """
    if authorization is not None:
        scheme, _, credential = authorization.partition(" ")
        return credential.strip() or None if scheme.lower() == "bearer" else None
    for element in subprotocols:
        if element.startswith(KEY_SUBPROTOCOL):
            return element.removeprefix(KEY_SUBPROTOCOL) or None
    return None


def offered_subprotocols(header: str | None) -> list[str]:
    """Elements of a Sec-WebSocket-Protocol header."""
    return [element.strip() for element in (header or "").split(",") if element.strip()]
