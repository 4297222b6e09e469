"""A request's target: its path, and the one secret that a query may hold."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, unquote

from starlette.types import Scope

TICKET = "ticket"
# Of a query; a longer one holds none.
_MAX_FIELDS = 64
_ABSOLUTE = re.compile(rb"https?://([^/?#]*)(.*)", re.IGNORECASE | re.DOTALL)


def to_origin_form(scope: Scope) -> None:
    """Read a target that names scheme and host (`GET http://host/path`) as a path.

    The host in it goes before the Host header (RFC 9112, 3.2.2).
    """
    match = _ABSOLUTE.fullmatch(scope["raw_path"])
    if match is None:
        return
    host, raw_path = match[1].rpartition(b"@")[2], match[2] or b"/"
    scope["raw_path"] = raw_path
    scope["path"] = unquote(raw_path.decode("ascii"))
    others = [(name, value) for name, value in scope["headers"] if name.lower() != b"host"]
    scope["headers"] = [(b"host", host), *others]


def tickets_of(query: bytes) -> list[str]:
    """Every `ticket` of a query string."""
    try:
        fields = parse_qsl(
            query.decode("ascii"), keep_blank_values=True, max_num_fields=_MAX_FIELDS
        )
    except ValueError:
        return []
    return [value for name, value in fields if name == TICKET]
