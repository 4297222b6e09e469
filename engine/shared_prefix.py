"""Finds which sequences of a decode batch begin with the same KV blocks.

Chats on one system prompt hold the same leading blocks, for the prefix cache gave them.
What is found goes to `kernels.kv_cache.SharedPrefix`.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.step import Work

# Query rows of a tile's matrix: what the tensor cores take at once, and few enough that
# its running softmax stays in registers.
_MATRIX_ROWS = 64
# Tiles beyond those that the batch fills when all of it shares one prefix.
_SPARE_TILES = 4
# KV bytes of one layer that a group must not read again to be worth a launch of its own:
# on one H200 4 chats on 1,024 tokens (12 MiB) lose 7 us a layer, 16 on 4,096 (240 MiB) gain 22.
_LEAST_SAVED_BYTES = 64 << 20

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Group:
    """Rows of a batch whose tables begin with the same blocks.

    Attributes:
        rows: Two at least.
        num_blocks: Leading blocks that they have in common, at least 1.
    """

    rows: tuple[int, ...]
    num_blocks: int


def tile_sequences(group: int) -> int:
    """Sequences that a tile takes, where `group` query heads share a KV head."""
    return max(2, _MATRIX_ROWS >> (group - 1).bit_length())


def num_tiles(num_rows: int, group: int) -> int:
    """Tiles for a batch of `num_rows`: fixed, so that a captured graph can have them."""
    return -(-num_rows // tile_sequences(group)) + _SPARE_TILES


def find_groups(tables: Ints, limits: Sequence[int], least_saved: int) -> list[Group]:
    """The groups that save most, each row in one at most.

    In the order of their tables, rows with a common beginning are neighbours. A group of
    n rows and m blocks saves (n - 1) * m, which is a rectangle under the numbers of
    blocks that neighbours share: the largest is taken, then those left and right of it.

    Args:
        tables: int32 [rows, blocks].
        limits: Of each row, how many leading blocks may be shared: those whose tokens
            all lie before the first that this batch computes.
        least_saved: Groups that save fewer blocks are left out.
    """
    keys = [tables[row, :limit].tobytes() for row, limit in enumerate(limits)]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    shared = [
        _num_shared(tables, keys, one, other, min(limits[one], limits[other]))
        for one, other in itertools.pairwise(order)
    ]
    groups: list[Group] = []
    spans = [(0, len(shared))]
    while spans:
        begin, end = spans.pop()
        height, left, right = _largest_rectangle(shared, begin, end)
        if height * (right - left) < max(1, least_saved):
            continue
        groups.append(Group(tuple(sorted(order[left : right + 1])), height))
        # The pairs at the rectangle's edges have one row inside it.
        spans += [(begin, max(begin, left - 1)), (min(end, right + 1), end)]
    return sorted(groups, key=lambda group: -(len(group.rows) - 1) * group.num_blocks)


def _num_shared(tables: Ints, keys: Sequence[bytes], one: int, other: int, limit: int) -> int:
    if keys[one][: limit * 4] == keys[other][: limit * 4]:
        return limit
    return int(np.argmax(tables[one, :limit] != tables[other, :limit]))


def _largest_rectangle(heights: Sequence[int], begin: int, end: int) -> tuple[int, int, int]:
    """(height, left, right) of the largest rectangle under heights[left:right]."""
    best = (0, begin, begin)
    open_at: list[tuple[int, int]] = []
    for i in range(begin, end + 1):
        height = heights[i] if i < end else 0
        left = i
        while open_at and open_at[-1][0] >= height:
            top, left = open_at.pop()
            if top * (i - left) > best[0] * (best[2] - best[1]):
                best = (top, left, i)
        open_at.append((height, left))
    return best


def fill_tiles(
    groups: Sequence[Group], block_size: int, tile_rows: Ints, tile_lens: Ints, row_lens: Ints
) -> None:
    """Write groups as tiles; a group that finds no room is left out.

    Args:
        groups: The first ones find room first.
        block_size: Tokens a block.
        tile_rows: Written, as of `SharedPrefix`.
        tile_lens: Written.
        row_lens: Written.
    """
    tile_rows.fill(-1)
    tile_lens.fill(0)
    row_lens.fill(0)
    capacity = tile_rows.shape[1]
    used = 0
    for group in groups:
        if used + -(-len(group.rows) // capacity) > len(tile_lens):
            continue
        for first in range(0, len(group.rows), capacity):
            part = group.rows[first : first + capacity]
            tile_rows[used, : len(part)] = part
            tile_lens[used] = group.num_blocks * block_size
            used += 1
        row_lens[list(group.rows)] = group.num_blocks * block_size


class PrefixFinder:
    """Finds the groups of one plan after another, and remembers the last one's.

    Args:
        block_size: Tokens a block.
        block_bytes: KV bytes of one layer's block.
    """

    def __init__(self, block_size: int, block_bytes: int) -> None:
        self._block_size = block_size
        self._least_saved = -(-_LEAST_SAVED_BYTES // block_bytes)
        self._key: tuple[tuple[int, int], ...] = ()
        self._groups: list[Group] = []

    def find(self, work: Sequence[Work]) -> list[Group]:
        """The groups of sequences that decode; empty where sharing wouldn't pay.

        While the same sequences run on, so do their groups: blocks that come to a table
        are its own.
        """
        key = tuple((item.sequence.id, item.sequence.num_suspensions) for item in work)
        if key != self._key:
            self._key, self._groups = key, self._find(work)
        return self._groups

    def _find(self, work: Sequence[Work]) -> list[Group]:
        limits = [item.start // self._block_size for item in work]
        if sum(limits) - max(limits) < self._least_saved:
            return []
        tables = np.zeros((len(work), max(limits)), np.int32)
        for table, limit, item in zip(tables, limits, work, strict=True):
            table[:limit] = item.sequence.block_table[:limit]
        return find_groups(tables, limits, self._least_saved)
