"""Where a request carries its credential: a header, a subprotocol's element, a ticket.

A key or a token never goes into the query string: it would end up in logs and
histories. Only a ticket may, which is good for one socket within seconds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.contract import AuthenticationFailed

KEY_SUBPROTOCOL = "openai-insecure-api-key."
# The text is the same whatever was wrong.
REFUSAL = "A valid API key or token is needed: send it as 'Authorization: Bearer KEY'."


@dataclass(frozen=True, slots=True)
class Credential:
    """What a caller shows.

    Attributes:
        value: Kept out of `repr`, so that no log line can hold it by accident.
        is_ticket: Whether it came as one.
    """

    value: str = field(repr=False)
    is_ticket: bool = False


def refused() -> AuthenticationFailed:
    """The one error for a caller who is not known."""
    return AuthenticationFailed(REFUSAL)


def credential_of(
    authorizations: Iterable[str],
    subprotocols: Iterable[str] = (),
    tickets: Iterable[str] = (),
) -> Credential | None:
    """The caller's credential, or None.

    Args:
        authorizations: The Authorization headers; only the Bearer scheme counts.
        subprotocols: What a WebSocket client offered.
        tickets: What its query gave as `ticket`.

    Raises:
        AuthenticationFailed: a header of another scheme, or several credentials that
            differ: which of them counts must not depend on who looks.
    """
    found: set[Credential] = set()
    for header in authorizations:
        scheme, _, value = header.partition(" ")
        if scheme.lower() != "bearer" or not value.strip():
            raise refused()
        found.add(Credential(value.strip()))
    for element in subprotocols:
        value = element.removeprefix(KEY_SUBPROTOCOL)
        if value and value != element:
            found.add(Credential(value))
    found |= {Credential(ticket, is_ticket=True) for ticket in tickets}
    if len(found) > 1:
        raise refused()
    return found.pop() if found else None


def offered_subprotocols(headers: Iterable[str]) -> list[str]:
    """Elements of the Sec-WebSocket-Protocol headers."""
    elements = [element.strip() for header in headers for element in header.split(",")]
    return [element for element in elements if element]
