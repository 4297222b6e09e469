"""What owners may store: counted at every change, refused before it is written."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

import pytest
import redis as redis_module

from app.sessions import Item, SessionStore, quota
from app.sessions.quota import SESSION_BYTES, StorageLimits, StorageScope, StorageUse
from app.sessions.stored import ResponseEnd, StoredResponse
from engine.contract import Failed, InvalidRequest, NotFound, Unavailable

SETTINGS = {"model": "m"}
KB = 1024


class Limits:
    """Those of a tenant `t` and of its subjects, as they stand now."""

    def __init__(self) -> None:
        self.tenant = StorageLimits()
        self.subject = StorageLimits()

    def scopes(self, owner: str) -> Sequence[StorageScope]:
        tenant, _, digest = owner.partition("/")
        scopes = [StorageScope(f"rp:stored:{{{tenant}}}", self.tenant, "tenant")]
        if digest:
            scopes.insert(
                0, StorageScope(f"rp:stored:{{{tenant}}}:{digest}", self.subject, "subject")
            )
        return [scope for scope in scopes if scope.limits != StorageLimits()]


@pytest.fixture
def limits() -> Limits:
    return Limits()


@pytest.fixture
async def store(any_redis_url: str, limits: Limits) -> AsyncIterator[SessionStore]:
    store = SessionStore(any_redis_url, scopes_of=limits.scopes)
    yield store
    await store.close()


@pytest.fixture
def outside(any_redis_url: str) -> redis_module.Redis:
    client = redis_module.Redis.from_url(any_redis_url, protocol=2, decode_responses=True)
    yield client
    client.close()


@pytest.fixture(autouse=True)
def always_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has lapsed is looked for at each refusal."""
    monkeypatch.setattr(quota, "LOOK_EVERY_S", 0.0)


def user(item_id: str, text: str = "hi") -> Item:
    return Item(item_id, "user", text, created_at=1.0)


async def used(store: SessionStore, owner: str = "t") -> tuple[int, int]:
    use = await store.quota.use(owner)
    assert use is not None
    return use.conversations, use.stored_bytes


def taken(outside: redis_module.Redis, *session_ids: str) -> int:
    """Bytes that conversations take."""
    total = 0
    for session_id in session_ids:
        meta = f"rp:ses:{{{session_id}}}"
        total += SESSION_BYTES + int(outside.hget(meta, "bytes"))
        total += len(outside.hget(meta, "settings"))
    return total


async def test_every_change_is_counted(
    store: SessionStore, limits: Limits, outside: redis_module.Redis
) -> None:
    limits.tenant = StorageLimits(100, 100 * KB)
    await store.create("s1", SETTINGS, tenant="t")
    await store.create("s1", SETTINGS, tenant="t")
    assert await used(store) == (0, taken(outside, "s1"))

    async def check(num_conversations: int = 1) -> None:
        assert await used(store) == (num_conversations, taken(outside, "s1"))

    await store.items.add("s1", user("a", "x" * 300), tenant="t")
    await check()
    await store.items.add("s1", user("a", "x" * 300), tenant="t")
    await check()
    with pytest.raises(InvalidRequest, match="taken"):
        await store.items.add("s1", user("a", "other"), tenant="t")
    await check()
    await store.update_settings("s1", {"model": "m", "instructions": "y" * 500}, tenant="t")
    await check()
    await store.running.begin("s1", "r1", item_id="b", deadline_at=time.time() + 60)
    await store.running.finish("s1", "r1", Item("b", "assistant", "z" * 700))
    await check()
    await store.items.truncate("s1", "b", 10)
    await check()
    await store.items.delete("s1", "b")
    await check()
    await store.rename("s1", "title", tenant="t")
    await store.items.truncate_after("s1", None)
    await check(0)
    await store.items.add("s1", user("c"), tenant="t")
    await store.delete("s1", tenant="t")
    assert await used(store) == (0, 0)
    assert outside.ttl("rp:stored:{t}") > 7 * 24 * 3600


