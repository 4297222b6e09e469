"""Blocks: references, reuse, eviction order, and the checks that guard them."""

from __future__ import annotations

import pytest

from engine.block_manager import BlockManager
from engine.invariant_error import InvariantError
from engine.prefix_cache import extend_names, root_name


def test_allocate_and_release() -> None:
    blocks = BlockManager(4, 16)
    table = blocks.allocate(3)
    assert (blocks.num_free, blocks.num_used) == (1, 3)
    blocks.check([table])
    blocks.release(table)
    blocks.check([])
    assert blocks.num_used == 0


def test_double_release_is_caught() -> None:
    blocks = BlockManager(2, 16)
    table = blocks.allocate(1)
    blocks.release(table)
    with pytest.raises(InvariantError, match="released twice"):
        blocks.release(table)


def test_more_than_there_is_is_caught() -> None:
    with pytest.raises(InvariantError):
        BlockManager(2, 16).allocate(3)


def test_named_blocks_are_shared_and_survive_release() -> None:
    blocks = BlockManager(4, 16)
    first = blocks.allocate(2)
    blocks.name(first[0], b"a")
    blocks.name(first[1], b"b")
    hit = blocks.match([b"a", b"b", b"c"])
    assert hit == first
    blocks.acquire(hit)
    blocks.check([first, hit])
    blocks.release(first)
    blocks.release(hit)
    assert blocks.match([b"a", b"x"]) == first[:1]
    assert blocks.num_named == 2


def test_a_prefix_outlives_what_follows_it() -> None:
    blocks = BlockManager(3, 16)
    table = blocks.allocate(2)
    blocks.name(table[0], b"a")
    blocks.name(table[1], b"b")
    blocks.release(table)
    # The one free block without a name goes first, then the end of the prefix.
    blocks.allocate(1)
    assert len(blocks.match([b"a", b"b"])) == 2
    blocks.allocate(1)
    assert len(blocks.match([b"a", b"b"])) == 1
    blocks.allocate(1)
    assert blocks.match([b"a"]) == []
    assert blocks.num_named == 0


def test_least_recently_used_goes_first() -> None:
    blocks = BlockManager(2, 16)
    for name in (b"a", b"b"):
        table = blocks.allocate(1)
        blocks.name(table[0], name)
        blocks.release(table)
    hit = blocks.match([b"a"])
    blocks.acquire(hit)
    blocks.release(hit)
    blocks.allocate(1)
    assert blocks.match([b"a"])
    assert not blocks.match([b"b"])


def test_blocks_without_a_name_go_before_any_with_one() -> None:
    blocks = BlockManager(3, 16)
    named, unnamed, _ = blocks.allocate(1), blocks.allocate(1), blocks.allocate(1)
    blocks.name(named[0], b"a")
    blocks.release(named)
    blocks.release(unnamed)
    assert blocks.allocate(1) == unnamed
    assert blocks.match([b"a"]) == named


def test_the_same_content_twice_keeps_one_name() -> None:
    blocks = BlockManager(2, 16)
    one, two = blocks.allocate(1), blocks.allocate(1)
    blocks.name(one[0], b"a")
    blocks.name(two[0], b"a")
    assert blocks.match([b"a"]) == one
    blocks.check([one, two])


def test_check_finds_a_lost_reference() -> None:
    blocks = BlockManager(2, 16)
    blocks.allocate(1)
    with pytest.raises(InvariantError, match="1 references, tables hold 0"):
        blocks.check([])


def names(tokens: list[int], root: bytes = b"root") -> list[bytes]:
    found: list[bytes] = []
    extend_names(found, root, tokens, 4)
    return found


def test_names_cover_full_blocks_and_all_before_them() -> None:
    assert len(names(list(range(11)))) == 2
    assert names([1, 2, 3, 4, 5, 6, 7, 8])[1] != names([9, 2, 3, 4, 5, 6, 7, 8])[1]
    assert names([1, 2, 3, 4, 5])[0] == names([1, 2, 3, 4, 6])[0]


def test_names_grow_as_tokens_come() -> None:
    tokens = list(range(23))
    grown: list[bytes] = []
    for end in range(len(tokens) + 1):
        extend_names(grown, b"root", tokens[:end], 4)
    assert grown == names(tokens)


def test_tenants_and_models_do_not_share() -> None:
    roots = {root_name("m", "t"), root_name("m", "u"), root_name("n", "t"), root_name("mt", "")}
    assert len(roots) == 4
    assert names([1, 2, 3, 4], root_name("m", "t")) != names([1, 2, 3, 4], root_name("m", "u"))
