"""Signed tokens at the gateway: let in, refused, run out, renewed, taken back."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from app.auth import TokenKeys, mint, parse_api_keys, parse_token_keys
from app.auth.tokens import LEEWAY_S
from app.gateway import credential_watch
from app.gateway.realtime_socket import RealtimeSocket
from app.watched_file import WatchedFile
from engine.contract import Tier
from tests.auth.test_tokens import EDDSA, HS256, WRONG, key_set
from tests.gateway.live import LiveGateway, receive, receive_until, running_gateway, script
from tests.spine import until

KEY = "sk-0123456789abcdef"
KEYS: TokenKeys = parse_token_keys(key_set(EDDSA, HS256))


def token(kid: str = "", **changes: Any) -> str:
    fields: dict[str, Any] = {"tenant": "acme", "tier": Tier.VIP, "ttl_s": 3600}
    fields |= {"audience": "repartee", "issuer": "repartee", **changes}
    return mint(KEYS.signer(kid), **fields)


def bearing(credential: str) -> dict[str, Any]:
    return {"additional_headers": {"authorization": f"Bearer {credential}"}}


def ask(text: str) -> list[str]:
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    create = {"type": "conversation.item.create", "item": item}
    return [json.dumps(create), '{"type":"response.create"}']


def expire(gateway: LiveGateway) -> None:
    """Let the one open socket's token have run out just now."""
    (socket,) = gateway.gateway.realtime.sockets
    _expire(socket)


def _expire(socket: RealtimeSocket) -> None:
    socket.watch.principal = replace(socket.watch.principal, expires_at=time.time() - 1)
    socket.watch.start()


@pytest.fixture
async def gateway(redis_url: str) -> AsyncIterator[LiveGateway]:
    keys = parse_api_keys(f"{KEY}:acme")
    async with running_gateway(redis_url, api_keys=keys, token_keys=KEYS) as live:
        yield live


@pytest.mark.parametrize("jwk", [EDDSA, HS256], ids=["eddsa", "hs256"])
async def test_a_token_lets_in_under_its_tier(gateway: LiveGateway, jwk: dict[str, str]) -> None:
    good = token(jwk["kid"])
    headers = {"authorization": f"Bearer {good}"}
    body = {"messages": [{"role": "user", "content": "hi"}]}
    answer = await gateway.http.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200
    metrics = (await gateway.http.get("/metrics", headers=headers)).text
    assert 'repartee_requests_total{api="chat",tier="vip"} 1.0' in metrics
    async with gateway.socket(**bearing(good)) as socket:
        assert (await receive(socket))["type"] == "session.created"
    offered = ["realtime", f"openai-insecure-api-key.{good}"]
    async with gateway.socket(subprotocols=offered) as socket:
        assert socket.subprotocol == "realtime"


async def test_aut_06_all_are_refused_alike(gateway: LiveGateway) -> None:
    bodies = set()
    for name, make in WRONG.items():
        wrong = make()
        if not wrong or not wrong.isascii():
            continue
        headers = {"authorization": f"Bearer {wrong}"}
        answer = await gateway.http.get("/v1/models", headers=headers)
        assert answer.status_code == 401, name
        assert answer.headers["www-authenticate"] == "Bearer"
        bodies.add(answer.text)
        with pytest.raises(InvalidStatus) as caught:
            async with gateway.socket(**bearing(wrong)):
                pass
        # The library reads no longer line of a handshake.
        assert caught.value.response.status_code == (400 if len(wrong) > 8000 else 401), name
        if caught.value.response.status_code == 401:
            bodies.add(caught.value.response.body.decode())
    headers = {"authorization": b"Bearer " + "ünïcode".encode("latin-1")}
    bodies.add((await gateway.http.get("/v1/models", headers=headers)).text)
    assert len(bodies) == 1


async def test_a_token_of_a_megabyte_is_refused_unread(gateway: LiveGateway) -> None:
    headers = {"authorization": "Bearer " + "a" * 1_000_000}
    answer = await gateway.http.get("/v1/models", headers=headers)
    assert answer.status_code == 431
    assert answer.json()["error"]["code"] == "request_head_too_large"


async def test_aut_06_two_credentials_that_differ(gateway: LiveGateway) -> None:
    good, other = token(), token(tenant="other")
    for first, second, status in ((good, other, 401), (good, KEY, 401), (good, good, None)):
        offered = ["realtime", f"openai-insecure-api-key.{second}"]
        connecting = gateway.socket(subprotocols=offered, **bearing(first))
        if status is None:
            async with connecting as socket:
                assert (await receive(socket))["type"] == "session.created"
            continue
        with pytest.raises(InvalidStatus) as caught:
            async with connecting:
                pass
        assert caught.value.response.status_code == status


async def test_a_socket_ends_soon_after_its_token(
    gateway: LiveGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credential_watch, "EXPIRED_CLOSE_S", 0.1)
    # Within the leeway at the handshake, over by our clock.
    late = token(now=time.time() - 3600 - LEEWAY_S / 2)
    async with gateway.socket(**bearing(late)) as socket:
        assert (await receive(socket))["type"] == "session.created"
        error = (await receive(socket))["error"]
        assert (error["type"], error["code"]) == ("authentication_error", "token_expired")
        with pytest.raises(ConnectionClosed):
            await receive(socket)
        assert socket.close_code == 4401


