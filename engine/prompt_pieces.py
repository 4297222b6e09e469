"""Which pieces of which prompts a step computes."""

from __future__ import annotations

from engine.sequence import Sequence
from engine.step import Work


def prompt_pieces(seqs: list[Sequence], budget: int, block_size: int) -> list[Work]:
    """Share `budget` tokens between prompts.

    Higher tiers first; within one, the shortest remainder first, so that a long
    prompt doesn't hold up short ones, but the longest-waiting prompt always gets a
    quarter. Pieces end on block boundaries.

    Args:
        seqs: Running, with more than one token to compute; their blocks are reserved.
        budget: Tokens in all.
        block_size: Tokens a block holds.
    """
    if not seqs:
        return []
    budget = max(budget, block_size)
    order = sorted(seqs, key=lambda seq: (seq.rank, seq.num_uncomputed, seq.id))
    oldest = min(seqs, key=lambda seq: (seq.rank, seq.id))
    sizes = {oldest.id: _size(oldest, max(budget // 4, block_size), block_size)}
    budget -= sizes[oldest.id]
    for seq in order:
        if budget <= 0:
            break
        given = sizes.get(seq.id, 0)
        size = _size(seq, budget + given, block_size)
        sizes[seq.id] = size
        budget -= size - given
    return [
        Work(
            sequence=seq,
            start=seq.num_computed,
            num_tokens=sizes[seq.id],
            samples=sizes[seq.id] == seq.num_uncomputed,
        )
        for seq in order
        if sizes.get(seq.id)
    ]


def _size(seq: Sequence, limit: int, block_size: int) -> int:
    """Tokens of `seq` to compute, at most `limit`: all that is left, or whole blocks."""
    if seq.num_uncomputed <= limit:
        return seq.num_uncomputed
    end = (seq.num_computed + limit) // block_size * block_size
    return max(end - seq.num_computed, 0)
