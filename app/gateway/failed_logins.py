"""How often callers who show a wrong credential may go on trying.

Failures are counted by address, and by address and credential, so that a client that
repeats one bad token is slowed down before its neighbours notice. Over the limit nothing
is looked up: a guess, right or wrong, gets 429 and the time to wait. Others behind the
same address who were let in before go on as ever, since their credentials are
remembered, and so are the secrets and tickets that they have made here; only newcomers
wait. All of it is this process's own: a limit that needed
Redis would give strangers a way to load it.
"""

from __future__ import annotations

import hashlib
import ipaddress
import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

from app.auth import Credential
from engine.contract import Overloaded

# A burst, and one more each so many seconds.
ADDRESS_BURST = 200
ADDRESS_EVERY_S = 0.5
CREDENTIAL_BURST = 10
CREDENTIAL_EVERY_S = 6.0
# Of each: callers remembered; the one that was quiet for the longest goes first.
MAX_REMEMBERED = 10_000
IPV6_PREFIX_BITS = 64


class FailureBudget:
    """Failures by key: a burst, and then one each `every_s`.

    Args:
        burst: At once.
        every_s: Seconds.
    """

    def __init__(self, burst: int, every_s: float) -> None:
        self._every_s = every_s
        self._span_s = burst * every_s
        # When the budget of a key is whole again.
        self._whole_at: OrderedDict[Hashable, float] = OrderedDict()

    def wait_s(self, key: Hashable, now: float) -> float:
        """Until another failure may happen; 0.0 for now."""
        whole_at = self._whole_at.get(key, now)
        return max(0.0, whole_at + self._every_s - self._span_s - now)

    def note(self, key: Hashable, now: float) -> None:
        """A failure."""
        self._whole_at[key] = max(now, self._whole_at.get(key, now)) + self._every_s
        self._whole_at.move_to_end(key)
        if len(self._whole_at) > MAX_REMEMBERED:
            self._whole_at.popitem(last=False)


class FailedLogins:
    """See the module.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._by_address = FailureBudget(ADDRESS_BURST, ADDRESS_EVERY_S)
        self._by_credential = FailureBudget(CREDENTIAL_BURST, CREDENTIAL_EVERY_S)
        self._good: OrderedDict[bytes, None] = OrderedDict()
        self._salt = os.urandom(16)

    def check(self, address: str, credential: Credential) -> None:
        """Refuse before anything is looked up.

        Raises:
            Overloaded: too many failures, of this credential or from this address.
        """
        digest = self._digest(credential)
        if digest in self._good:
            return
        network, now = network_of(address), self._clock()
        wait_s = max(
            self._by_address.wait_s(network, now),
            self._by_credential.wait_s((network, digest), now),
        )
        if wait_s > 0:
            raise Overloaded(
                "Too many attempts with wrong credentials; try again later.",
                code="too_many_failures",
                retry_after_ms=math.ceil(wait_s * 1000),
            )

    def note(self, address: str, credential: Credential) -> None:
        """This one was wrong."""
        digest, now = self._digest(credential), self._clock()
        network = network_of(address)
        self._good.pop(digest, None)
        self._by_address.note(network, now)
        self._by_credential.note((network, digest), now)

    def remember(self, credential: Credential) -> None:
        """This one was good; a ticket is good only once."""
        if credential.is_ticket:
            self._good.pop(self._digest(credential), None)
        else:
            self.expect(credential)

    def expect(self, credential: Credential) -> None:
        """This one will be good, perhaps only once: it was just made here."""
        digest = self._digest(credential)
        self._good[digest] = None
        self._good.move_to_end(digest)
        if len(self._good) > MAX_REMEMBERED:
            self._good.popitem(last=False)

    def _digest(self, credential: Credential) -> bytes:
        value = credential.value.encode(errors="surrogateescape")
        return hashlib.blake2b(value, digest_size=16, key=self._salt).digest()


def network_of(address: str) -> str:
    """The address; of IPv6 the part that a provider gives to one customer."""
    if ":" not in address:
        return address
    try:
        whole = ipaddress.IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    if whole.ipv4_mapped is not None:
        return str(whole.ipv4_mapped)
    return str(ipaddress.IPv6Network((whole, IPV6_PREFIX_BITS), strict=False))
