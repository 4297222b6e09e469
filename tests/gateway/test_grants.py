"""Client secrets and tickets: made with a key, used by a browser, gone in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis
from websockets.exceptions import InvalidStatus

from app.auth import GrantStore, Principal, TokenKeys, mint, parse_api_keys, parse_token_keys
from engine.contract import Tier, Unavailable
from tests.auth.test_tokens import EDDSA, key_set
from tests.gateway.live import MODEL, LiveGateway, receive, running_gateway
from tests.redis_server import RedisServer

KEY = "sk-0123456789abcdef"
TOKEN_KEYS: TokenKeys = parse_token_keys(key_set(EDDSA))
SECRETS = "/v1/realtime/client_secrets"
TICKETS = "/v1/realtime/tickets"


@pytest.fixture
async def gateway(redis_url: str) -> AsyncIterator[LiveGateway]:
    keys = parse_api_keys(f"{KEY}:acme:vip")
    async with running_gateway(redis_url, api_keys=keys, token_keys=TOKEN_KEYS) as live:
        yield live


async def make(
    gateway: LiveGateway, path: str, body: Any = None, credential: str = KEY
) -> httpx.Response:
    headers = {"authorization": f"Bearer {credential}"} if credential else {}
    return await gateway.http.post(path, json=body, headers=headers)


def offering(secret: str) -> dict[str, Any]:
    return {"subprotocols": ["realtime", f"openai-insecure-api-key.{secret}"]}


async def refusal(connecting: Any) -> int:
    with pytest.raises(InvalidStatus) as caught:
        async with connecting:
            pass
    return int(caught.value.response.status_code)


async def test_a_secret_opens_sockets_with_its_session(gateway: LiveGateway) -> None:
    session = {"type": "realtime", "instructions": "Be brief.", "max_output_tokens": 7}
    before = time.time()
    answer = await make(gateway, SECRETS, {"session": session, "expires_after": {"seconds": 60}})
    assert answer.status_code == 200, answer.text
    assert answer.headers["cache-control"] == "no-store"
    made = answer.json()
    assert set(made) == {"value", "expires_at", "session"}
    assert made["value"].startswith("ek_")
    assert int(before) + 59 <= made["expires_at"] <= time.time() + 60
    assert made["session"]["model"] == MODEL
    for _ in range(2):
        async with gateway.socket(**offering(made["value"])) as socket:
            assert socket.subprotocol == "realtime"
            assert made["value"] not in str(socket.response.headers)
            shown = (await receive(socket))["session"]
    assert (shown["instructions"], shown["max_output_tokens"]) == ("Be brief.", 7)
    async with gateway.socket(f"?session_id={shown['id']}", **offering(made["value"])) as socket:
        assert (await receive(socket))["session"]["instructions"] == "Be brief."


async def test_a_secret_is_its_makers_and_for_sockets_only(gateway: LiveGateway) -> None:
    secret = (await make(gateway, SECRETS)).json()["value"]
    # The tenant's own key opens the conversation that the secret began.
    async with gateway.socket(**offering(secret)) as socket:
        session_id = (await receive(socket))["session"]["id"]
    own = {"additional_headers": {"authorization": f"Bearer {KEY}"}}
    async with gateway.socket(f"?session_id={session_id}", **own) as socket:
        assert (await receive(socket))["session"]["id"] == session_id
    for method, path in (
        ("POST", SECRETS),
        ("POST", TICKETS),
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("GET", "/v1/sessions"),
        ("GET", "/metrics"),
    ):
        headers = {"authorization": f"Bearer {secret}"}
        answer = await gateway.http.request(method, path, headers=headers)
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] == "ephemeral_credential"


async def test_a_ticket_opens_one_socket(gateway: LiveGateway) -> None:
    made = (await make(gateway, TICKETS, {"session": {"instructions": "Hm."}})).json()
    assert made["expires_at"] <= time.time() + 30
    async with gateway.socket(f"?ticket={made['ticket']}") as socket:
        assert (await receive(socket))["session"]["instructions"] == "Hm."
    assert await refusal(gateway.socket(f"?ticket={made['ticket']}")) == 401


async def test_a_ticket_counts_once_however_many_try(gateway: LiveGateway) -> None:
    store = gateway.gateway._grants
    ticket = (await make(gateway, TICKETS)).json()["ticket"]
    found = await asyncio.gather(*(store.redeem_ticket(ticket) for _ in range(20)))
    assert len([principal for principal in found if principal is not None]) == 1


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("?ticket=tk_none", {}),
        ("?ticket=", {}),
        (f"?ticket={KEY}", {}),
        (f"?api_key={KEY}", {}),
        ("", offering("ek_none")),
        ("?ticket=tk_a&ticket=tk_b", {}),
        ("?" + "&".join(f"x{i}=" for i in range(100)) + "&ticket=tk_a", {}),
        ("?ticket=" + "t" * 5000, {}),
    ],
)
async def test_aut_06_what_is_no_ticket(
    gateway: LiveGateway, query: str, options: dict[str, Any]
) -> None:
    assert await refusal(gateway.socket(query, **options)) == 401


async def test_a_wrong_origin_does_not_use_a_ticket_up(gateway: LiveGateway) -> None:
    ticket = (await make(gateway, TICKETS)).json()["ticket"]
    evil = {"origin": "https://evil.example"}
    assert await refusal(gateway.socket(f"?ticket={ticket}", **evil)) == 403
    async with gateway.socket(f"?ticket={ticket}") as socket:
        assert (await receive(socket))["type"] == "session.created"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"x": 1}, "x"),
        ({"expires_after": {"seconds": 9}}, "expires_after.seconds"),
        ({"expires_after": {"seconds": 7201}}, "expires_after.seconds"),
        ({"expires_after": {"seconds": "60"}}, "expires_after.seconds"),
        ({"expires_after": {"anchor": "now"}}, "expires_after.anchor"),
        ({"session": {"type": "transcription"}}, "session.type"),
        ({"session": {"model": "none"}}, "model"),
        ({"session": {"max_output_tokens": 0}}, "session.max_output_tokens"),
        ({"session": {"output_modalities": ["audio"]}}, "session.output_modalities"),
        ([], None),
    ],
)
async def test_wrong_bodies_are_named(gateway: LiveGateway, body: Any, param: str | None) -> None:
    answer = await make(gateway, SECRETS, body)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] == param


async def test_without_a_key_there_are_none(gateway: LiveGateway) -> None:
    for path in (SECRETS, TICKETS):
        assert (await make(gateway, path, {}, credential="")).status_code == 401
        assert (await gateway.http.get(path)).status_code == 401


async def test_a_secret_ends_with_the_token_that_made_it(gateway: LiveGateway) -> None:
    token = mint(
        TOKEN_KEYS.signer(),
        tenant="acme",
        tier=Tier.BATCH,
        ttl_s=40,
        audience="repartee",
        issuer="repartee",
        subject="ann",
    )
    made = (await make(gateway, SECRETS, {}, credential=token)).json()
    assert made["expires_at"] <= time.time() + 40
    principal = await gateway.gateway._grants.find_secret(made["value"])
    assert principal is not None
    assert (principal.tenant, principal.tier, principal.subject) == ("acme", Tier.BATCH, "ann")
    assert principal.expires_at is not None


async def test_only_hashes_are_stored_and_for_a_while(redis_url: str) -> None:
    store = GrantStore(redis_url)
    redis = Redis.from_url(redis_url, protocol=2)
    principal = Principal("acme", Tier.VIP)
    try:
        values = [
            (await store.make_secret(principal, 60)).value,
            (await store.make_ticket(principal)).value,
        ]
        keys = [key async for key in redis.scan_iter("rp:*")]
        assert len(keys) == 2
        for key in keys:
            assert 0 < await redis.ttl(key) <= 60
            stored = key + (await redis.get(key) or b"")
            assert not any(value.encode() in stored for value in values)
        await redis.delete(*keys)
        assert await store.find_secret(values[0]) is None
    finally:
        await store.close()
        await redis.aclose()


async def test_without_keys_secrets_and_tickets_mean_the_same(redis_url: str) -> None:
    async with running_gateway(redis_url) as gateway:
        secret = (await make(gateway, SECRETS, credential="")).json()["value"]
        async with gateway.socket(**offering(secret)) as socket:
            assert (await receive(socket))["type"] == "session.created"
        assert await refusal(gateway.socket(**offering("ek_none"))) == 401
        assert await refusal(gateway.socket("?ticket=tk_none")) == 401


async def test_without_redis_nobody_new_is_taken_for_somebody(
    forgetful_redis: RedisServer,
) -> None:
    store = GrantStore(forgetful_redis.url)
    forgetful_redis.kill()
    try:
        with pytest.raises(Unavailable):
            await store.find_secret("ek_x")
        with pytest.raises(Unavailable):
            await store.redeem_ticket("tk_x")
    finally:
        await store.close()
