"""Which rows of a batch share leading blocks, found as by trying all, and laid out in tiles."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.shared_prefix import Group, fill_tiles, find_groups, num_tiles, tile_sequences


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
    prompt = list(range(500, 600))
    rows = [[*prompt, i] for i in range(37)] + [[i] for i in range(3)]
    tables = table_of(rows)
    assert (tile_sequences(4), tile_sequences(3), tile_sequences(1)) == (16, 16, 64)
    assert (tile_sequences(32), tile_sequences(128)) == (2, 2)
    tiles = num_tiles(len(rows), 4)
    assert tiles == 3 + 4
    tile_rows = np.zeros((tiles, 16), np.int32)
    tile_lens, row_lens = np.ones(tiles, np.int32), np.ones(40, np.int32)
    limits = [len(row) - 1 for row in rows]
    assert fill_tiles(tables, limits, 16, tile_rows, tile_lens, row_lens)
    assert tile_lens.tolist() == [1600] * 3 + [0] * 4
    assert sorted(tile_rows[tile_rows >= 0].tolist()) == list(range(37))
    assert row_lens.tolist() == [1600] * 37 + [0] * 3


def test_small_groups_and_groups_without_room_are_left_out() -> None:
    rows = [[100 + i // 2, 200 + i // 2, i] for i in range(20)]
    tile_rows, tile_lens = np.zeros((2, 4), np.int32), np.zeros(2, np.int32)
    row_lens = np.zeros(20, np.int32)
    assert not fill_tiles(table_of(rows), [2] * 20, 16, tile_rows, tile_lens, row_lens)
    assert not row_lens.any() and (tile_rows == -1).all()
    assert fill_tiles(table_of(rows), [2] * 20, 1024, tile_rows, tile_lens, row_lens)
    assert tile_lens.tolist() == [2048, 2048]
    assert (row_lens > 0).sum() == 4
