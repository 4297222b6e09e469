"""KV blocks: who refers to which, which hold a known prefix, which are free."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class BlockManager:
    """Reference-counted blocks of equal size, with names for reuse.

    A block is either referenced (by one sequence or several) or free. A free block
    that has a name keeps its content and can be taken up again by name until it is
    handed out for new content; free blocks without a name go first, then the one
    unused for longest.

    Args:
        num_blocks: Blocks in all.
        block_size: Tokens a block holds.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._refs = [0] * num_blocks
        self._names: list[bytes | None] = [None] * num_blocks
        self._by_name: dict[bytes, int] = {}
        # In the order in which they are handed out.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))

    @property
    def num_free(self) -> int:
        """Blocks no sequence refers to; they may hold a reusable prefix."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    @property
    def num_named(self) -> int:
        """Blocks whose content can be found by name."""
        return len(self._by_name)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def match(self, names: Iterable[bytes]) -> list[int]:
        """Blocks of the longest known prefix of `names`; takes no reference."""
        blocks: list[int] = []
        for name in names:
            block = self._by_name.get(name)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_free_among(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` are free now."""
        return sum(1 for block in blocks if self._refs[block] == 0)

    def num_sole_references(self, blocks: Iterable[int]) -> int:
        """How many of `blocks` would become free if one reference to each were released."""
        return sum(1 for block in blocks if self._refs[block] == 1)

    def acquire(self, blocks: Iterable[int]) -> None:
        """Take a reference to each of `blocks`, as found by `match`."""
        for block in blocks:
            if self._refs[block] == 0:
                del self._free[block]
            self._refs[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks for new content; their old names are forgotten.

        The caller checks `num_free` first.
        """
        assert 0 <= count <= len(self._free), (count, len(self._free))
        blocks = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            self._forget(block)
            self._refs[block] = 1
            blocks.append(block)
        return blocks

    def release(self, blocks: Sequence[int]) -> None:
        """Give one reference to each block of a table back.

        The last block is the first to be handed out again: a prefix is worth more
        than what follows it.
        """
        for block in reversed(blocks):
            assert self._refs[block] > 0, f"block {block} released twice"
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._free[block] = None
                if self._names[block] is None:
                    self._free.move_to_end(block, last=False)

    def name(self, block: int, name: bytes) -> None:
        """Make a full, computed block findable.

        Where two sequences computed the same content, the first keeps the name.
        """
        assert self._refs[block] > 0, f"block {block} named while free"
        if self._names[block] is None and name not in self._by_name:
            self._names[block] = name
            self._by_name[name] = block

    def _forget(self, block: int) -> None:
        name = self._names[block]
        if name is not None:
            del self._by_name[name]
            self._names[block] = None

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Compare every count with the block tables of all sequences.

        Raises:
            AssertionError: naming the first block that disagrees.
        """
        refs = [0] * self.num_blocks
        for table in tables:
            assert len(set(table)) == len(table), f"a table holds a block twice: {table}"
            for block in table:
                refs[block] += 1
        for block in range(self.num_blocks):
            assert refs[block] == self._refs[block], (
                f"block {block} has {self._refs[block]} references, tables hold {refs[block]}"
            )
            assert (block in self._free) == (refs[block] == 0), f"block {block}: free list"
            name = self._names[block]
            assert name is None or self._by_name.get(name) == block, f"block {block}: name"
        named = sum(name is not None for name in self._names)
        assert named == len(self._by_name), f"{named} names, {len(self._by_name)} entries"