async def test_bytes_are_refused_before_they_are_written(
    store: SessionStore, limits: Limits
) -> None:
    limits.tenant = StorageLimits(stored_bytes=10 * KB)
    await store.create("s1", SETTINGS, tenant="t")
    await store.items.add("s1", user("a", "x" * 6 * KB), tenant="t")
    before = await used(store)
    with pytest.raises(InvalidRequest) as refused:
        await store.items.add("s1", user("b", "x" * 6 * KB), tenant="t")
    assert refused.value.code == "storage_full"
    assert "tenant may have at most 10240 stored bytes" in refused.value.message
    assert "Delete" in refused.value.message and not refused.value.retryable
    with pytest.raises(InvalidRequest, match="stored bytes"):
        await store.update_settings("s1", {"instructions": "x" * 6 * KB}, tenant="t")
    assert [item.item_id for item in (await store.load("s1")).items] == ["a"]
    assert await used(store) == before
    # A running answer is kept, whatever there is; the next message is refused.
    await store.running.begin("s1", "r1", item_id="c", deadline_at=time.time() + 60)
    assert await store.running.finish("s1", "r1", Item("c", "assistant", "x" * 9 * KB))
    assert (await used(store))[1] > 15 * KB
    with pytest.raises(InvalidRequest, match="stored bytes"):
        await store.items.add("s1", user("d"), tenant="t")
    # Deleting makes room.
    await store.items.delete("s1", "c")
    await store.items.add("s1", user("d"), tenant="t")


async def test_conversations_count_from_their_first_message(
    store: SessionStore, limits: Limits
) -> None:
    limits.tenant = StorageLimits(conversations=2)
    for number in range(4):
        await store.create(f"s{number}", SETTINGS, tenant="t")
    for number in range(2):
        await store.items.add(f"s{number}", user("a"), tenant="t")
        await store.items.add(f"s{number}", user("b"), tenant="t")
    with pytest.raises(InvalidRequest) as refused:
        await store.items.add("s2", user("a"), tenant="t")
    assert refused.value.code == "storage_full"
    assert "at most 2 conversations, this one would be number 3" in refused.value.message
    await store.items.add("s1", user("c"), tenant="t")
    await store.delete("s0", tenant="t")
    await store.items.add("s2", user("a"), tenant="t")
    assert (await used(store))[0] == 2


async def test_a_full_owner_can_still_open_a_conversation_but_not_for_ever(
    store: SessionStore, limits: Limits
) -> None:
    """The page begins one, and shows the list in which something can be deleted."""
    limits.tenant = StorageLimits(stored_bytes=64 * KB)
    await store.create("full", SETTINGS, tenant="t")
    await store.items.add("full", user("a", "x" * 62 * KB), tenant="t")
    opened = 0
    with pytest.raises(InvalidRequest) as refused:
        while opened < 100:
            await store.create(f"s{opened}", SETTINGS, tenant="t")
            opened += 1
    assert 2 <= opened <= 5
    assert refused.value.code == "storage_full"


async def test_a_subject_and_its_tenant_are_bounded_both(
    store: SessionStore, limits: Limits, outside: redis_module.Redis
) -> None:
    limits.tenant = StorageLimits(conversations=3)
    limits.subject = StorageLimits(conversations=2)
    for subject in ("t/a", "t/b"):
        for number in range(3):
            await store.create(f"{subject}{number}", SETTINGS, tenant=subject)
    for number in range(2):
        await store.items.add(f"t/a{number}", user("a"), tenant="t/a")
    with pytest.raises(InvalidRequest, match="This subject may have at most 2 conversations"):
        await store.items.add("t/a2", user("a"), tenant="t/a")
    await store.items.add("t/b0", user("a"), tenant="t/b")
    with pytest.raises(InvalidRequest, match="This tenant may have at most 3 conversations"):
        await store.items.add("t/b1", user("a"), tenant="t/b")
    # What the tenant refuses was not taken from the subject.
    (a, a_bytes), (b, b_bytes) = [await used(store, owner) for owner in ("t/a", "t/b")]
    assert (a, b) == (2, 1)
    assert await used(store) == (3, a_bytes + b_bytes)
    assert a_bytes == taken(outside, "t/a0", "t/a1", "t/a2")
    assert await store.quota.use("t/a") == StorageUse(limits.subject, 2, a_bytes)


async def test_many_at_once_never_pass_the_limit(store: SessionStore, limits: Limits) -> None:
    limits.tenant = StorageLimits(conversations=5, stored_bytes=40 * KB)
    for number in range(12):
        await store.create(f"s{number}", SETTINGS, tenant="t")
    results = await asyncio.gather(
        *(
            store.items.add(f"s{number % 12}", user(f"i{number}", "x" * KB), tenant="t")
            for number in range(60)
        ),
        return_exceptions=True,
    )
    refused = [result for result in results if isinstance(result, InvalidRequest)]
    assert len(refused) > 20 and {error.code for error in refused} == {"storage_full"}
    count, num_bytes = await used(store)
    assert count == 5 and num_bytes <= 40 * KB


