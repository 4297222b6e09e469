"""Who runs, and the blocks they hold."""

from __future__ import annotations

from engine.block_manager import BlockManager
from engine.config import EngineConfig
from engine.sequence import Sequence, Status


class Batch:
    """The running sequences.

    Args:
        config: The engine's.
        blocks: The pool.
    """

    def __init__(self, config: EngineConfig, blocks: BlockManager) -> None:
        self._config = config
        self._blocks = blocks
        self.running: list[Sequence] = []

    def join(self, seq: Sequence, blocks: list[int]) -> None:
        """Let a sequence run on blocks that it owns."""
        seq.block_table = blocks
        seq.status = Status.RUNNING
        self.running.append(seq)

    def leave(self, seq: Sequence) -> None:
        """Take a sequence out and give all its blocks back."""
        self.running.remove(seq)
        self._blocks.release(seq.block_table)
        seq.block_table = []
        seq.num_computed = 0
        seq.partial = None
        seq.num_named = 0

    def computed(self, seq: Sequence, num_computed: int) -> None:
        """Note that the KV of the first `num_computed` tokens is in place."""
        seq.num_computed = num_computed
        seq.partial = None
        if not self._config.prefix_cache:
            return
        num_full = min(num_computed // self._blocks.block_size, len(seq.block_names))
        for i in range(seq.num_named, num_full):
            self._blocks.name(seq.block_table[i], seq.block_names[i])
        seq.num_named = max(seq.num_named, num_full)

    def is_protected(self, seq: Sequence) -> bool:
        """Whether a sequence was suspended as often as it may be."""
        return seq.num_suspensions >= self._config.max_suspensions

    def cached_blocks(self, seq: Sequence) -> list[int]:
        """Blocks that already hold a prefix of `seq`, at least one token short of all."""
        num_whole = (len(seq.tokens) - 1) // self._blocks.block_size
        return self._blocks.match(seq.block_names[:num_whole])

    def headroom(self, seq: Sequence, running: list[Sequence]) -> int:
        """Blocks that must stay free when `seq` joins `running`, for answers to grow.

        One for each. It doubles each time that `seq` was suspended for want of them, so
        that it isn't resumed and thrown out again block by block; a protected sequence
        waits until all protected ones can grow to their ends, at the others' cost.
        """
        if not running:
            return 0
        if not self.is_protected(seq):
            return (len(running) + 1) << seq.num_evictions
        growth = evictable = 0
        for other in (*running, seq):
            if self.is_protected(other):
                growth += self._blocks.blocks_for(other.max_tokens)
                growth -= len(other.block_table) or self._blocks.blocks_for(len(other.tokens))
            else:
                evictable += self._blocks.num_sole_references(other.block_table)
        return max(len(running) + 1, growth - evictable)

    def reserve_ahead(self, seq: Sequence, num_tokens: int) -> bool:
        """Give `seq` blocks for more tokens if that leaves each other one a block."""
        needed = self._blocks.blocks_for(len(seq.tokens) + num_tokens) - len(seq.block_table)
        if needed <= 0:
            return True
        if self._blocks.num_free - needed < len(self.running):
            return False
        seq.block_table += self._blocks.allocate(needed)
        return True
