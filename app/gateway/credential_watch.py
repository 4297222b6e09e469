"""A socket's credential over time: it runs out, is renewed, or is taken back.

When it has run out the client is told by an `error` event and has EXPIRED_CLOSE_S to
renew it; then the socket closes with 4401. Answers that run go on, and can be taken up
again by whoever comes back with a good credential.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from app.auth import Authenticator, Credential, Principal
from engine.contract import AuthenticationFailed, PermissionDenied, ReparteeError

EXPIRED_CLOSE_S = 10.0
# Longest sleep: the clock that a token goes by may be set, or stand still meanwhile.
LOOK_AGAIN_S = 60.0

Authenticate = Callable[[Credential], Awaitable[Principal]]


class CredentialWatch:
    """See the module.

    Args:
        principal: Whose socket it is.
        authenticator: Knows whether they are still callers.
        authenticate: Knows who shows another credential.
        tell: Sends an error to the client.
        close: Ends the socket with a code and a reason.

    Attributes:
        principal: As last shown.
    """

    def __init__(
        self,
        principal: Principal,
        authenticator: Authenticator,
        authenticate: Authenticate,
        tell: Callable[[ReparteeError], None],
        close: Callable[[int, str], None],
    ) -> None:
        self.principal = principal
        self._authenticator = authenticator
        self._authenticate = authenticate
        self._tell = tell
        self._close = close
        self._timer: asyncio.TimerHandle | None = None
        self._error: AuthenticationFailed | None = None

    def start(self) -> None:
        """Watch from now on."""
        self.stop()
        expires_at = self.principal.expires_at
        if expires_at is None:
            return
        left_s = expires_at - time.time()
        if left_s <= 0:
            self._end("The token has expired; renew it or connect again.", "token_expired")
            return
        self._timer = asyncio.get_running_loop().call_later(min(left_s, LOOK_AGAIN_S), self.start)

    def stop(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def check(self) -> None:
        """Refuse what only a good credential may ask for.

        Raises:
            AuthenticationFailed: it has run out, or was taken back.
        """
        if self._error is not None:
            raise self._error

    def look_again(self) -> None:
        """Keys have changed: is what made this credential still there?"""
        if self._error is None and not self._authenticator.is_known(self.principal):
            self.stop()
            self._end("The credential is not valid any more; connect again.", "token_revoked")

    async def renew(self, token: str) -> int | None:
        """Go on with another credential of the same tenant and subject.

        Returns:
            Whole Unix seconds until which it is good; None for good.

        Raises:
            AuthenticationFailed: it is none; PermissionDenied: it is somebody else's;
            Overloaded: too many were none.
        """
        principal = await self._authenticate(Credential(token))
        if principal.tenant != self.principal.tenant:
            raise PermissionDenied("The token is another tenant's.", param="token")
        if principal.owner != self.principal.owner:
            raise PermissionDenied("The token is another subject's.", param="token")
        self.principal = principal
        self._error = None
        self.start()
        return None if principal.expires_at is None else int(principal.expires_at)

    def _end(self, message: str, code: str) -> None:
        self._error = AuthenticationFailed(message, code=code)
        self._tell(self._error)
        reason = code.replace("_", " ")
        self._timer = asyncio.get_running_loop().call_later(
            EXPIRED_CLOSE_S, self._close, AuthenticationFailed.close_code, reason
        )
