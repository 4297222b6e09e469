"""Prompts that begin alike and come together: one computes, the others take it from there.

A prompt's beginning is looked up in the prefix cache when its request is admitted. Of those
admitted since it began to be computed, each would compute it again. Instead, the first of
them computes, by the order in which prompts get their pieces, and whatever block it fills
the others take in place of their own, at the next step. Whoever is first does the work: a
VIP that comes to a standard request's half-computed prompt goes on from there itself, and
where the first is cancelled or fails the next one does. Nobody waits for less than itself.
"""

from __future__ import annotations

from collections.abc import Iterable

from engine.block_manager import BlockManager
from engine.prompt_pieces import piece_order
from engine.sequence import Sequence


class PrefixJoins:
    """Lets running sequences share what is being computed.

    Args:
        blocks: The pool.

    Attributes:
        num_tokens: Tokens that were taken over instead of computed, since the start.
    """

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks
        self.num_tokens = 0

    def take_over(self, running: Iterable[Sequence]) -> None:
        """Move sequences on over all blocks that others have computed since."""
        for seq in running:
            if seq.num_uncomputed > self._blocks.block_size and seq.partial is None:
                self._take_over(seq)

    def _take_over(self, seq: Sequence) -> None:
        size = self._blocks.block_size
        start = seq.num_computed // size
        # At least one token is left to compute.
        found = self._blocks.match(seq.block_names[start : (len(seq.tokens) - 1) // size])
        if not found:
            return
        end = start + len(found)
        self._blocks.acquire(found)
        self._blocks.release(seq.block_table[start:end])
        seq.block_table[start:end] = found
        num_taken = end * size - seq.num_computed
        seq.num_computed = end * size
        self.num_tokens += num_taken
        if not seq.num_suspensions and seq.cached_tokens is not None:
            seq.cached_tokens += num_taken

    def first_of_each(self, prefills: list[Sequence]) -> list[Sequence]:
        """Those that compute in this step: all but who waits for another's next block.

        A wait that brought nothing, because the other got no piece, is not repeated.

        Args:
            prefills: Who may.
        """
        first: dict[bytes, Sequence] = {}
        computing = []
        for seq in piece_order(prefills):
            name = self._next_name(seq)
            if name is None or name not in first or seq.waited_at == seq.num_computed:
                computing.append(seq)
                if name is not None:
                    first.setdefault(name, seq)
            else:
                seq.waited_at = seq.num_computed
        return computing

    def _next_name(self, seq: Sequence) -> bytes | None:
        """The block that a sequence computes next, if others could take it."""
        index = seq.num_computed // self._blocks.block_size
        num_shareable = min((len(seq.tokens) - 1) // self._blocks.block_size, len(seq.block_names))
        return seq.block_names[index] if index < num_shareable and seq.partial is None else None
