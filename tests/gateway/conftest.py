"""A gateway on a real port, with a real Redis and a worker around a fake engine."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.gateway.live import LiveGateway, running_gateway


@pytest.fixture
async def gateway(redis_url: str) -> AsyncIterator[LiveGateway]:
    """A gateway that lets anyone in."""
    async with running_gateway(redis_url) as live:
        yield live
