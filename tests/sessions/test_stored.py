"""Stored responses, on the installed Redis and on the oldest supported one."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
import redis as redis_module

from app.sessions import SessionStore, stored
from app.sessions.stored import ResponseEnd, ResponseStore, StoredResponse
from engine.contract import (
    Accepted,
    Delta,
    Event,
    Failed,
    Finished,
    FinishReason,
    InvalidRequest,
    NotFound,
    Usage,
)
from engine.contract import keys as shared_keys

END = ResponseEnd(Finished("r1", 1, 3, FinishReason.STOP, Usage(3, 2)), "Hi there", 5.0, (3, 5))


@pytest.fixture
async def store(any_redis_url: str) -> AsyncIterator[ResponseStore]:
    sessions = SessionStore(any_redis_url)
    yield sessions.responses
    await sessions.close()


@pytest.fixture
def outside(any_redis_url: str) -> redis_module.Redis:
    client = redis_module.Redis.from_url(any_redis_url, protocol=2, decode_responses=True)
    yield client
    client.close()


def response(response_id: str = "r1", **changes: Any) -> StoredResponse:
    fields: dict[str, Any] = {
        "response_id": response_id,
        "tenant": "t1",
        "head": {"id": response_id, "model": "m"},
        "input": [["msg_1", "user", "hello 🐕"]],
        "chain": response_id,
        "before": (),
        "deadline_at": time.time() + 60,
    }
    return StoredResponse(**{**fields, **changes})


def write_log(outside: redis_module.Redis, events: list[Event]) -> None:
    for event in events:
        outside.xadd(
            shared_keys.log(event.request_id),
            {"e": orjson.dumps(event.to_wire())},
            id=shared_keys.log_entry_id(event.epoch, event.seq),
        )


async def test_what_is_kept_comes_back(store: ResponseStore, outside: redis_module.Redis) -> None:
    kept = response(is_warm_up=True)
    await store.create(kept)
    assert await store.load("r1", "t1") == kept
    await store.finish("r1", END)
    await store.finish("r1", ResponseEnd(END.event, "other", 6.0))
    loaded = await store.load("r1", "t1")
    assert loaded.end == END
    assert all(0 < outside.ttl(name) <= stored.RESPONSE_TTL_S for name in outside.keys("*"))
    with pytest.raises(NotFound):
        await store.load("r1", "t2")
    with pytest.raises(NotFound):
        await store.delete("r1", "t2")
    await store.delete("r1", "t1")
    await store.finish("r1", END)
    assert outside.keys("*") == []


async def test_an_end_is_told_again_as_it_came() -> None:
    deltas = [event for event in END.events("r1") if isinstance(event, Delta)]
    assert [delta.text for delta in deltas] == ["Hi ", "there"]
    told = ResponseEnd.of_events("r1", END.events("r1"), 5.0)
    assert (told.text, told.lengths, told.event) == (END.text, END.lengths, END.event)


async def test_an_end_that_nobody_wrote_comes_from_the_log(
    store: ResponseStore, outside: redis_module.Redis
) -> None:
    await store.create(response())
    write_log(outside, [Accepted("r1", 1, 0, 3), Delta("r1", 1, 1, "Hi ", 1)])
    assert (await store.load("r1", "t1")).end is None
    write_log(outside, [Delta("r1", 1, 2, "there", 1), END.event])
    end = (await store.load("r1", "t1")).end
    assert end is not None and (end.text, end.event) == (END.text, END.event)
    outside.delete(shared_keys.log("r1"))
    assert (await store.load("r1", "t1")).end == end


async def test_a_response_whose_log_is_gone_ends_with_its_time(store: ResponseStore) -> None:
    await store.create(response(deadline_at=time.time() - 5))
    assert (await store.load("r1", "t1")).end is None
    await store.create(response(deadline_at=time.time() - 60))
    end = (await store.load("r1", "t1")).end
    assert end is not None and isinstance(end.event, Failed)
    assert end.event.error.code == "answer_lost"


async def test_a_chain_is_read_in_order_and_lives_on(
    store: ResponseStore, outside: redis_module.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"r{number}" for number in range(4)]
    for number, name in enumerate(names):
        await store.create(response(name, before=tuple(names[:number]), chain="r0", end=END))
        outside.expire(f"rp:rsp:{{{name}}}", 50)
    last = await store.load("r3", "t1")
    assert [each.response_id for each in await store.chain(last)] == names
    assert all(outside.ttl(f"rp:rsp:{{{name}}}") > 50 for name in names)
    monkeypatch.setattr(stored, "MAX_CHAIN", 3)
    with pytest.raises(InvalidRequest) as caught:
        await store.chain(last)
    assert caught.value.code == "chain_too_long"
    await store.delete("r1", "t1")
    monkeypatch.setattr(stored, "MAX_CHAIN", 30)
    with pytest.raises(NotFound):
        await store.chain(last)


async def test_a_tenant_keeps_so_many(
    store: ResponseStore, outside: redis_module.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "MAX_STORED", 3)
    for number in range(5):
        await store.create(response(f"r{number}"))
        await store.trim("t1")
    await store.create(response("other", tenant="t2"))
    left = sorted(name for name in outside.keys("rp:rsp:{*"))
    assert left == ["rp:rsp:{other}", "rp:rsp:{r2}", "rp:rsp:{r3}", "rp:rsp:{r4}"]