async def test_what_has_lapsed_gives_its_room_back(
    store: SessionStore,
    limits: Limits,
    outside: redis_module.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits.tenant = StorageLimits(conversations=2, stored_bytes=20 * KB)
    monkeypatch.setattr(quota, "RESERVED_S", 0)
    for number in range(2):
        await store.create(f"s{number}", SETTINGS, tenant="t")
        await store.items.add(f"s{number}", user("a", "x" * KB), tenant="t")
    outside.delete("rp:ses:{s0}", "rp:ses:{s0}:order", "rp:ses:{s0}:items")
    # A gateway that died had reserved something, and one had not noted what was cut.
    await store.quota.take("t", "s1", 9000)
    await store.create("s2", SETTINGS, tenant="t")
    await store.items.add("s2", user("a"), tenant="t")
    assert await used(store) == (2, taken(outside, "s1", "s2"))


async def test_what_is_noted_late_does_not_undo_what_came_after(
    store: SessionStore, limits: Limits
) -> None:
    limits.tenant = StorageLimits(stored_bytes=20 * KB)
    size = quota.StoredSize("t", 500, 1)
    await store.quota.note("s1", size, 7)
    await store.quota.note("s1", quota.StoredSize("t", 5000, 1), 6)
    values = await store._redis.hgetall("rp:stored:{t}")
    assert values == {b"s1": b"1524:7:1:0", b"bytes": b"1524", b"count": b"1"}


async def test_room_that_was_not_used_is_given_back(
    store: SessionStore, limits: Limits, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits.tenant = StorageLimits(stored_bytes=20 * KB)
    await store.create("s1", SETTINGS, tenant="t")
    before = await used(store)

    async def fail(*args: object, **options: object) -> None:
        raise Unavailable("Redis failed.", code="redis_unavailable")

    monkeypatch.setattr(store._writer, "offer", fail)
    with pytest.raises(Unavailable):
        await store.items.add("s1", user("a", "x" * KB), tenant="t")
    values = await store._redis.hgetall("rp:stored:{t}")
    assert int(values[b"bytes"]) == before[1]


async def test_stored_responses_count_until_they_are_deleted(
    store: SessionStore,
    limits: Limits,
    outside: redis_module.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits.tenant = StorageLimits(stored_bytes=8 * KB)

    def response(name: str, num_chars: int) -> StoredResponse:
        deadline_at = time.time() + 60
        return StoredResponse(name, "t", {"id": name}, ["x" * num_chars], "c", (), deadline_at)

    await store.responses.create(response("resp_1", 3 * KB))
    assert 3 * KB < (await used(store))[1] < 4 * KB
    lost = Unavailable("lost", code="answer_lost")
    end = ResponseEnd(Failed("resp_1", 1, 1, lost), "y" * KB, time.time())
    await store.responses.finish("resp_1", end)
    stored = outside.hgetall("rp:rsp:{resp_1}")
    assert await used(store) == (0, sum(map(len, stored.values())))
    with pytest.raises(InvalidRequest, match="stored bytes") as refused:
        await store.responses.create(response("resp_2", 4 * KB))
    assert refused.value.code == "storage_full"
    assert not outside.exists("rp:rsp:{resp_2}")
    await store.responses.delete("resp_1", "t")
    assert await used(store) == (0, 0)
    monkeypatch.setattr(quota, "RESERVED_S", 0)
    await store.responses.create(response("resp_2", 4 * KB))
    outside.delete("rp:rsp:{resp_2}")
    assert await used(store) == (0, 0)


async def test_without_limits_nothing_is_counted(
    store: SessionStore, outside: redis_module.Redis
) -> None:
    await store.create("s1", SETTINGS, tenant="t")
    await store.items.add("s1", user("a"), tenant="t")
    assert await store.quota.use("t") is None
    assert not outside.keys("rp:stored:*")


async def test_a_conversation_whose_first_item_is_refused_is_not_counted(
    store: SessionStore, limits: Limits
) -> None:
    limits.tenant = StorageLimits(conversations=1)
    for session_id in ("refused", "gone", "kept"):
        await store.create(session_id, SETTINGS, tenant="t")
    await store.delete("gone", tenant="t")
    item = Item("i", "user", "text")
    with pytest.raises(NotFound):
        await store.items.add("refused", item, tenant="t", after="nothing")
    with pytest.raises(NotFound):
        await store.items.add("gone", item, tenant="t")
    await store.items.add("kept", item, tenant="t")
    # One more that is refused in a conversation with items leaves it counted.
    with pytest.raises(NotFound):
        await store.items.add("kept", Item("j", "user", "more"), tenant="t", after="nothing")
    with pytest.raises(InvalidRequest, match="at most 1 conversations"):
        await store.items.add("refused", item, tenant="t")
