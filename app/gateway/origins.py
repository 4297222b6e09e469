"""Which web pages may call: one list for sockets and for HTTP.

Allowed are callers that send no Origin (they are not web pages), the gateway's own
page, pages on the loopback interface, and the origins that the operator lists. A
gateway that asks for no key also insists that it is addressed by a loopback name, or
any page could reach it by pointing its own name at 127.0.0.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

_LOOPBACK = re.compile(r"localhost|127(?:\.[0-9]{1,3}){3}|::1")
_ORIGIN = re.compile(r"https?://(?:\[[0-9a-f:.]+\]|[a-z0-9.-]+)(?::[0-9]{1,5})?")


def is_loopback(host: str) -> bool:
    """Whether a host name or address, without port, is this machine's own."""
    return bool(_LOOPBACK.fullmatch(host.strip("[]").lower()))


def host_name(host_header: str) -> str:
    """The name in a Host header, without its port; empty if there is none."""
    try:
        return urlsplit(f"//{host_header}").hostname or ""
    except ValueError:
        return ""


class OriginPolicy:
    """See the module.

    Args:
        allowed: Origins as browsers spell them: `https://chat.example`.
        needs_loopback_host: Whether the Host header must name the loopback interface.

    Raises:
        ValueError: for an entry that is not an origin.
    """

    def __init__(self, allowed: Iterable[str] = (), *, needs_loopback_host: bool = False) -> None:
        self._allowed = frozenset(origin.strip().lower().rstrip("/") for origin in allowed)
        self._needs_loopback_host = needs_loopback_host
        for origin in self._allowed:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(
                    f"allowed origins must look like https://chat.example, got {origin!r}"
                )

    def allows_host(self, host_header: str) -> bool:
        """Whether a request addressed to this Host may be answered."""
        return not self._needs_loopback_host or is_loopback(host_name(host_header))

    def allows(self, origin: str | None, host_header: str) -> bool:
        """Whether a page of `origin` may call a gateway addressed as `host_header`."""
        if origin is None:
            return True
        origin = origin.lower()
        if origin in self._allowed:
            return True
        if not _ORIGIN.fullmatch(origin):
            return False
        try:
            parts = urlsplit(origin)
        except ValueError:
            # Brackets around something other than an IPv6 address.
            return False
        return parts.netloc == host_header.lower() or is_loopback(parts.hostname or "")
