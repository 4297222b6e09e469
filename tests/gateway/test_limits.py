"""Limits as callers meet them: headers, 429, events, and conversations left unharmed."""

from __future__ import annotations

import asyncio
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis
from websockets.exceptions import InvalidStatus

from app.auth import Allowance, parse_api_keys
from app.gateway.throttle import TenantThrottles
from app.limits import NO_LIMITS, LimitPolicy, parse_limits
from app.watched_file import WatchedFile
from tests.fakes.engine import FakeEngine
from tests.gateway.live import LiveGateway, receive, receive_until, running_gateway, script
from tests.redis_server import RedisServer
from tests.spine import running_worker, until

KEY = "sk-0123456789abcdef"
HEADERS = {"authorization": f"Bearer {KEY}"}
RATE_HEADERS = {
    f"x-ratelimit-{what}-{name}"
    for what in ("limit", "remaining", "reset")
    for name in ("requests", "tokens")
}
NAME = "rp:limit:{acme}:standard"


def limited(redis_url: str, worker: bool = True, **allowance: int) -> Any:
    """A gateway with one tenant, `acme`, and its limits."""
    return running_gateway(
        redis_url,
        worker=worker,
        api_keys=parse_api_keys(f"{KEY}:acme\n{KEY}2:other"),
        limits=LimitPolicy(NO_LIMITS, tenants={"acme": Allowance(**allowance)}),
    )


