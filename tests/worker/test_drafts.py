"""Drafts in the worker: the latest of each conversation, behind every request."""

from __future__ import annotations

import json
import time

from engine.contract import Release, Warm, keys
from tests.fakes.engine import FakeEngine
from tests.redis_server import RedisServer
from tests.spine import collect, make_request, running_client, running_worker, until


def warm(conversation_id: str, draft: str, age_s: float = 0.0) -> Warm:
    return Warm(conversation_id, "repartee-fake", (), draft, "t", time.time() - age_s)


def send(server: RedisServer, *commands: Warm | Release) -> None:
    with server.client() as outside:
        for command in commands:
            outside.xadd(keys.inbox("w1"), {"c": json.dumps(command.to_wire())})


async def test_each_conversations_latest_draft_is_taken(
    redis_url: str, redis_server: RedisServer
) -> None:
    engine = FakeEngine()
    send(redis_server, *(warm(f"c{i % 20}", str(i)) for i in range(60)))
    async with running_worker(redis_url, engine, worker_id="w1"):
        await until(
            lambda: (
                {w.conversation_id for w in engine.warmed if int(w.draft) >= 40}
                >= {f"c{i}" for i in range(20)}
            )
        )


async def test_an_old_draft_and_a_closed_conversations_are_dropped(
    redis_url: str, redis_server: RedisServer
) -> None:
    engine = FakeEngine()
    send(redis_server, warm("old", "x", age_s=60.0), warm("gone", "x"), Release("gone"))
    send(redis_server, warm("c", "x"))
    async with running_worker(redis_url, engine, worker_id="w1"):
        await until(lambda: bool(engine.released) and bool(engine.warmed))
        assert [w.conversation_id for w in engine.warmed if w.conversation_id != "gone"] == ["c"]


async def test_a_draft_waits_for_a_request_that_is_tokenised(redis_url: str) -> None:
    engine = FakeEngine()
    async with running_worker(redis_url, engine), running_client(redis_url) as client:
        await until(client.ready)
        slow = "!json " + json.dumps({"text": "done", "prepare_ms": 150})
        stream = await client.submit(make_request(slow))
        await client._commands.send(stream.worker_id or "", warm("c", "typed"))
        await collect(stream)
        await until(lambda: [w.draft for w in engine.warmed] == ["typed"])
