"""Who may see the operator's view: the holder of one token, kept as a hash."""

from __future__ import annotations

import hmac
from collections.abc import Callable

from app.auth.api_keys import check_key, hash_key
from app.auth.credentials import credential_of, refused
from engine.contract import AuthenticationFailed, PermissionDenied


def parse_ops_token(text: str) -> bytes:
    """The hash of a file's one token.

    Raises:
        ValueError: it does not hold one token of 16 to 512 characters.
    """
    lines = [line.strip() for line in text.splitlines()]
    tokens = [line for line in lines if line and not line.startswith("#")]
    if len(tokens) != 1:
        raise ValueError(f"it must hold one token, holds {len(tokens)}")
    check_key(tokens[0])
    return hash_key(tokens[0])


class OpsAccess:
    """See the module.

    Args:
        token: The token's hash as it stands now; None without one.
        is_open: Whether this gateway lets anyone on its machine in.
    """

    def __init__(self, token: Callable[[], bytes | None], *, is_open: bool) -> None:
        self._token = token
        self._is_open = is_open

    def holds(self, authorization: list[str]) -> bool:
        """Whether these Authorization headers show the token."""
        token = self._token()
        try:
            shown = credential_of(authorization)
        except AuthenticationFailed:
            return False
        if token is None or shown is None:
            return False
        return hmac.compare_digest(token, hash_key(shown.value))

    def check(self, authorization: list[str]) -> None:
        """Refuse whoever may not see the operator's view.

        Raises:
            AuthenticationFailed: without the token.
            PermissionDenied: there is none that could be shown.
        """
        if self._token() is None:
            if not self._is_open:
                raise PermissionDenied(
                    "The operator's view needs --ops-token-file.", code="ops_not_set_up"
                )
            return
        if not self.holds(authorization):
            raise refused()
