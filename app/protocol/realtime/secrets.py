"""The body of `POST /v1/realtime/client_secrets`: a lifetime, and a session's settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.protocol.fields import Fields
from app.protocol.realtime.settings import SessionSettings, read_update
from engine.contract import ModelCard

MIN_TTL_S = 10
MAX_TTL_S = 7200
DEFAULT_TTL_S = 600


@dataclass(frozen=True, slots=True)
class SecretRequest:
    """What is asked for.

    Attributes:
        ttl_s: How long the secret opens sockets.
        settings: Of the sessions that it begins.
    """

    ttl_s: int
    settings: SessionSettings


def read_secret_request(
    body: Mapping[str, Any], card_of: Callable[[str | None], ModelCard]
) -> SecretRequest:
    """Read the body; everything in it may be left out.

    Args:
        body: Decoded.
        card_of: A model's card by its name, the default one for None.

    Raises:
        InvalidRequest: naming the field.
    """
    fields = Fields(body)
    fields.only(("expires_after", "session"))
    expiry = fields.object("expires_after") or Fields({}, "expires_after")
    expiry.only(("anchor", "seconds"))
    expiry.choice("anchor", ("created_at",))
    ttl_s = expiry.integer("seconds", MIN_TTL_S, MAX_TTL_S)
    session = fields.object("session") or Fields({}, "session")
    card = card_of(session.string("model"))
    settings = read_update(session, SessionSettings(card.id), card)
    return SecretRequest(DEFAULT_TTL_S if ttl_s is None else ttl_s, settings)
