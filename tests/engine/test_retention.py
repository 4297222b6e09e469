"""Which free blocks go first: value, retention, and answers that don't notice."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.block_manager import BlockManager
from engine.contract import Finished, Message, Overloaded, conversation_tag
from engine.retention import Retention
from tests.fakes.runner import Bench, text_of


def fill(blocks: BlockManager, names: list[bytes]) -> None:
    """Compute a prefix of which nothing is there, and let it go."""
    table = blocks.allocate(len(names))
    for block, name in zip(table, names, strict=True):
        blocks.name(block, name)
    blocks.release(table)


def use(blocks: BlockManager, names: list[bytes]) -> None:
    hits = blocks.match(names)
    assert len(hits) == len(names)
    blocks.acquire(hits)
    blocks.release(hits)


def prefix(letter: str, length: int) -> list[bytes]:
    return [f"{letter}{i}".encode() for i in range(length)]


def test_what_was_reused_survives_a_flood() -> None:
    blocks = BlockManager(16, 4)
    system = prefix("s", 4)
    fill(blocks, system)
    for _ in range(4):
        use(blocks, system)
    for flood in "abcdef":
        fill(blocks, prefix(flood, 4))
    assert len(blocks.match(system)) == 4
    # But not for ever.
    for i in range(12):
        fill(blocks, prefix(f"x{i}-", 4))
    assert blocks.match(system) == []
    blocks.check([])


def test_kept_blocks_go_last_and_from_the_end() -> None:
    blocks = BlockManager(8, 4)
    kept = prefix("k", 3)
    fill(blocks, kept)
    blocks.keep(kept)
    for i in range(4):
        fill(blocks, prefix(f"x{i}-", 5))
    assert len(blocks.match(kept)) == 3
    fill(blocks, prefix("y", 6))
    assert len(blocks.match(kept)) == 2
    blocks.check([])
    blocks.unkeep(kept)
    blocks.check([])
    fill(blocks, prefix("z", 2))
    assert blocks.match(kept) == []


def test_retention_has_a_share_a_lifetime_and_an_end() -> None:
    blocks = BlockManager(16, 4)
    retention = Retention(blocks, max_blocks=6, ttl_s=10.0)
    fill(blocks, prefix("a", 4))
    retention.keep("a", prefix("a", 4), 0.0)
    fill(blocks, prefix("b", 2))
    retention.keep("b", prefix("b", 2), 1.0)
    assert retention.held() == {conversation_tag("b"): 8, conversation_tag("a"): 16}
    fill(blocks, prefix("c", 1))
    retention.keep("c", prefix("c", 1), 2.0)
    assert set(retention.held()) == {conversation_tag("b"), conversation_tag("c")}
    retention.release("b")
    retention.release("b")
    assert (len(retention), blocks.num_kept) == (1, 1)
    retention.expire(11.9)
    assert len(retention) == 1
    retention.expire(12.0)
    assert (len(retention), blocks.num_kept) == (0, 0)
    retention.check()


def test_a_shared_beginning_counts_once() -> None:
    blocks = BlockManager(16, 4)
    retention = Retention(blocks, max_blocks=6, ttl_s=10.0)
    shared = prefix("s", 4)
    fill(blocks, [*shared, b"a"])
    retention.keep("a", [*shared, b"a"], 0.0)
    retention.keep("b", [*shared, b"b"], 0.0)
    assert (len(retention), blocks.num_kept) == (2, 6)
    retention.release("a")
    assert blocks.num_kept == 5


@settings(max_examples=150, deadline=None)
@given(
    moves=st.lists(
        st.tuples(
            st.sampled_from(["take", "take", "drop", "keep", "unkeep"]),
            st.lists(st.integers(0, 1), min_size=1, max_size=6),
        ),
        max_size=60,
    ),
    num_blocks=st.integers(6, 20),
)
def test_the_pool_agrees_with_itself(moves: list[tuple[str, list[int]]], num_blocks: int) -> None:
    """Names form a tree; what is found of a branch is whole up to some depth."""
    blocks = BlockManager(num_blocks, 4)
    tables: list[list[int]] = []
    keeps: list[list[bytes]] = []
    for action, path in moves:
        names = [bytes(path[: i + 1]) for i in range(len(path))]
        if action == "take":
            hits = blocks.match(names)
            rest = len(names) - len(hits)
            if blocks.num_free - blocks.num_free_among(hits) < rest:
                continue
            blocks.acquire(hits)
            kept_before = [n for keep in keeps for n in keep if blocks.match([n])]
            loose = blocks.num_free - len(set(kept_before))
            table = hits + blocks.allocate(rest)
            for block, name in zip(table, names, strict=True):
                blocks.name(block, name)
            if rest <= loose:
                assert all(blocks.match([name]) for name in kept_before)
            tables.append(table)
        elif action == "drop" and tables:
            blocks.release(tables.pop(len(path) % len(tables)))
        elif action == "keep":
            blocks.keep(names)
            keeps.append(names)
        elif action == "unkeep" and keeps:
            blocks.unkeep(keeps.pop(len(path) % len(keeps)))
        blocks.check(tables)
    for table in tables:
        blocks.release(table)
    for names in keeps:
        blocks.unkeep(names)
    blocks.check([])
    assert (blocks.num_free, blocks.num_kept) == (num_blocks, 0)


def turn(bench: Bench, name: str, conversation: str, text: str) -> Any:
    bench.add(name, text, conversation_id=conversation, max_tokens=4)
    events = bench.run()
    return next(event.usage for event in events if isinstance(event, Finished))


def flood(bench: Bench, rounds: int) -> None:
    for i in range(rounds):
        bench.add(f"flood{i}", chr(65 + i) * 60, max_tokens=1)
        bench.run()


def test_a_chat_is_found_again_after_a_flood_unless_closed_or_expired() -> None:
    text = "what I said in my first turn, at some length. " * 2
    for end, expected in (("none", True), ("release", False), ("expire", False)):
        bench = Bench(num_blocks=64, retained_s=60.0)
        turn(bench, "r1", "c", text)
        assert bench.engine.retention.held() == {conversation_tag("c"): 96}
        if end == "release":
            bench.engine.release("c")
        if end == "expire":
            bench.clock.advance(61)
        flood(bench, 12)
        again = turn(bench, "r2", "c", text + "and more")
        assert (again.cached_tokens >= 88) == expected, end


def test_a_warm_up_uses_what_was_kept() -> None:
    bench = Bench(num_blocks=64)
    first = "what I said in my first turn. " * 3
    bench.add("r1", first, conversation_id="c", max_tokens=8)
    answer = text_of(bench.run(), "r1")
    turns = (Message("user", first), Message("assistant", answer))
    bench.warm("c", "and now the sec", turns)
    bench.run()
    counters = bench.engine.stats().counters
    assert 0 < counters["repartee_engine_warm_tokens_total"] < 30


def test_the_heartbeat_says_what_is_held() -> None:
    bench = Bench()
    assert bench.engine.stats().held == {}
    turn(bench, "r1", "c", "a turn of some length")
    bench.clock.advance(1.0)
    assert bench.engine.stats().held == {conversation_tag("c"): 24}


@settings(max_examples=60, deadline=None)
@given(
    turns=st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(1, 30), st.booleans()),
        min_size=1,
        max_size=14,
    ),
    num_blocks=st.integers(20, 40),
    share=st.sampled_from([0.0, 0.3, 1.0]),
    retained_s=st.sampled_from([0.0, 0.5, 900.0]),
)
def test_answers_do_not_depend_on_what_is_kept(
    turns: list[tuple[str, int, bool]], num_blocks: int, share: float, retained_s: float
) -> None:
    config = {"retained_share": share, "retained_s": retained_s}
    bench = Bench(window=80, num_blocks=num_blocks, **config)
    plain = Bench(window=80, num_blocks=40, prefix_cache=False)
    taken = 0
    for number, (conversation, size, close) in enumerate(turns):
        name, text = f"r{number}", conversation * size
        plain.add(name, text, max_tokens=30)
        whole = text_of(plain.run(), name)
        try:
            bench.add(name, text, conversation_id=conversation, max_tokens=30)
            taken += 1
        except Overloaded:
            continue
        if number % 3 == 2:
            assert text_of(bench.run(), name) == whole
        if close:
            bench.engine.release(conversation)
    bench.run()
    assert taken and bench.engine.stats().used_blocks == 0
