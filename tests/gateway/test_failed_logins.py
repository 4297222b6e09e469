"""Wrong credentials are slowed down, and whoever was let in before notices nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import httpx
import pytest
from websockets.exceptions import InvalidStatus

from app.auth import Credential
from app.auth.api_keys import parse_api_keys
from app.gateway import failed_logins
from app.gateway.failed_logins import (
    ADDRESS_BURST,
    ADDRESS_EVERY_S,
    CREDENTIAL_BURST,
    CREDENTIAL_EVERY_S,
    FailedLogins,
    network_of,
)
from engine.contract import Overloaded
from tests.gateway.live import LiveGateway, receive, running_gateway

GOOD, OTHER = "rk_good-key-of-acme", "rk_good-key-of-other"


class Door:
    """Failed logins on a clock of their own."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.logins = FailedLogins(lambda: self.now)

    def fail(self, address: str, value: str) -> bool:
        """Whether an attempt with a wrong credential was looked at."""
        credential = Credential(value)
        try:
            self.logins.check(address, credential)
        except Overloaded:
            return False
        self.logins.note(address, credential)
        return True


def test_one_bad_credential_is_slowed_down_alone() -> None:
    door = Door()
    looked_at = [door.fail("10.0.0.1", "bad") for _ in range(30)]
    assert looked_at == [True] * CREDENTIAL_BURST + [False] * (30 - CREDENTIAL_BURST)
    assert door.fail("10.0.0.1", "another")
    assert door.fail("10.0.0.2", "bad")
    with pytest.raises(Overloaded) as refusal:
        door.logins.check("10.0.0.1", Credential("bad"))
    assert refusal.value.http_status == 429
    assert refusal.value.retry_after_ms is not None
    assert refusal.value.retry_after_ms <= CREDENTIAL_EVERY_S * 1000
    door.now += CREDENTIAL_EVERY_S
    assert [door.fail("10.0.0.1", "bad") for _ in range(2)] == [True, False]


def test_guesses_from_one_address_are_slowed_down_together() -> None:
    door = Door()
    looked_at = sum(door.fail("10.0.0.1", f"guess {number}") for number in range(1000))
    assert looked_at == ADDRESS_BURST
    assert door.fail("10.0.0.2", "guess")
    door.now += 10 * ADDRESS_EVERY_S
    assert sum(door.fail("10.0.0.1", f"again {number}") for number in range(1000)) == 10


def test_whoever_was_let_in_goes_on_beside_a_guesser() -> None:
    door = Door()
    door.logins.remember(Credential(GOOD))
    while door.fail("10.0.0.1", f"guess {door.now}"):
        door.now += 1e-6
    door.logins.check("10.0.0.1", Credential(GOOD))
    # Until it is good no more.
    door.logins.note("10.0.0.1", Credential(GOOD))
    assert not door.fail("10.0.0.1", GOOD)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_logins, "MAX_REMEMBERED", 50)
    door = Door()
    for number in range(500):
        door.fail(f"10.0.{number}", f"guess {number}")
        door.logins.remember(Credential(f"good {number}"))
    logins = door.logins
    assert len(logins._good) == len(logins._by_address._whole_at) == 50
    assert len(logins._by_credential._whole_at) == 50


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("unix:", "unix:"),
        ("", ""),
    ],
)
def test_ipv6_customers_have_one_budget(address: str, network: str) -> None:
    assert network_of(address) == network


BURST = 20


@pytest.fixture
async def gateway(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[LiveGateway]:
    # However slow the machine is, nothing comes back during the test.
    monkeypatch.setattr(failed_logins, "ADDRESS_BURST", BURST)
    monkeypatch.setattr(failed_logins, "ADDRESS_EVERY_S", 600.0)
    keys = parse_api_keys(f"{GOOD}:acme,{OTHER}:other")
    async with running_gateway(redis_url, api_keys=keys) as live:
        yield live


async def get(gateway: LiveGateway, key: str, **headers: str) -> httpx.Response:
    headers["authorization"] = f"Bearer {key}"
    return await gateway.http.get("/v1/models", headers=headers)


async def test_a_guesser_is_told_when_to_come_again(gateway: LiveGateway) -> None:
    assert (await get(gateway, GOOD)).status_code == 200
    answers = [await get(gateway, f"guess {number}") for number in range(BURST + 20)]
    assert {answer.status_code for answer in answers[:BURST]} == {401}
    assert answers[-1].status_code == 429
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert answers[-1].json()["error"]["code"] == "too_many_failures"
    # A socket is no way around, and a good key that was never seen here waits as well.
    async with httpx.AsyncClient() as client:
        upgrade = {
            "connection": "upgrade",
            "upgrade": "websocket",
            "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
            "sec-websocket-version": "13",
            "authorization": "Bearer guess",
        }
        answer = await client.get(f"{gateway.url}/v1/realtime", headers=upgrade)
    assert answer.status_code == 429
    assert (await get(gateway, OTHER)).status_code == 429
    # Those who were let in before, and those behind another address, notice nothing.
    assert (await get(gateway, GOOD)).status_code == 200
    forwarded = {"x-forwarded-for": "198.51.100.7"}
    assert (await get(gateway, OTHER, **forwarded)).status_code == 200


async def test_an_open_socket_is_no_place_to_guess(gateway: LiveGateway) -> None:
    async def renew(token: str) -> dict[str, str]:
        await socket.send(json.dumps({"type": "repartee.token.renew", "token": token}))
        answer = await receive(socket)
        return answer.get("error", answer)

    async with gateway.socket(additional_headers={"authorization": f"Bearer {GOOD}"}) as socket:
        await receive(socket)
        codes = [(await renew("guess"))["code"] for _ in range(CREDENTIAL_BURST + 5)]
        assert codes == ["invalid_api_key"] * CREDENTIAL_BURST + ["too_many_failures"] * 5
        # The credential that was let in is good all the same.
        assert (await renew(GOOD))["type"] == "repartee.token.renewed"
    # What was guessed there counts elsewhere.
    assert (await get(gateway, "guess")).status_code == 429


async def test_what_was_made_here_opens_a_socket_beside_a_guesser(gateway: LiveGateway) -> None:
    headers = {"authorization": f"Bearer {GOOD}"}
    assert (await get(gateway, GOOD)).status_code == 200
    for number in range(ADDRESS_BURST):
        await get(gateway, f"guess {number}")
    assert (await get(gateway, OTHER)).status_code == 429
    made = await gateway.http.post("/v1/realtime/tickets", headers=headers)
    ticket = f"?ticket={made.json()['ticket']}"
    async with gateway.socket(ticket) as socket:
        assert (await receive(socket))["type"] == "session.created"
    with pytest.raises(InvalidStatus) as refusal:
        async with gateway.socket(ticket):
            pass
    assert refusal.value.response.status_code == 429
    made = await gateway.http.post("/v1/realtime/client_secrets", headers=headers)
    secret = {"authorization": f"Bearer {made.json()['value']}"}
    for _ in range(2):
        async with gateway.socket(additional_headers=secret) as socket:
            assert (await receive(socket))["type"] == "session.created"
