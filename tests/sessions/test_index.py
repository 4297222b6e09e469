"""Each tenant's list, on the installed Redis and on the oldest supported one."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis as redis_module

from app.sessions import Item, SessionStore, index, keys
from app.sessions.index import Page, Place
from engine.contract import InvalidRequest

SETTINGS = {"model": "m", "instructions": ""}


@pytest.fixture
async def store(any_redis_url: str) -> AsyncIterator[SessionStore]:
    store = SessionStore(any_redis_url)
    yield store
    await store.close()


@pytest.fixture
def outside(any_redis_url: str) -> redis_module.Redis:
    client = redis_module.Redis.from_url(any_redis_url, protocol=2, decode_responses=True)
    yield client
    client.close()


async def make(store: SessionStore, name: str, *texts: str, tenant: str = "t1") -> None:
    await store.create(name, SETTINGS, tenant=tenant)
    for number, text in enumerate(texts):
        await store.items.add(name, Item(f"{name}-{number}", "user", text))


def ids(page: Page) -> list[str]:
    return [summary.session_id for summary in page.sessions]


async def listed(store: SessionStore, query: str = "", limit: int = 10) -> list[str]:
    """All pages, from the first to the last."""
    found: list[str] = []
    after = None
    while True:
        page = await store.index.page("t1", limit=limit, after=after, query=query)
        found += ids(page)
        if page.next is None:
            return found
        after = Place.of_text(page.next.to_text(), "after")


async def test_newest_first_and_only_the_tenants_own(store: SessionStore) -> None:
    await make(store, "a", "first")
    await make(store, "b", "second", "more")
    await make(store, "c", "third", tenant="t2")
    await make(store, "empty")
    page = await store.index.page("t1", limit=10)
    assert ids(page) == ["b", "a"] and page.next is None
    assert [s.num_items for s in page.sessions] == [2, 1]
    assert [s.title for s in page.sessions] == ["second", "first"]
    assert not page.sessions[0].is_running
    await store.running.begin("a", "r1", item_id="x", deadline_at=2e9)
    assert (await store.index.page("t1", limit=10)).sessions[1].is_running
    await store.running.finish("a", "r1", None)
    assert await listed(store) == ["a", "b"]


async def test_pages_hold_each_conversation_once(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "_BATCH", 3)
    names = [f"s{number}" for number in range(10)]
    for name in names:
        await make(store, name, name)
    for limit in (1, 2, 3, 5, 10, 11):
        assert await listed(store, limit=limit) == names[::-1]
    page = await store.index.page("t1", limit=5)
    # What moves to the front meanwhile leaves no gap, and does not come twice.
    await store.index.note("t1", "s2")
    rest = await store.index.page("t1", limit=10, after=page.next)
    assert ids(rest) == ["s4", "s3", "s1", "s0"]


async def test_equal_times_keep_their_order_over_pages(
    store: SessionStore, outside: redis_module.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "_BATCH", 2)
    names = [f"s{number}" for number in range(7)]
    for name in names:
        await make(store, name, name)
        outside.zadd(keys.listed("t1"), {name: 1000.5})
    for limit in (1, 2, 3, 7):
        assert await listed(store, limit=limit) == names[::-1]


async def test_lapsed_and_deleted_conversations_leave_the_list(
    store: SessionStore, outside: redis_module.Redis
) -> None:
    for name in ("a", "b", "c"):
        await make(store, name, name)
    outside.delete(*keys.of("b"))
    await store.delete("a", tenant="t1")
    assert outside.zrange(keys.listed("t1"), 0, -1) == ["b", "c"]
    assert await listed(store) == ["c"]
    assert outside.zrange(keys.listed("t1"), 0, -1) == ["c"]


async def test_a_list_is_bounded(
    store: SessionStore, outside: redis_module.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "MAX_LISTED", 3)
    for number in range(5):
        await make(store, f"s{number}", "x")
    assert await listed(store) == ["s4", "s3", "s2"]
    assert outside.zcard(keys.listed("t1")) == 3


async def test_a_search_reads_titles_and_texts_in_any_case(store: SessionStore) -> None:
    await make(store, "a", "About cats", "They sleep near the STRASSE all day")
    await make(store, "b", "About dogs", "nothing of note")
    await store.rename("b", "My Straße", tenant="t1")
    page = await store.index.page("t1", limit=10, query="straße")
    assert ids(page) == ["b", "a"]
    in_title, in_text = page.sessions
    assert in_title.match is None
    assert in_text.match is not None
    assert in_text.match.item_id == "a-1" and "STRASSE" in in_text.match.excerpt
    assert await listed(store, "about DOGS") == ["b"]
    assert await listed(store, "parrots") == []


async def test_a_long_search_stops_and_goes_on(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "MAX_SEARCHED_BYTES", 3000)
    monkeypatch.setattr(index, "_BATCH", 4)
    for number in range(9):
        await make(store, f"s{number}", "x" * 1000 + f" word{number % 3}")
    page = await store.index.page("t1", limit=10, query="word0")
    assert ids(page) == ["s6"] or ids(page) == []
    assert page.next is not None
    assert await listed(store, "word0") == ["s6", "s3", "s0"]
    # One that is larger than the bound by itself is read all the same.
    await make(store, "huge", "y" * 9000 + " word0")
    assert await listed(store, "word0") == ["huge", "s6", "s3", "s0"]


async def test_a_call_looks_at_a_bounded_part_of_the_list(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "MAX_LOOKED_AT", 4)
    monkeypatch.setattr(index, "_BATCH", 2)
    for number in range(7):
        await make(store, f"s{number}", f"text {number}")
    page = await store.index.page("t1", limit=10, query="text 0")
    assert page.sessions == () and page.next is not None
    assert await listed(store, "text 0") == ["s0"]


@pytest.mark.parametrize(
    "text", ["", "x", "1~", "~a", "1e5~a", "1.5~a b", "inf~a", "1.5~" + "a" * 200]
)
def test_places_that_are_none(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Place.of_text(text, "after")
    assert caught.value.param == "after"


async def test_a_search_of_many_conversations_takes_few_round_trips(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(120):
        await make(store, f"s{number}", "a title", "needle" if number in (0, 60) else "hay")
    pipeline, used = store.index._redis.pipeline, []

    def counted(**options: object) -> object:
        used.append(1)
        return pipeline(**options)  # type: ignore[arg-type]

    monkeypatch.setattr(store.index._redis, "pipeline", counted)
    assert ids(await store.index.page("t1", limit=10, query="needle")) == ["s60", "s0"]
    assert len(used) <= 6


async def test_a_page_of_a_search_goes_on_where_it_stopped(store: SessionStore) -> None:
    for number in range(8):
        await make(store, f"s{number}", "needle" if number % 3 == 0 else "a title", "the needle")
    for limit in (1, 2, 3, 5, 10):
        found = await listed(store, "needle", limit)
        assert found == [f"s{number}" for number in reversed(range(8))]
