"""The unmodified OpenAI SDK: client secrets, and retries after a 429."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
from openai import AsyncOpenAI, RateLimitError
from redis.asyncio import Redis

from app.auth import Allowance, parse_api_keys
from app.limits import NO_LIMITS, LimitPolicy
from tests.gateway.live import MODEL, LiveGateway, running_gateway

KEY = "sk-0123456789abcdef"
MINUTE_MS = 60_000


@pytest.fixture
async def gateway(redis_url: str) -> AsyncIterator[LiveGateway]:
    """One tenant with 600 requests a minute: one comes back every 100 ms."""
    limits = LimitPolicy(NO_LIMITS, default=Allowance(requests_per_min=600))
    keys = parse_api_keys(f"{KEY}:acme")
    async with running_gateway(redis_url, api_keys=keys, limits=limits) as live:
        yield live


def client_of(gateway: LiveGateway, key: str, max_retries: int = 0) -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key=key, max_retries=max_retries, timeout=20
    )


async def use_up(redis_url: str, wait_ms: int) -> None:
    """Let the next request be possible in `wait_ms`."""
    async with Redis.from_url(redis_url) as redis:
        seconds, micros = await redis.time()
        whole_at = seconds * 1000 + micros / 1000 + MINUTE_MS - MINUTE_MS / 600 + wait_ms
        await redis.set("rp:limit:{acme}:standard:req", f"{whole_at:.3f}")


async def test_a_client_secret_opens_the_realtime_api(gateway: LiveGateway) -> None:
    async with client_of(gateway, KEY) as client:
        made = await client.realtime.client_secrets.create(
            expires_after={"anchor": "created_at", "seconds": 30},
            session={"type": "realtime", "instructions": "Be brief."},
        )
    assert made.value.startswith("ek_")
    assert time.time() < made.expires_at <= time.time() + 30
    assert made.session.type == "realtime"
    assert made.session.instructions == "Be brief."
    async with client_of(gateway, made.value) as browser:
        async with browser.realtime.connect(model=MODEL) as connection:
            created = await connection.recv()
            assert created.type == "session.created"
            assert created.session.instructions == "Be brief."
            await connection.conversation.item.create(
                item={
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": "hi"}],
                }
            )
            await connection.response.create()
            kinds = []
            async for event in connection:
                kinds.append(event.type)
                if event.type == "rate_limits.updated":
                    (limit,) = event.rate_limits
                    assert (limit.name, limit.limit) == ("requests", 600)
                if event.type == "response.done":
                    break
        assert kinds.index("rate_limits.updated") == kinds.index("response.created") + 1


async def test_the_sdk_waits_as_long_as_it_is_told(gateway: LiveGateway, redis_url: str) -> None:
    # Left to itself it would try again within half a second, and be refused again.
    await use_up(redis_url, 1500)
    async with client_of(gateway, KEY, max_retries=1) as client:
        answer = await client.chat.completions.with_raw_response.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}]
        )
    assert answer.retries_taken == 1
    assert answer.headers["x-ratelimit-limit-requests"] == "600"


async def test_without_retries_it_is_a_rate_limit_error(
    gateway: LiveGateway, redis_url: str
) -> None:
    await use_up(redis_url, 30_000)
    async with client_of(gateway, KEY) as client:
        with pytest.raises(RateLimitError) as caught:
            await client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "hi"}]
            )
    assert caught.value.code == "rate_limit_exceeded"
    assert 0 < int(caught.value.response.headers["retry-after-ms"]) <= 30_000
