"""What the host tells the GPU of the rows that decode, in pinned memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.sampling_rows import sampling_row
from engine.step import Work

Rows = Sequence[Work]


class HostRows:
    """What the host tells the device of a batch's rows, in pinned memory."""

    def __init__(
        self, num_rows: int, max_blocks: int, tile_shape: tuple[int, int], pinned: bool
    ) -> None:
        # ids, positions, sample positions, slots, seeds, limits, steps
        self.ints = torch.empty(7, num_rows, dtype=torch.int64, pin_memory=pinned)
        # context length, top_k
        self.lens = torch.zeros(2, num_rows, dtype=torch.int32, pin_memory=pinned)
        # temperature, top_p, min_p
        self.floats = torch.empty(3, num_rows, dtype=torch.float32, pin_memory=pinned)
        self.tables = torch.zeros(num_rows, max_blocks, dtype=torch.int32, pin_memory=pinned)
        # Written a few numbers at a time, which is cheaper here than there.
        self._table_array = self.tables.numpy()
        # The blocks that each row of `tables` holds from its first on.
        self._known: list[list[int]] = [[] for _ in range(num_rows)]
        # See `SharedPrefix`.
        self.tile_rows = torch.zeros(tile_shape, dtype=torch.int32, pin_memory=pinned)
        self.tile_lens = torch.zeros(tile_shape[0], dtype=torch.int32, pin_memory=pinned)
        self.row_lens = torch.zeros(num_rows, dtype=torch.int32, pin_memory=pinned)

    def put_table(self, row: int, item: Work) -> None:
        """Write a sequence's blocks into a row: those that it has been given since, if any."""
        table = item.sequence.block_table
        known = self._known[row]
        if table[: len(known)] != known:
            known.clear()
        if len(known) < len(table):
            fresh = table[len(known) :]
            self._table_array[row, len(known) : len(table)] = fresh
            known += fresh


def limit_of(item: Work, block_size: int) -> int:
    """Before which position a sequence has room for KV and is allowed an answer."""
    seq = item.sequence
    return min(len(seq.block_table) * block_size, seq.max_tokens)


def fill_rows(
    host: HostRows,
    work: Rows,
    made: Sequence[list[int]],
    places: Sequence[int],
    limits: Sequence[int],
    block_size: int,
) -> None:
    """All but the tables. Rows without a sequence, or at their limit, are padding."""
    ints, floats, lens = host.ints.numpy(), host.floats.numpy(), host.lens.numpy()
    ints[:] = 0
    ints[3] = -1
    lens[:] = 0
    floats[0] = 0.0
    floats[1] = 1.0
    floats[2] = 0.0
    at: list[int] = []
    columns: list[tuple[int, ...]] = []
    shapes: list[tuple[float, ...]] = []
    for item, tokens, place in zip(work, made, places, strict=True):
        position = item.start + len(tokens)
        if position >= limits[place]:
            continue
        seq, row = item.sequence, sampling_row(item.sequence)
        slot = seq.block_table[position // block_size] * block_size + position % block_size
        token = tokens[-1] if tokens else seq.tokens[position]
        at.append(place)
        columns.append((
            max(token, 0), position, row.position + len(tokens), slot, row.seed, limits[place],
            min(max(row.top_k, 0), 2**31 - 1),
        ))  # fmt: skip
        shapes.append((0.0 if row.is_greedy else row.temperature, row.top_p, row.min_p))
    if not at:
        return
    # In whole arrays: row by row costs more than the rest of a step's preparation.
    values = np.array(columns, np.int64).T
    ints[:6, at] = values[:6]
    lens[0, at] = values[1] + 1
    lens[1, at] = values[6]
    floats[:, at] = np.array(shapes, np.float32).T