async def chat(gateway: LiveGateway, content: str = "hi", **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": content}], **fields}
    return await gateway.http.post("/v1/chat/completions", json=body, headers=HEADERS)


def create(text: str) -> list[str]:
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    first = {"type": "conversation.item.create", "item": item}
    return [json.dumps(first), '{"type":"response.create","event_id":"mine"}']


async def forget_requests(gateway: LiveGateway, redis_url: str) -> None:
    """Let a minute have passed, as far as requests go."""
    async with Redis.from_url(redis_url) as redis:
        await redis.delete(f"{NAME}:req")
    gateway.gateway.responses.limiter._closed.clear()


async def test_every_answer_says_where_the_caller_stands(redis_url: str) -> None:
    async with limited(redis_url, requests_per_min=10, tokens_per_min=100_000) as gateway:
        first = await chat(gateway, max_tokens=5)
        assert first.status_code == 200
        assert set(first.headers) >= RATE_HEADERS
        assert first.headers["x-ratelimit-limit-requests"] == "10"
        assert first.headers["x-ratelimit-remaining-requests"] == "9"
        assert first.headers["x-ratelimit-reset-requests"].endswith("s")
        streamed = await chat(gateway, stream=True)
        assert streamed.headers["x-ratelimit-remaining-requests"] == "8"
        # A bad request is a request.
        bad = await chat(gateway, temperature=9)
        assert bad.status_code == 400
        assert bad.headers["x-ratelimit-remaining-requests"] == "7"
        failed = await chat(gateway, script(fail_after=0))
        assert failed.status_code == 500
        assert failed.headers["x-ratelimit-remaining-requests"] == "6"
        listed = await gateway.http.get("/v1/models", headers=HEADERS)
        assert not set(listed.headers) & RATE_HEADERS
        page = {**HEADERS, "origin": "http://localhost:3000"}
        answer = await gateway.http.post("/v1/chat/completions", content=b"{", headers=page)
        exposed = answer.headers["access-control-expose-headers"]
        assert RATE_HEADERS | {"retry-after-ms"} <= set(exposed.split(", "))


async def test_the_responses_api_counts_likewise(redis_url: str) -> None:
    async with limited(redis_url, requests_per_min=3, concurrent_responses=2) as gateway:
        for given, status, left in (("hi", 200, "2"), (7, 400, "1"), ("hi", 200, "0")):
            body = {"input": given}
            answer = await gateway.http.post("/v1/responses", json=body, headers=HEADERS)
            assert answer.status_code == status, answer.text
            assert answer.headers["x-ratelimit-remaining-requests"] == left
        refused = await gateway.http.post("/v1/responses", json={"input": "hi"}, headers=HEADERS)
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        await gateway.settled()


async def test_the_real_use_is_what_counts_in_the_end(redis_url: str) -> None:
    async with limited(redis_url, tokens_per_min=10_000) as gateway:
        started = time.monotonic()
        answer = await chat(gateway, script(num_tokens=20), max_tokens=5000)
        assert int(answer.headers["x-ratelimit-remaining-tokens"]) < 5000
        used = answer.json()["usage"]["total_tokens"]
        await gateway.settled()
        again = await chat(gateway, script(num_tokens=20), max_tokens=1)
        left = int(again.headers["x-ratelimit-remaining-tokens"])
        refilled = (time.monotonic() - started) * 10_000 / 60
        assert 10_000 - 2 * used - 100 < left <= 10_000 - used + refilled
        await gateway.settled()


@pytest.mark.parametrize("fault", ["cancel", "fail", "refuse", "leave"])
async def test_whatever_the_end_nothing_stays_taken(redis_url: str, fault: str) -> None:
    refuse = {"class": "Overloaded", "message": "full", "retry_after_ms": 5}
    texts = {"fail": script(fail_after=2), "refuse": script(refuse=refuse)}
    limits = {"tokens_per_min": 100_000, "concurrent_responses": 1}
    async with limited(redis_url, **limits) as gateway, Redis.from_url(redis_url) as redis:
        if fault == "leave":
            with pytest.raises(httpx.ReadTimeout):
                await gateway.http.post(
                    "/v1/chat/completions",
                    json={"messages": [{"role": "user", "content": script(stall_after=1)}]},
                    headers=HEADERS,
                    timeout=0.3,
                )
        elif fault == "cancel":
            options = {"additional_headers": HEADERS}
            async with gateway.socket(**options) as socket:
                for frame in (*create(script(stall_after=2)), '{"type":"response.cancel"}'):
                    await socket.send(frame)
                await receive_until(socket, "response.done")
        else:
            assert (await chat(gateway, texts[fault])).status_code >= 429
        await gateway.settled()

        async def none_held() -> bool:
            return not await redis.zcard(f"{NAME}:run")

        await until(none_held)
        answer = await chat(gateway, max_tokens=5)
        assert answer.status_code == 200
        assert int(answer.headers["x-ratelimit-remaining-tokens"]) > 99_000
        await gateway.settled()


async def test_too_many_requests_are_429_before_the_body_is_read(redis_url: str) -> None:
    async with limited(redis_url, requests_per_min=2) as gateway:
        for _ in range(2):
            assert (await chat(gateway)).status_code == 200
        refused = await chat(gateway)
        assert refused.status_code == 429
        error = refused.json()["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        wait_ms = int(refused.headers["retry-after-ms"])
        assert error["repartee.retry_after_ms"] == wait_ms
        assert 0 < wait_ms <= 30_000
        assert int(refused.headers["retry-after"]) == -(-wait_ms // 1000)
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 999\r\n"
        writer.write(f"{head}authorization: Bearer {KEY}\r\n\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 429 ")
        writer.close()
        other = {"authorization": f"Bearer {KEY}2"}
        body = {"messages": [{"role": "user", "content": "hi"}]}
        answer = await gateway.http.post("/v1/chat/completions", json=body, headers=other)
        assert answer.status_code == 200
        assert not set(answer.headers) & RATE_HEADERS
        for path in ("/v1/realtime/client_secrets", "/v1/realtime/tickets"):
            assert (await gateway.http.post(path, headers=HEADERS)).status_code == 429


async def test_a_socket_hears_of_limits_and_lives_on(redis_url: str) -> None:
    options = {"additional_headers": HEADERS}
    async with limited(redis_url, requests_per_min=2, tokens_per_min=50_000) as gateway:
        async with gateway.socket(**options) as socket:
            session_id = (await receive(socket))["session"]["id"]
            for left in (1, 0):
                for frame in (create("hi")[0], '{"type":"response.create"}'):
                    await socket.send(frame)
                events = await receive_until(socket, "response.done")
                kinds = [event["type"] for event in events]
                at = kinds.index("response.created")
                assert kinds[at + 1] == "rate_limits.updated"
                assert kinds.count("rate_limits.updated") == 1
                requests, tokens = events[at + 1]["rate_limits"]
                assert set(requests) == {"name", "limit", "remaining", "reset_seconds"}
                assert (requests["name"], requests["limit"], requests["remaining"]) == (
                    "requests",
                    2,
                    left,
                )
                assert (tokens["name"], tokens["limit"]) == ("tokens", 50_000)
            for frame in create("hi"):
                await socket.send(frame)
            error = (await receive_until(socket, "error"))[-1]["error"]
            assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
            assert error["event_id"] == "mine"
            assert 0 < error["repartee.retry_after_ms"] <= 30_000
            await forget_requests(gateway, redis_url)
            await socket.send('{"type":"response.create"}')
            assert (await receive_until(socket, "response.done"))[-1]["response"][
                "status"
            ] == "completed"
        async with gateway.socket(f"?session_id={session_id}", **options) as socket:
            assert len((await receive(socket))["repartee.items"]) == 6


async def test_answers_and_sockets_at_once(redis_url: str) -> None:
    options = {"additional_headers": HEADERS}
    async with limited(redis_url, concurrent_responses=1, connections=2) as gateway:
        async with gateway.socket(**options) as first, gateway.socket(**options) as second:
            for frame in create(script(stall_after=2)):
                await first.send(frame)
            await receive_until(first, "response.output_text.delta")
            for frame in create("hi"):
                await second.send(frame)
            error = (await receive_until(second, "error"))[-1]["error"]
            assert error["code"] == "rate_limit_exceeded"
            assert (await chat(gateway)).status_code == 429
            with pytest.raises(InvalidStatus) as caught:
                async with gateway.socket(**options):
                    pass
            response = caught.value.response
            assert response.status_code == 429
            assert json.loads(response.body)["error"]["code"] == "rate_limit_exceeded"
            assert response.headers["retry-after"] == "1"
            await first.send('{"type":"response.cancel"}')
            await receive_until(first, "response.done")
            await until(lambda: gateway.gateway.responses.num_running == 0)
            await second.send('{"type":"response.create"}')
            await receive_until(second, "response.done")

        async def opens() -> bool:
            try:
                async with gateway.socket(**options) as third:
                    return bool((await receive(third))["type"] == "session.created")
            except InvalidStatus:
                return False

        await until(opens)


async def test_what_a_gateway_leaves_behind_ends_with_the_answer(redis_url: str) -> None:
    options = {"additional_headers": HEADERS}
    limits = {"concurrent_responses": 1, "tokens_per_min": 100_000}
    engine = FakeEngine()
    async with running_worker(redis_url, engine):
        async with limited(redis_url, worker=False, **limits) as first:
            await until(first.gateway.responses.engine.ready)
            async with first.socket(**options) as socket:
                session_id = (await receive(socket))["session"]["id"]
                for frame in create(script(stall_after=2)):
                    await socket.send(frame)
                await receive_until(socket, "response.output_text.delta")
        async with limited(redis_url, worker=False, **limits) as second:
            await until(second.gateway.responses.engine.ready)
            assert (await chat(second)).status_code == 429
            async with second.socket(f"?session_id={session_id}", **options) as socket:
                await receive_until(socket, "repartee.response.resumed")
                await socket.send('{"type":"response.cancel"}')
                await receive_until(socket, "response.done")
            await until(lambda: second.gateway.responses.num_running == 0)
            answer = await chat(second, max_tokens=5)
            assert answer.status_code == 200
            assert int(answer.headers["x-ratelimit-remaining-tokens"]) > 99_000


async def test_a_changed_file_counts_at_once(redis_url: str, tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text("[default]\nrequests_per_min = 1\n")
    read = partial(parse_limits, base=NO_LIMITS)
    file = WatchedFile(path, read, "--limits-file")
    keys = parse_api_keys(f"{KEY}:acme")
    async with running_gateway(redis_url, api_keys=keys, limits_file=file) as gateway:
        assert (await chat(gateway)).status_code == 200
        assert (await chat(gateway)).status_code == 429
        path.write_text("[default]\nrequests_per_min = -1\n")
        assert not await file.refresh()
        assert (await chat(gateway)).status_code == 429
        path.write_text("[default]\nrequests_per_min = 1\n[tenants.acme]\nrequests_per_min = 600\n")
        assert await file.refresh()
        # The budget was used up as far as one in a minute goes, which is all of it.
        await forget_requests(gateway, redis_url)
        answer = await chat(gateway)
        assert (answer.status_code, answer.headers["x-ratelimit-limit-requests"]) == (200, "600")


async def test_without_keys_there_are_no_limits(gateway: LiveGateway) -> None:
    for _ in range(3):
        answer = await gateway.chat()
        assert answer.status_code == 200
        assert not set(answer.headers) & RATE_HEADERS


async def test_with_keys_people_do_not_notice(redis_url: str) -> None:
    async with running_gateway(redis_url, api_keys=parse_api_keys(KEY)) as gateway:
        answers = await asyncio.gather(*(chat(gateway) for _ in range(50)))
        assert {answer.status_code for answer in answers} == {200}
        assert int(answers[0].headers["x-ratelimit-limit-requests"]) >= 1000


async def test_open_sockets_outlive_redis_and_its_limits(own_redis: RedisServer) -> None:
    async with (
        limited(own_redis.url, requests_per_min=5, connections=3) as gateway,
        gateway.socket(additional_headers=HEADERS) as socket,
    ):
        await receive(socket)
        own_redis.kill()
        await socket.send('{"type":"response.create","event_id":"e"}')
        error = (await receive(socket, 30))["error"]
        assert error["type"] == "server_error"
        assert error["code"] != "rate_limit_exceeded"
        own_redis.start()
        await until(lambda: gateway.gateway.responses.engine.ready(), 20)
        await socket.send('{"type":"repartee.ping"}')
        assert (await receive_until(socket, "repartee.pong"))[-1]["type"] == "repartee.pong"


def test_a_tenant_s_sockets_share_a_throttle() -> None:
    throttles = TenantThrottles(100)
    first = throttles.of("a")
    assert throttles.of("a") is first
    assert throttles.of("b") is not first


async def test_many_sockets_of_a_tenant_are_slowed_down_together(redis_url: str) -> None:
    settings = {"max_events_per_s": 1e6, "max_tenant_events_per_s": 50.0}
    async with running_gateway(redis_url, **settings) as gateway:
        sockets = [await gateway.socket() for _ in range(4)]
        for socket in sockets:
            await receive(socket)
            for _ in range(40):
                await socket.send('{"type":"repartee.ping"}')
        loop = asyncio.get_running_loop()
        start = loop.time()
        for socket in sockets:
            for _ in range(40):
                assert (await receive(socket))["type"] == "repartee.pong"
        # 160 events, of which a burst of 100 goes at once and the rest at 50 a second.
        assert loop.time() - start > 0.5
        for socket in sockets:
            await socket.close()