async def test_an_answer_outlives_its_token(
    gateway: LiveGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credential_watch, "EXPIRED_CLOSE_S", 0.05)
    seen = ""
    async with gateway.socket(**bearing(token())) as socket:
        session_id = (await receive(socket))["session"]["id"]
        for frame in ask(script(num_tokens=60, rate=40)):
            await socket.send(frame)
        await receive_until(socket, "response.output_text.delta")
        expire(gateway)
        with pytest.raises(ConnectionClosed):
            await receive_until(socket, "response.done")
    assert socket.close_code == 4401
    async with gateway.socket(f"?session_id={session_id}", **bearing(token())) as socket:
        events = await receive_until(socket, "response.done")
    resumed = next(event for event in events if event["type"] == "repartee.response.resumed")
    assert resumed["state"] == "live"
    seen = resumed["text"] + "".join(
        event["delta"] for event in events if event["type"] == "response.output_text.delta"
    )
    done = events[-1]["response"]
    assert done["status"] == "completed"
    assert seen == done["output"][0]["content"][0]["text"]
    assert len(seen.split()) == 60


async def test_a_token_is_renewed_on_the_open_socket(
    gateway: LiveGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credential_watch, "EXPIRED_CLOSE_S", 0.3)
    async with gateway.socket(**bearing(token())) as socket:
        await receive(socket)
        expire(gateway)
        assert (await receive(socket))["error"]["code"] == "token_expired"
        for frame in ask("hi"):
            await socket.send(frame)
        assert [(await receive(socket))["error"]["code"] for _ in range(2)] == ["token_expired"] * 2
        await socket.send('{"type":"repartee.ping"}')
        assert (await receive(socket))["type"] == "repartee.pong"
        for wrong, code in (
            ("nonsense", "invalid_api_key"),
            (token(tenant="other"), "permission_denied"),
            (7, "invalid_type"),
            ("x" * 5000, "invalid_value"),
        ):
            await socket.send(json.dumps({"type": "repartee.token.renew", "token": wrong}))
            error = (await receive(socket))["error"]
            assert error["code"] == code
            assert str(wrong) not in error["message"]
        fresh = token(ttl_s=600, tier=Tier.BATCH)
        await socket.send(json.dumps({"type": "repartee.token.renew", "token": fresh}))
        renewed = await receive(socket)
        assert renewed["type"] == "repartee.token.renewed"
        assert time.time() + 590 < renewed["expires_at"] < time.time() + 601
        for frame in ask("hi"):
            await socket.send(frame)
        done = (await receive_until(socket, "response.done"))[-1]
        assert done["response"]["status"] == "completed"
        (open_socket,) = gateway.gateway.realtime.sockets
        assert open_socket.watch.principal.tier is Tier.BATCH
        # A key that never ends takes the clock away altogether.
        await socket.send(json.dumps({"type": "repartee.token.renew", "token": KEY}))
        assert (await receive(socket))["expires_at"] is None


async def test_keys_that_go_take_their_sockets_along(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credential_watch, "EXPIRED_CLOSE_S", 0.05)
    keys, tokens = tmp_path / "keys", tmp_path / "tokens.json"
    keys.write_text(f"{KEY}:acme\n{KEY}2:acme\n")
    tokens.write_text(key_set(EDDSA, HS256))
    settings = {
        "api_keys_file": WatchedFile(keys, parse_api_keys, "--api-keys-file"),
        "token_keys_file": WatchedFile(tokens, parse_token_keys, "--token-keys-file"),
    }
    async with running_gateway(redis_url, **settings) as gateway:
        old = token(EDDSA["kid"])
        answer = await gateway.http.post(
            "/v1/realtime/client_secrets", headers={"authorization": f"Bearer {old}"}
        )
        secret = answer.json()["value"]
        gone = [old, secret, KEY]
        stays = [KEY + "2", token(HS256["kid"])]
        sockets = []
        for credential in (*gone, *stays):
            sockets.append(await gateway.socket(**bearing(credential)))
            assert (await receive(sockets[-1]))["type"] == "session.created"
        keys.write_text(f"{KEY}2:acme\n{KEY}3:acme\n")
        tokens.write_text(key_set(HS256))
        for socket in sockets[:3]:
            assert (await receive(socket))["error"]["code"] == "token_revoked"
            with pytest.raises(ConnectionClosed):
                await receive(socket)
            assert socket.close_code == 4401
        for socket in sockets[3:]:
            await socket.send('{"type":"repartee.ping"}')
            assert (await receive(socket))["type"] == "repartee.pong"
            await socket.close()
        for credential in gone:
            with pytest.raises(InvalidStatus) as caught:
                async with gateway.socket(**bearing(credential)):
                    pass
            assert caught.value.response.status_code == 401
        known = {"authorization": f"Bearer {KEY}3"}
        assert (await gateway.http.get("/v1/models", headers=known)).status_code == 200
        await until(lambda: not gateway.gateway.realtime.sockets)
