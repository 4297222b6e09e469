"""From a credential to a principal."""

from __future__ import annotations

from typing import Protocol

from app.auth.api_keys import ApiKeys
from app.auth.principal import Principal
from engine.contract import AuthenticationFailed, Tier


class Authenticator(Protocol):
    """Decides who holds a credential."""

    def authenticate(self, credential: str | None) -> Principal:
        """The caller.

        Raises:
            AuthenticationFailed: with the same text whatever was wrong.
        """


class OpenAuthenticator:
    """Takes anyone; for a gateway on the loopback interface without keys.

    A credential that comes along is ignored, as SDKs insist on sending one.
    """

    def authenticate(self, credential: str | None) -> Principal:
        """See `Authenticator`."""
        return Principal("default", Tier.STANDARD)


class KeyAuthenticator:
    """Takes the holders of API keys."""

    def __init__(self, keys: ApiKeys) -> None:
        self._keys = keys

    def authenticate(self, credential: str | None) -> Principal:
        """See `Authenticator`."""
        principal = None if credential is None else self._keys.find(credential)
        if principal is None:
            raise AuthenticationFailed(
                "A valid API key is needed: send it as 'Authorization: Bearer KEY'."
            )
        return principal
