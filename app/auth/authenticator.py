"""From a credential to a principal."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from app.auth.api_keys import ApiKeys
from app.auth.credentials import Credential, refused
from app.auth.grants import SECRET_PREFIX, GrantStore
from app.auth.principal import Principal
from app.auth.tokens import TokenError, TokenVerifier
from engine.contract import Tier

logger = logging.getLogger(__name__)

# Longer than any key or token.
MAX_CREDENTIAL_CHARS = 4096
_ANYONE = Principal("default", Tier.STANDARD)


class Authenticator(Protocol):
    """Decides who shows a credential."""

    async def authenticate(self, credential: Credential | None) -> Principal:
        """The caller.

        Raises:
            AuthenticationFailed: with the same text whatever was wrong.
            Unavailable: the store of client secrets and tickets cannot be asked.
        """

    def is_known(self, principal: Principal) -> bool:
        """Whether the key behind a caller's credential is still there."""


class OpenAuthenticator:
    """Takes anyone; for a gateway on the loopback interface without keys.

    A key that comes along is ignored, as SDKs insist on sending one. Client secrets and
    tickets mean what they mean elsewhere.

    Args:
        grants: Client secrets and tickets.
    """

    def __init__(self, grants: GrantStore) -> None:
        self._grants = grants

    async def authenticate(self, credential: Credential | None) -> Principal:
        """See `Authenticator`."""
        if credential is None or not _is_grant(credential):
            return _ANYONE
        return await _redeem(self._grants, credential)

    def is_known(self, principal: Principal) -> bool:
        """See `Authenticator`."""
        return True


class KeyAuthenticator:
    """Takes the holders of API keys, tokens, client secrets and tickets.

    Args:
        keys: The API keys as they stand now.
        tokens: Knows tokens; None takes none.
        grants: Client secrets and tickets.
    """

    def __init__(
        self, keys: Callable[[], ApiKeys], tokens: TokenVerifier | None, grants: GrantStore
    ) -> None:
        self._keys = keys
        self._tokens = tokens
        self._grants = grants

    async def authenticate(self, credential: Credential | None) -> Principal:
        """See `Authenticator`."""
        if credential is None or len(credential.value) > MAX_CREDENTIAL_CHARS:
            raise refused()
        principal = None if credential.is_ticket else self._keys().find(credential.value)
        if principal is not None:
            return principal
        if _is_grant(credential):
            principal = await _redeem(self._grants, credential)
            if not self.is_known(principal):
                raise refused()
            return principal
        if self._tokens is None:
            raise refused()
        try:
            return self._tokens.verify(credential.value)
        except TokenError as refusal:
            logger.debug("token refused: %s", refusal)
            raise refused() from None

    def is_known(self, principal: Principal) -> bool:
        """See `Authenticator`."""
        if self._tokens is not None and self._tokens.has(principal.source):
            return True
        return self._keys().has(principal.source)


def _is_grant(credential: Credential) -> bool:
    return credential.is_ticket or credential.value.startswith(SECRET_PREFIX)


async def _redeem(grants: GrantStore, credential: Credential) -> Principal:
    if len(credential.value) > MAX_CREDENTIAL_CHARS:
        raise refused()
    find = grants.redeem_ticket if credential.is_ticket else grants.find_secret
    principal = await find(credential.value)
    if principal is None:
        raise refused()
    return principal
