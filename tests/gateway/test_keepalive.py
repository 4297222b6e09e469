"""Every socket is pinged once an interval; who does not answer in time is ended."""

from __future__ import annotations

from collections import Counter

import pytest

from app.gateway.keepalive import PingWheel
from tests.spine import until


class Peer:
    """A socket that answers as long as its peer lives."""

    def __init__(self, *, is_alive: bool = True) -> None:
        self.ping_payload: bytes | None = None
        self.wheel_slot = 0
        self.is_alive = is_alive
        self.num_pings = 0
        self.is_ended = False

    def ping(self, payload: bytes) -> None:
        self.num_pings += 1
        if self.is_alive:
            self.ping_payload = None

    def end_silent(self) -> None:
        self.is_ended = True


async def test_each_is_pinged_in_turn_and_the_silent_are_ended() -> None:
    wheel = PingWheel(0.2, 0.1)
    living = [Peer() for _ in range(20)]
    silent = [Peer(is_alive=False) for _ in range(20)]
    for peer in (*living, *silent):
        wheel.add(peer)
    await until(lambda: all(peer.is_ended for peer in silent))
    assert not any(peer.is_ended for peer in living)
    assert {peer.num_pings for peer in silent} == {1}
    await until(lambda: all(peer.num_pings >= 3 for peer in living))
    for peer in (*living, *silent):
        wheel.remove(peer)


async def test_a_ping_is_not_repeated_before_its_pong() -> None:
    wheel = PingWheel(0.02, 10.0)
    peer, other = Peer(is_alive=False), Peer()
    wheel.add(peer)
    wheel.add(other)
    await until(lambda: other.num_pings == 5)
    assert peer.num_pings == 1
    assert not peer.is_ended


async def test_who_left_is_neither_pinged_nor_ended() -> None:
    wheel = PingWheel(0.04, 0.02)
    stays, leaves = Peer(), Peer(is_alive=False)
    wheel.add(stays)
    wheel.add(leaves)
    await until(lambda: leaves.num_pings == 1)
    wheel.remove(leaves)
    wheel.remove(leaves)
    before = stays.num_pings
    await until(lambda: stays.num_pings >= before + 3)
    assert leaves.num_pings == 1
    wheel.remove(stays)


@pytest.mark.parametrize("interval_s", [0.05, 20.0])
async def test_sockets_that_open_over_time_are_spread_over_the_wheel(interval_s: float) -> None:
    wheel = PingWheel(interval_s, 20.0)
    peers = [Peer() for _ in range(100)]
    for number, peer in enumerate(peers):
        if number % 10 == 0:
            wheel._tick()
        wheel.add(peer)
    per_slot = Counter(peer.wheel_slot for peer in peers)
    assert len(per_slot) == (10 if interval_s > 1 else 2)
    for peer in peers:
        wheel.remove(peer)
    assert wheel._timer is None
