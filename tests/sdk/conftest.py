"""The gateway that the SDK talks to, and the SDK's clients for it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from openai import AsyncOpenAI

from tests.gateway.live import LiveGateway, running_gateway


@pytest.fixture
async def gateway(redis_url: str) -> AsyncIterator[LiveGateway]:
    """A gateway that lets anyone in."""
    async with running_gateway(redis_url) as live:
        yield live


@pytest.fixture
async def client(gateway: LiveGateway) -> AsyncIterator[AsyncOpenAI]:
    """The SDK as it comes, pointed at the gateway."""
    async with AsyncOpenAI(
        base_url=f"{gateway.url}/v1", api_key="any", max_retries=0, timeout=20
    ) as client:
        yield client
