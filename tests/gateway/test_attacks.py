"""Callers who want more than is theirs: others' chats, more room than they were given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx
import pytest

from app.auth import Allowance, parse_api_keys
from app.limits import NO_LIMITS, LimitPolicy
from tests.gateway.live import LiveGateway, receive_until, running_gateway, script

ACME = {"authorization": "Bearer sk-0123456789abcdef"}
OTHER = {"authorization": "Bearer sk-0123456789abcdef2"}
KEYS = "sk-0123456789abcdef:acme\nsk-0123456789abcdef2:other"
LONG = script(num_tokens=2000, rate=20)


def guarded(redis_url: str, **allowance: int) -> AbstractAsyncContextManager[LiveGateway]:
    """A gateway with the tenants acme, which has these limits, and other."""
    return running_gateway(
        redis_url,
        api_keys=parse_api_keys(KEYS),
        limits=LimitPolicy(NO_LIMITS, tenants={"acme": Allowance(**allowance)}),
    )


@pytest.fixture
async def gateway(redis_url: str) -> AsyncIterator[LiveGateway]:
    """A gateway with two tenants and no limits."""
    async with guarded(redis_url) as live:
        yield live


async def background(gateway: LiveGateway, headers: dict[str, str]) -> httpx.Response:
    """A response that runs by itself."""
    body = {"input": LONG, "background": True}
    return await gateway.http.post("/v1/responses", json=body, headers=headers)


async def _look_and_leave(gateway: LiveGateway, response_id: str) -> None:
    target = f"/v1/responses/{response_id}?stream=true"
    async with gateway.http.stream("GET", target, headers=ACME) as answer:
        await anext(answer.aiter_lines())


async def _ask_for_its_state(gateway: LiveGateway, response_id: str) -> None:
    query = f"?response_id={response_id}"
    async with gateway.socket(query, additional_headers=ACME) as socket:
        await receive_until(socket, "session.created")


@pytest.mark.parametrize("trick", [_look_and_leave, _ask_for_its_state])
async def test_who_looks_at_an_answer_and_leaves_frees_no_place(
    redis_url: str, trick: Callable[[LiveGateway, str], Any]
) -> None:
    async with guarded(redis_url, concurrent_responses=1) as gateway:
        first = await background(gateway, ACME)
        assert first.status_code == 200
        for _ in range(3):
            await trick(gateway, first.json()["id"])
        await asyncio.sleep(0.1)
        assert (await background(gateway, ACME)).status_code == 429
        await gateway.http.post(f"/v1/responses/{first.json()['id']}/cancel", headers=ACME)
        await gateway.settled()
        assert (await background(gateway, ACME)).status_code == 200
