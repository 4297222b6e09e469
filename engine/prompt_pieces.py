"""Which pieces of which prompts a step computes, and how far."""

from __future__ import annotations

import math

from engine.sequence import PartialPiece, Sequence
from engine.step import Work

# A step with room for fewer tokens computes some layers of a larger piece instead: each
# piece reads all KV before it, so small ones waste most of their time on that.
_WHOLE_FROM_TOKENS = 64
MIN_PIECE_TOKENS = 16
# What any piece costs in itself, as tokens: weights read and unpacked.
_PIECE_OVERHEAD_TOKENS = 2
# By how much a step may go beyond its room so that a piece keeps to its plan.
_SLACK = 1.1


def prompt_pieces(
    seqs: list[Sequence], budget: float, block_size: int, num_layers: int = 1
) -> list[Work]:
    """Share the work on `budget` tokens between prompts.

    Higher tiers first; within one, the shortest remainder first, so that a long
    prompt doesn't hold up short ones, but the longest-waiting prompt always gets a
    quarter.

    Where the runner can stop between layers and the budget is small, larger pieces are
    computed some layers a step. Those begun are finished before others begin, unless
    these are of a higher tier.

    Args:
        seqs: Running, with more than one token to compute; their blocks are reserved.
            Pieces are noted with those of which only some layers are computed.
        budget: Tokens in all; fractions count where layers can be left out.
        block_size: Tokens a block holds; whole pieces of large budgets end on its multiples.
        num_layers: Layers of which some can be left to later steps; 1 for none.
    """
    if not seqs:
        return []
    if num_layers > 1:
        begun = [seq for seq in seqs if seq.partial is not None]
        best = min((seq.rank for seq in begun), default=None)
        ahead = [seq for seq in seqs if best is None or seq.rank < best]
        if begun and not ahead:
            return _go_on(begun, budget, num_layers)
        seqs = ahead
        if budget < _WHOLE_FROM_TOKENS:
            return _begin(seqs, budget, num_layers)
    whole = max(int(budget), block_size)
    sizes = _sizes(seqs, whole, max(whole // 4, block_size), block_size)
    return [_work(seq, sizes[seq.id]) for seq in piece_order(seqs) if sizes.get(seq.id)]


def _begin(seqs: list[Sequence], budget: float, num_layers: int) -> list[Work]:
    """The first layers of new pieces, or all of them."""
    size, layers = piece_and_layers(budget, sum(seq.num_uncomputed for seq in seqs), num_layers)
    sizes = _sizes(seqs, size, max(size // 4, 1), 1)
    taken = [seq for seq in piece_order(seqs) if sizes.get(seq.id)]
    if layers == num_layers:
        return [_work(seq, sizes[seq.id]) for seq in taken]
    for seq in taken:
        seq.partial = PartialPiece(sizes[seq.id], layers)
    return [_work(seq, sizes[seq.id], range(layers), num_layers) for seq in taken]


def _go_on(begun: list[Sequence], budget: float, num_layers: int) -> list[Work]:
    """Further layers of pieces that have come equally far."""
    partials = {seq.id: seq.partial for seq in begun if seq.partial is not None}
    first = min(begun, key=lambda seq: (seq.rank, seq.id))
    lead = partials[first.id]
    done = lead.num_layers
    group = [seq for seq in begun if partials[seq.id].num_layers == done]
    fitting = budget * num_layers / sum(partials[seq.id].num_tokens for seq in group)
    count = lead.layers_a_step
    if not count / _SLACK <= fitting < 1.5 * count:
        count = max(int(fitting), 1)
    if num_layers - done <= _SLACK * fitting:
        count = num_layers - done
    layers = range(done, min(done + count, num_layers))
    return [
        _work(seq, partials[seq.id].num_tokens, layers, num_layers) for seq in piece_order(group)
    ]


def piece_and_layers(budget: float, num_left: int, num_layers: int) -> tuple[int, int]:
    """How many tokens to begin, and how many layers of them a step computes.

    The piece and its steps are chosen together, so that the last step of a piece isn't
    mostly empty: of 30 layers, 4 tokens' worth of work are 6 layers of 20 tokens in five
    steps, where 7 layers of 17 would leave the fifth step two.

    Args:
        budget: Tokens' worth of work in a step.
        num_left: Tokens that there are.
        num_layers: Layers in all.
    """
    if num_left <= budget:
        return num_left, num_layers
    best, best_gain = (min(MIN_PIECE_TOKENS, num_left), 1), 0.0
    for layers in range(1, num_layers + 1):
        size = min(int(budget * num_layers / layers + 1e-6), _WHOLE_FROM_TOKENS, num_left)
        if size < min(MIN_PIECE_TOKENS, num_left):
            break
        used = size / (math.ceil(num_layers / layers) * budget)
        gain = used * size / (size + _PIECE_OVERHEAD_TOKENS)
        if gain > best_gain:
            best, best_gain = (size, layers), gain
    return best


def _sizes(seqs: list[Sequence], budget: int, least: int, step: int) -> dict[int, int]:
    """Tokens by sequence id; `least` is kept for the longest-waiting prompt."""
    oldest = min(seqs, key=lambda seq: (seq.rank, seq.id))
    sizes = {oldest.id: _size(oldest, least, step)}
    budget -= sizes[oldest.id]
    for seq in piece_order(seqs):
        if budget <= 0:
            break
        given = sizes.get(seq.id, 0)
        size = _size(seq, budget + given, step)
        sizes[seq.id] = size
        budget -= size - given
    return sizes


def piece_order(seqs: list[Sequence]) -> list[Sequence]:
    """Who gets a piece before whom: higher tiers, then what ends sooner."""
    return sorted(seqs, key=lambda seq: (seq.rank, seq.num_uncomputed, seq.id))


def _size(seq: Sequence, limit: int, step: int) -> int:
    """Tokens of `seq` to compute, at most `limit`: all that is left, or whole steps."""
    if seq.num_uncomputed <= limit:
        return seq.num_uncomputed
    end = (seq.num_computed + limit) // step * step
    return max(end - seq.num_computed, 0)


def _work(seq: Sequence, size: int, layers: range | None = None, num_layers: int = 1) -> Work:
    is_last = layers is None or layers.stop == num_layers
    return Work(
        sequence=seq,
        start=seq.num_computed,
        num_tokens=size,
        samples=is_last and size == seq.num_uncomputed,
        layers=layers,
        num_layers=num_layers,
    )
