"""Which rows of a batch share leading blocks, found as by trying all, and laid out in tiles."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.shared_prefix import (
    Group,
    PrefixFinder,
    fill_tiles,
    find_groups,
    num_tiles,
    tile_sequences,
)
from engine.step import Work


def table_of(rows: list[list[int]]) -> np.ndarray:
    """Rows padded with blocks that no row shares."""
    width = max(map(len, rows)) + 1
    return np.array([row + [1000 + i] * (width - len(row)) for i, row in enumerate(rows)], np.int32)


def groups_of(rows: list[list[int]], least_saved: int = 1) -> list[Group]:
    return find_groups(table_of(rows), [len(row) for row in rows], least_saved)


def test_chats_on_one_system_prompt_are_a_group() -> None:
    prompt = list(range(100, 130))
    rows = [[7], [*prompt, 1], [*prompt, 2], [8, 9], [*prompt, 3, 4]]
    assert groups_of(rows) == [Group((1, 2, 4), 30)]


def test_a_stranger_with_the_same_first_block_does_not_shorten_the_prefix() -> None:
    prompt = list(range(100, 130))
    rows = [[100, 5], [*prompt, 1], [*prompt, 2], [100, 6], [*prompt, 3]]
    assert groups_of(rows, least_saved=2)[0] == Group((1, 2, 4), 30)


def test_limits_cut_what_is_shared() -> None:
    tables = table_of([[1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3, 6]])
    assert find_groups(tables, [2, 3, 3], 1) == [Group((0, 1, 2), 2)]
    assert find_groups(tables, [0, 3, 3], 1) == [Group((1, 2), 3)]
    assert find_groups(tables, [0, 0, 3], 1) == []
    assert find_groups(tables[:1], [3], 1) == []


@settings(max_examples=200, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=6), min_size=1, max_size=8),
    least=st.integers(1, 4),
)
def test_the_best_group_is_found_and_all_are_true(rows: list[list[int]], least: int) -> None:
    found = groups_of(rows, least)
    seen: set[int] = set()
    for group in found:
        assert len(group.rows) > 1 and not seen & set(group.rows)
        seen |= set(group.rows)
        heads = {tuple(rows[row][: group.num_blocks]) for row in group.rows}
        assert len(heads) == 1 and len(heads.pop()) == group.num_blocks
        assert (len(group.rows) - 1) * group.num_blocks >= least
    best = 0
    for depth in range(1, 7):
        heads = [tuple(row[:depth]) for row in rows if len(row) >= depth]
        best = max([best, *((heads.count(head) - 1) * depth for head in heads)])
    most = max(((len(group.rows) - 1) * group.num_blocks for group in found), default=0)
    assert most == (best if best >= least else 0)


def test_tiles_hold_every_row_of_a_group_once() -> None:
    assert (tile_sequences(4), tile_sequences(3), tile_sequences(1)) == (16, 16, 64)
    assert (tile_sequences(32), tile_sequences(128)) == (2, 2)
    tiles = num_tiles(40, 4)
    assert tiles == 3 + 4
    tile_rows = np.zeros((tiles, 16), np.int32)
    tile_lens, row_lens = np.ones(tiles, np.int32), np.ones(40, np.int32)
    groups = [Group(tuple(range(37)), 100), Group((38, 39), 5)]
    fill_tiles(groups, 16, tile_rows, tile_lens, row_lens)
    assert tile_lens.tolist() == [1600] * 3 + [80] + [0] * 3
    assert sorted(tile_rows[:3][tile_rows[:3] >= 0].tolist()) == list(range(37))
    assert tile_rows[3].tolist() == [38, 39] + [-1] * 14
    assert row_lens.tolist() == [1600] * 37 + [0] + [80] * 2


def test_groups_without_room_are_left_out() -> None:
    tile_rows, tile_lens = np.zeros((2, 4), np.int32), np.zeros(2, np.int32)
    row_lens = np.zeros(20, np.int32)
    groups = [Group((0, 1), 9), Group(tuple(range(2, 8)), 8), Group((8, 9, 10), 2)]
    fill_tiles(groups, 4, tile_rows, tile_lens, row_lens)
    assert tile_lens.tolist() == [36, 8]
    assert np.flatnonzero(row_lens).tolist() == [0, 1, 8, 9, 10]


def work_on(tables: list[list[int]], start: int, suspensions: int = 0) -> list[Work]:
    return [
        Work(SimpleNamespace(id=i, num_suspensions=suspensions, block_table=table), start, 1, True)
        for i, table in enumerate(tables)
    ]


def test_groups_are_found_where_sharing_pays_and_kept_while_the_same_run() -> None:
    finder = PrefixFinder(block_size=4, block_bytes=(64 << 20) // 6 + 1)
    tables = [[1, 2, 3, 4, 5 + i] for i in range(3)]
    # The fourth block may not be shared yet: a token of it is still to be computed.
    work = work_on(tables, start=15)
    groups = finder.find(work)
    assert groups == [Group((0, 1, 2), 3)]
    assert finder.find(work[:2]) == []
    assert finder.find(work_on(tables, start=3)) == []
    groups = finder.find(work)
    assert finder.find(work_on([[*table, 99] for table in tables], start=21)) is groups
    # Suspended and resumed, a sequence has other blocks.
    assert finder.find(work_on([[9], *tables[1:]], start=15, suspensions=1)) == []
