"""Conversations, on the installed Redis and on the oldest supported one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import orjson
import pytest
import redis as redis_module

from app.sessions import Item, SessionStore, TurnBound, keys
from engine.contract import (
    Accepted,
    Conflict,
    Delta,
    EngineFault,
    Event,
    Failed,
    Finished,
    FinishReason,
    InvalidRequest,
    NotFound,
    Unavailable,
    Usage,
)
from engine.contract import keys as shared_keys

STOP = FinishReason.STOP
SETTINGS = {"model": "m", "instructions": "Be brief."}


@pytest.fixture
async def store(any_redis_url: str) -> AsyncIterator[SessionStore]:
    store = SessionStore(any_redis_url)
    await store.create("s1", SETTINGS, tenant="t1")
    yield store
    await store.close()


@pytest.fixture
def outside(any_redis_url: str) -> redis_module.Redis:
    client = redis_module.Redis.from_url(any_redis_url, protocol=2, decode_responses=True)
    yield client
    client.close()


def user(item_id: str, text: str = "hi") -> Item:
    return Item(item_id, "user", text)


async def ids(store: SessionStore, session_id: str = "s1") -> list[str]:
    return [item.item_id for item in (await store.load(session_id)).items]


def write_log(outside: redis_module.Redis, response_id: str, events: list[Event]) -> None:
    for event in events:
        outside.xadd(
            shared_keys.log(response_id),
            {"e": orjson.dumps(event.to_wire())},
            id=shared_keys.log_entry_id(event.epoch, event.seq),
        )
    outside.expire(shared_keys.log(response_id), 60)


async def test_a_new_session_has_what_it_was_given(store: SessionStore) -> None:
    session = await store.load("s1", tenant="t1")
    assert (session.tenant, session.settings, session.items) == ("t1", SETTINGS, ())
    assert session.version == 1 and session.active is None


async def test_creating_twice_is_the_same_session_or_a_conflict(store: SessionStore) -> None:
    again = await store.create("s1", SETTINGS, tenant="t1")
    assert again.version == 1
    with pytest.raises(Conflict) as caught:
        await store.create("s1", {"model": "other"}, tenant="t1")
    assert caught.value.code == "session_exists"


async def test_another_tenants_session_does_not_exist(store: SessionStore) -> None:
    with pytest.raises(NotFound):
        await store.load("s1", tenant="t2")
    with pytest.raises(NotFound):
        await store.load("nowhere")


async def test_items_keep_their_places(store: SessionStore) -> None:
    first = await store.items.add("s1", user("a"))
    assert (first.previous_item_id, first.created, first.version) == (None, True, 2)
    assert (await store.items.add("s1", user("b"))).previous_item_id == "a"
    assert (await store.items.add("s1", user("c"), after="a")).previous_item_id == "a"
    assert (await store.items.add("s1", user("d"), after="root")).previous_item_id is None
    assert await ids(store) == ["d", "a", "c", "b"]
    with pytest.raises(NotFound) as caught:
        await store.items.add("s1", user("e"), after="zzz")
    assert caught.value.param == "previous_item_id"


async def test_a_send_repeated_makes_one_item(store: SessionStore) -> None:
    await store.items.add("s1", user("a"))
    first = await store.items.add("s1", user("b", "text"), event_id="ev1")
    again = await store.items.add("s1", user("x", "text"), event_id="ev1")
    assert again.item_id == "b" and not again.created
    assert again.previous_item_id == first.previous_item_id == "a"
    reused = await store.items.add("s1", user("c", "another text"), event_id="ev1")
    assert reused.item_id == "c" and reused.created
    await store.items.delete("s1", "c")
    by_id = await store.items.add("s1", user("b", "text"))
    assert by_id.item_id == "b" and not by_id.created
    with pytest.raises(InvalidRequest) as caught:
        await store.items.add("s1", user("b", "other text"))
    assert caught.value.code == "item_id_taken"
    assert await ids(store) == ["a", "b"]


async def test_remembered_sends_are_bounded(
    store: SessionStore, outside: redis_module.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "MAX_SENDS", 5)
    for number in range(12):
        await store.items.add("s1", user(f"i{number}"), event_id=f"e{number}")
    *_, sends, ring = keys.of("s1")
    assert set(outside.hkeys(sends)) == {f"e{n}" for n in range(7, 12)}
    assert outside.llen(ring) == 5


async def test_a_full_conversation_says_so(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "MAX_ITEMS", 2)
    await store.items.add("s1", user("a"))
    await store.items.add("s1", user("b"))
    with pytest.raises(InvalidRequest, match="at most 2 items"):
        await store.items.add("s1", user("c"))
    monkeypatch.setattr(keys, "MAX_ITEMS", 100)
    monkeypatch.setattr(keys, "MAX_ITEM_BYTES", 1000)
    with pytest.raises(InvalidRequest, match="at most 1000 bytes"):
        await store.items.add("s1", user("c", "x" * 1000))
    await store.items.delete("s1", "a")
    await store.items.add("s1", user("c", "x" * 500))
    assert await ids(store) == ["b", "c"]


async def test_bytes_are_counted_exactly(store: SessionStore, outside: redis_module.Redis) -> None:
    await store.items.add("s1", user("a", "é" * 50))
    await store.items.add("s1", Item("b", "assistant", "0123456789"))
    await store.items.truncate("s1", "b", 4)
    await store.running.begin("s1", "r1", item_id="c", deadline_at=time.time() + 60)
    await store.running.finish("s1", "r1", Item("c", "assistant", "done"))
    await store.items.delete("s1", "a")
    meta, _, items, *_ = keys.of("s1")
    assert int(outside.hget(meta, "bytes")) == sum(
        len(body.encode()) for body in outside.hvals(items)
    )


async def test_items_are_read_cut_and_deleted(store: SessionStore) -> None:
    await store.items.add("s1", Item("a", "assistant", "héllo"))
    assert (await store.items.get("s1", "a")).text == "héllo"
    assert (await store.items.truncate("s1", "a", 2))[0].text == "hé"
    assert (await store.items.get("s1", "a")).status == "incomplete"
    await store.items.add("s1", user("b"))
    with pytest.raises(InvalidRequest):
        await store.items.truncate("s1", "b", 0)
    await store.items.delete("s1", "a")
    for action in (store.items.get, store.items.delete):
        with pytest.raises(NotFound):
            await action("s1", "a")
    with pytest.raises(NotFound):
        await store.items.get("s2", "a")


async def test_settings_change_only_from_the_version_seen(store: SessionStore) -> None:
    version = (await store.load("s1")).version
    changed = await store.update_settings("s1", {"model": "n"}, expected_version=version)
    assert changed == version + 1
    with pytest.raises(Conflict) as caught:
        await store.update_settings("s1", {"model": "o"}, expected_version=version)
    assert caught.value.code == "version_conflict"
    assert (await store.load("s1")).settings == {"model": "n"}


async def test_of_many_concurrent_adds_none_is_lost(store: SessionStore) -> None:
    await asyncio.gather(*(store.items.add("s1", user(f"i{n}")) for n in range(100)))
    session = await store.load("s1")
    assert {item.item_id for item in session.items} == {f"i{n}" for n in range(100)}
    assert session.version == 101


async def test_nothing_begins_without_the_item_that_it_is_to_answer(store: SessionStore) -> None:
    await store.items.add("s1", user("a"))
    until = time.time() + 60
    with pytest.raises(NotFound, match="is no item") as refused:
        await store.running.begin("s1", "r1", item_id="x", deadline_at=until, answers="b")
    assert refused.value.param == "repartee.answers"
    assert await store.running.active("s1") is None
    begun = await store.running.begin("s1", "r1", item_id="x", deadline_at=until, answers="a")
    assert begun.previous_item_id == "a"


async def test_turns_are_read_with_the_beginning_as_far_as_they_may(store: SessionStore) -> None:
    await store.items.add("s1", user("a", "one"))
    await store.items.add("s1", user("b", "two" * 1000))
    until = time.time() + 60
    bounds = [(TurnBound(3500, 200), ["a", "b"]), (TurnBound(2000, 200), None)]
    for number, (bound, read) in enumerate(bounds):
        begun = await store.running.begin(
            "s1", f"r{number}", item_id=f"x{number}", deadline_at=until, turns=bound
        )
        again = await store.running.begin(
            "s1", f"r{number}", item_id=f"x{number}", deadline_at=until, turns=bound
        )
        assert begun == again
        turns = begun.turns
        assert turns == await store.turns("s1", bound)
        assert (turns.num_items, turns.num_bytes > 3000) == (2, True)
        assert (turns.items and [item.item_id for item in turns.items]) == read
        await store.running.finish("s1", f"r{number}", None)
    await store.create("empty", {}, tenant="t")
    nothing = await store.turns("empty", TurnBound(0, 0))
    assert (nothing.num_items, nothing.items) == (0, ())
    with pytest.raises(NotFound):
        await store.turns("nowhere", TurnBound(0, 0))


async def test_one_response_runs_at_a_time(store: SessionStore) -> None:
    await store.items.add("s1", user("a"))
    until = time.time() + 60
    for _ in range(2):
        begun = await store.running.begin("s1", "r1", item_id="x", deadline_at=until)
        assert begun.previous_item_id == "a"
    with pytest.raises(Conflict, match="r1"):
        await store.running.begin("s1", "r2", item_id="y", deadline_at=until)
    active = await store.running.active("s1")
    assert active is not None and (active.response_id, active.item_id) == ("r1", "x")
    await store.items.add("s1", user("b"))
    assert await store.running.finish("s1", "r1", Item("x", "assistant", "answer"))
    assert not await store.running.finish("s1", "r1", Item("x", "assistant", "again"))
    assert await ids(store) == ["a", "x", "b"]
    assert (await store.items.get("s1", "x")).response_id == "r1"
    await store.running.begin("s1", "r2", item_id="y", deadline_at=until)
    assert await store.running.finish("s1", "r2", None)
    assert await ids(store) == ["a", "x", "b"]


async def test_only_one_of_many_begins_wins(store: SessionStore) -> None:
    results = await asyncio.gather(
        *(
            store.running.begin("s1", f"r{n}", item_id=f"x{n}", deadline_at=time.time() + 60)
            for n in range(20)
        ),
        return_exceptions=True,
    )
    assert sum(not isinstance(result, Exception) for result in results) == 1
    assert sum(isinstance(result, Conflict) for result in results) == 19


async def test_a_response_past_its_deadline_blocks_nobody(store: SessionStore) -> None:
    past = time.time() - keys.DEADLINE_GRACE_S - 1
    await store.running.begin("s1", "r1", item_id="x", deadline_at=past)
    await store.running.begin("s1", "r2", item_id="y", deadline_at=time.time() + 60)
    active = await store.running.active("s1")
    assert active is not None and active.response_id == "r2"


@pytest.mark.parametrize(
    ("end", "status", "reason"),
    [
        (Finished("r1", 1, 3, FinishReason.STOP, Usage(3, 4)), "completed", None),
        (Finished("r1", 1, 3, FinishReason.LENGTH, Usage(3, 4)), "incomplete", "length"),
        (Finished("r1", 1, 3, FinishReason.CANCELLED, Usage(3, 4)), "incomplete", "cancelled"),
        (Failed("r1", 2, 3, EngineFault("broken")), "incomplete", "failed"),
    ],
)
async def test_an_answer_that_no_gateway_stored_is_written_from_its_log(
    store: SessionStore, outside: redis_module.Redis, end: Event, status: str, reason: str | None
) -> None:
    await store.items.add("s1", user("a"))
    await store.running.begin("s1", "r1", item_id="x", deadline_at=time.time() + 60)
    events = [Accepted("r1", 1, 0, 3), Delta("r1", 1, 1, "Hel", 1), Delta("r1", 1, 2, "lo", 3)]
    write_log(outside, "r1", events)
    assert (await store.load("s1")).active is not None
    write_log(outside, "r1", [end])
    session = await store.load("s1")
    assert session.active is None
    assert [(i.item_id, i.text, i.status, i.reason) for i in session.items] == [
        ("a", "hi", "completed", None),
        ("x", "Hello", status, reason),
    ]


async def test_a_new_response_may_begin_once_the_old_ones_log_has_ended(
    store: SessionStore, outside: redis_module.Redis
) -> None:
    await store.running.begin("s1", "r1", item_id="x", deadline_at=time.time() + 60)
    write_log(outside, "r1", [Failed("r1", 1, 0, Unavailable("gone"))])
    await store.running.begin("s1", "r2", item_id="y", deadline_at=time.time() + 60)
    assert await ids(store) == []


async def test_every_key_has_a_lifetime_that_use_renews(
    store: SessionStore, outside: redis_module.Redis
) -> None:
    await store.items.add("s1", user("a"), event_id="e")
    await store.running.begin("s1", "r1", item_id="x", deadline_at=time.time() + 60)
    names = keys.of("s1")
    assert sorted(outside.keys("*")) == sorted([*names, keys.listed("t1")])
    assert 0 < outside.ttl(keys.listed("t1")) <= 2 * keys.SESSION_TTL_S
    for use in (store.load("s1"), store.keep(["s1", "nowhere"])):
        for name in names:
            assert 0 < outside.ttl(name) <= keys.SESSION_TTL_S
            outside.expire(name, 50)
        await use
        assert all(outside.ttl(name) > 50 for name in names)


async def test_a_conversation_without_items_lives_shortly(
    store: SessionStore, outside: redis_module.Redis
) -> None:
    (name,) = outside.keys("*")
    assert 0 < outside.ttl(name) <= keys.EMPTY_TTL_S
    outside.expire(name, 50)
    await store.load("s1")
    assert 50 < outside.ttl(name) <= keys.EMPTY_TTL_S
    await store.update_settings("s1", {"model": "m"})
    assert outside.ttl(name) <= keys.EMPTY_TTL_S
    outside.expire(name, 50)
    await store.keep(["s1"])
    assert 50 < outside.ttl(name) <= keys.EMPTY_TTL_S
    await store.items.add("s1", user("a"))
    assert outside.ttl(name) > keys.EMPTY_TTL_S
    await store.items.truncate_after("s1", None)
    assert outside.ttl(name) <= keys.EMPTY_TTL_S


async def test_half_a_surrogate_pair_is_refused_and_nothing_kept(store: SessionStore) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await store.items.add("s1", user("a", "x\ud83d"))
    assert caught.value.param == "item.content"
    assert await ids(store) == []


async def test_a_deleted_session_is_gone(store: SessionStore, outside: redis_module.Redis) -> None:
    await store.items.add("s1", user("a"), event_id="e")
    await store.running.begin("s1", "r1", item_id="x", deadline_at=time.time() + 60)
    write_log(outside, "r1", [Accepted("r1", 1, 0, 3)])
    await store.running.finish("s1", "r1", Item("x", "assistant", "yes"))
    await store.running.begin("s1", "r2", item_id="y", deadline_at=time.time() + 60)
    with pytest.raises(NotFound):
        await store.delete("s1", tenant="t2")
    assert await store.delete("s1", tenant="t1") == "r2"
    with pytest.raises(NotFound):
        await store.delete("s1", tenant="t1")
    assert outside.keys("*") == []
    with pytest.raises(NotFound):
        await store.items.add("s1", user("b"))
    with pytest.raises(NotFound):
        await store.running.begin("s1", "r", item_id="x", deadline_at=time.time() + 60)
    assert not await store.running.finish("s1", "r", Item("x", "assistant", "late"))


async def test_without_redis_every_call_says_unavailable(tmp_path) -> None:
    store = SessionStore(f"unix://{tmp_path}/nobody.sock")
    with pytest.raises(Unavailable) as caught:
        await store.load("s1")
    assert caught.value.code == "redis_unavailable" and caught.value.retry_after_ms
    await store.close()


async def test_a_request_repeated_after_its_answer_begins_nothing(store: SessionStore) -> None:
    deadline_at = time.time() + 60

    async def begin(number: int, event_id: str | None = "same") -> None:
        await store.running.begin(
            "s1", f"r{number}", item_id=f"x{number}", deadline_at=deadline_at, event_id=event_id
        )

    async def end(number: int, text: str | None = "answer") -> None:
        item = None if text is None else Item(f"x{number}", "assistant", text)
        assert await store.running.finish("s1", f"r{number}", item)

    await store.items.add("s1", user("a"))
    await begin(1)
    with pytest.raises(Conflict, match="r1"):
        await begin(2)
    await end(1, None)
    await begin(3)
    await end(3)
    with pytest.raises(InvalidRequest, match="answered before, by 'x3'") as refusal:
        await begin(4)
    assert (refusal.value.code, refusal.value.param) == ("duplicate_event", "event_id")
    assert await store.running.active("s1") is None
    await begin(5, "another")
    await end(5)
    await begin(6, None)
    await end(6)
    await begin(7)
    await end(7)
    await store.items.add("s1", user("b"))
    await begin(8)
    await end(8)
    assert await ids(store) == ["a", "x3", "x5", "x6", "x7", "b", "x8"]


async def test_the_running_response_is_read_without_the_items(
    store: SessionStore, outside: redis_module.Redis
) -> None:
    with pytest.raises(NotFound, match="does not exist"):
        await store.running.active("s2")
    await store.items.add("s1", user("a"))
    assert await store.running.active("s1") is None
    await store.running.begin("s1", "r1", item_id="x", deadline_at=time.time() + 60)
    for key in keys.of("s1")[1:3]:
        outside.rename(key, f"{key}:away")
    active = await store.running.active("s1")
    assert active is not None
    assert (active.response_id, active.item_id, active.previous_item_id) == ("r1", "x", "a")
    for key in keys.of("s1")[1:3]:
        outside.rename(f"{key}:away", key)
    write_log(outside, "r1", [Failed("r1", 1, 0, Unavailable("gone"))])
    assert await store.running.active("s1") is None


async def test_what_comes_after_an_item_is_taken_out(store: SessionStore) -> None:
    for name in ("a", "b", "c", "d"):
        await store.items.add("s1", user(name))
    assert (await store.items.truncate_after("s1", "b"))[0] == ["c", "d"]
    assert (await store.items.truncate_after("s1", "b"))[0] == []
    assert await ids(store) == ["a", "b"]
    with pytest.raises(NotFound) as caught:
        await store.items.truncate_after("s1", "c")
    assert caught.value.code == "item_not_found"
    assert (await store.items.add("s1", user("e"))).previous_item_id == "b"
    assert (await store.items.truncate_after("s1", None))[0] == ["a", "b", "e"]
    assert await ids(store) == []


async def test_nothing_is_taken_out_under_a_running_response(
    store: SessionStore, outside: redis_module.Redis
) -> None:
    await store.items.add("s1", user("a"))
    await store.running.begin("s1", "r1", item_id="x", deadline_at=time.time() + 60)
    with pytest.raises(Conflict) as caught:
        await store.items.truncate_after("s1", None)
    assert caught.value.code == "conversation_already_has_active_response"
    assert await ids(store) == ["a"]
    # The gateway that followed it died: its log says that it has ended.
    write_log(outside, "r1", [Delta("r1", 1, 0, "yes", 1), Finished("r1", 1, 1, STOP, Usage(1, 1))])
    assert (await store.items.truncate_after("s1", "a"))[0] == ["x"]


async def test_titles_are_made_once_and_given_at_will(store: SessionStore) -> None:
    async def title() -> str | None:
        return (await store.load("s1")).title

    assert await title() is None
    await store.items.add("s1", Item("s", "system", "Be kind."))
    assert await title() is None
    await store.items.add("s1", user("a", "  What is\nlove?  "))
    await store.items.add("s1", user("b", "And then?"))
    assert await title() == "What is love?"
    await store.items.truncate_after("s1", None)
    assert await title() is None
    await store.items.add("s1", user("c", "Another"))
    assert await title() == "Another"
    with pytest.raises(NotFound):
        await store.rename("s1", "Mine", tenant="t2")
    await store.rename("s1", "Mine", tenant="t1")
    await store.items.truncate_after("s1", None)
    assert await title() == "Mine"


async def test_a_response_that_nobody_knows_does_not_block_the_conversation(
    store: SessionStore, outside: redis_module.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gateway died between the beginning and the submit."""
    later = time.time() + 600
    await store.running.begin("s1", "r1", item_id="i1", deadline_at=later)
    assert await store.running.active("s1") is not None, "it may still be given to a worker"
    monkeypatch.setattr(keys, "SUBMIT_GRACE_S", -1.0)
    outside.hset(shared_keys.lease("r1"), "w", "w1")
    with pytest.raises(Conflict):
        await store.running.begin("s1", "r2", item_id="i2", deadline_at=later)
    outside.delete(shared_keys.lease("r1"))
    write_log(outside, "r1", [Accepted("r1", 1, 0, 3)])
    with pytest.raises(Conflict):
        await store.running.begin("s1", "r2", item_id="i2", deadline_at=later)
    outside.delete(shared_keys.log("r1"))
    await store.running.begin("s1", "r2", item_id="i2", deadline_at=later)
    assert await store.running.active("s1") is None


async def test_an_answer_keeps_its_place_when_what_it_follows_is_deleted(
    store: SessionStore,
) -> None:
    for first in (True, False):
        if not first:
            await store.items.add("s1", user("a"))
        await store.items.add("s1", user("b"))
        await store.running.begin("s1", "r1", item_id="x", deadline_at=time.time() + 60)
        await store.items.add("s1", user("c"))
        await store.items.delete("s1", "b")
        await store.running.finish("s1", "r1", Item("x", "assistant", "yes"))
        assert await ids(store) == (["x", "c"] if first else ["a", "x", "c"])
        await store.items.truncate_after("s1", None)


async def test_what_comes_beside_a_running_answer_is_told_its_place(store: SessionStore) -> None:
    await store.items.add("s1", user("a"))
    await store.running.begin("s1", "r1", item_id="x", deadline_at=time.time() + 60)
    told = [(await store.items.add("s1", user(name))).previous_item_id for name in ("b", "c")]
    assert told == ["x", "b"]
    await store.running.finish("s1", "r1", Item("x", "assistant", "yes"))
    assert await ids(store) == ["a", "x", "b", "c"]
