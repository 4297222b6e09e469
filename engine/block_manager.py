"""KV blocks: who refers to which, which hold a known prefix, which are free."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush

from engine.invariant_error import InvariantError, require

# Each time that a block was found again makes it outlive half a turnover of the pool,
# up to this many times: a system prompt survives a flood of prompts seen once.
_MAX_REUSES = 8
_TURNOVER_PER_REUSE = 0.5


class BlockManager:
    """Reference-counted blocks of equal size, with names for reuse.

    A block is either referenced (by one sequence or several) or free. A free block
    that has a name keeps its content and can be taken up again by name until it is
    handed out for new content. Free blocks without a name go first, then those of
    least value. Value is the age of the last use, counted in blocks handed out since,
    less half a pool for each reuse; names that someone keeps go last of all. In a
    prefix each block is used at least as lately and as often as the one behind it, and
    the last of equal ones goes first: what is lost of a prefix is its end, which costs
    no more than its own tokens to compute again.

    Args:
        num_blocks: Blocks in all.
        block_size: Tokens a block holds.

    Attributes:
        notes_evictions: Whether `take_evicted` is called between steps.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._refs = [0] * num_blocks
        self._names: list[bytes | None] = [None] * num_blocks
        self._by_name: dict[bytes, int] = {}
        self._reuses = [0] * num_blocks
        self._keepers: Counter[bytes] = Counter()
        self._num_free = num_blocks
        # The next to be handed out is the last.
        self._nameless = list(reversed(range(num_blocks)))
        # (is kept, value, number of the entry, block). An entry counts as long as its
        # number is the block's.
        self._heap: list[tuple[bool, float, int, int]] = []
        self._entry_of: list[int] = [-1] * num_blocks
        self._num_entries = 0
        self._value = [0.0] * num_blocks
        self._num_handed_out = 0
        self.notes_evictions = False
        self._evicted: list[tuple[int, bytes]] = []

    @property
    def num_free(self) -> int:
        """Blocks no sequence refers to; they may hold a reusable prefix."""
        return self._num_free

    @property
    def num_used(self) -> int:
        return self.num_blocks - self._num_free

    @property
    def num_named(self) -> int:
        """Blocks whose content can be found by name."""
        return len(self._by_name)

    @property
    def num_kept(self) -> int:
        """Names that someone keeps, whether or not their blocks are still there."""
        return len(self._keepers)

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

    def num_held(self, names: Sequence[bytes]) -> int:
        """About how many of `names`, from the first, can be found; few look-ups."""
        low, high = 0, len(names)
        while low < high:
            middle = (low + high) // 2
            if names[middle] in self._by_name:
                low = middle + 1
            else:
                high = middle
        return low

    def acquire(self, blocks: Iterable[int]) -> None:
        """Take a reference to each of `blocks`, as found by `match`."""
        for block in blocks:
            if self._refs[block] == 0:
                self._num_free -= 1
                self._entry_of[block] = -1
            self._refs[block] += 1
            self._reuses[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks for new content; their old names are forgotten.

        Raises:
            InvariantError: there are not so many.
        """
        require(0 <= count <= self._num_free, f"{count} of {self._num_free} free blocks")
        return [self._hand_out() for _ in range(count)]

    def _hand_out(self) -> int:
        block = self._nameless.pop() if self._nameless else self._least_valuable()
        self._forget(block)
        self._refs[block] = 1
        self._num_free -= 1
        self._num_handed_out += 1
        return block

    def _least_valuable(self) -> int:
        while True:
            _, _, entry, block = heappop(self._heap)
            if self._entry_of[block] == entry:
                self._entry_of[block] = -1
                return block

    def release(self, blocks: Sequence[int]) -> None:
        """Give one reference to each block of a table back.

        Raises:
            InvariantError: there was none.
        """
        for block in reversed(blocks):
            if self._refs[block] <= 0:
                raise InvariantError(f"block {block} released twice")
            self._refs[block] -= 1
            if self._refs[block] == 0:
                self._num_free += 1
                self._set_free(block)

    def _set_free(self, block: int) -> None:
        if self._names[block] is None:
            self._nameless.append(block)
            return
        reuses = min(self._reuses[block], _MAX_REUSES)
        self._value[block] = self._num_handed_out + _TURNOVER_PER_REUSE * reuses * self.num_blocks
        self._enter(block)

    def _enter(self, block: int) -> None:
        """Put a free, named block where its value belongs, in O(log n)."""
        if len(self._heap) > 2 * self.num_blocks:
            self._heap = [e for e in self._heap if self._entry_of[e[3]] == e[2]]
            heapify(self._heap)
        self._num_entries += 1
        self._entry_of[block] = self._num_entries
        is_kept = self._names[block] in self._keepers
        heappush(self._heap, (is_kept, self._value[block], self._num_entries, block))

    def name(self, block: int, name: bytes) -> None:
        """Make a full, computed block findable.

        Where two sequences computed the same content, the first keeps the name.

        Raises:
            InvariantError: nobody refers to the block.
        """
        if self._refs[block] <= 0:
            raise InvariantError(f"block {block} named while free")
        if self._names[block] is None and name not in self._by_name:
            self._names[block] = name
            self._by_name[name] = block

    def keep(self, names: Sequence[bytes]) -> None:
        """Hand blocks of these names out only when there are no others. Counted."""
        self._keepers.update(names)
        self._reenter(name for name in reversed(names) if self._keepers[name] == 1)

    def unkeep(self, names: Sequence[bytes]) -> None:
        """Take a `keep` back."""
        self._keepers.subtract(names)
        dropped = [name for name in reversed(names) if self._keepers[name] == 0]
        for name in dropped:
            del self._keepers[name]
        self._reenter(dropped)

    def _reenter(self, names: Iterable[bytes]) -> None:
        for name in names:
            block = self._by_name.get(name)
            if block is not None and self._refs[block] == 0:
                self._enter(block)

    def _forget(self, block: int) -> None:
        self._reuses[block] = 0
        name = self._names[block]
        if name is not None:
            del self._by_name[name]
            self._names[block] = None
            if self.notes_evictions:
                self._evicted.append((block, name))

    def take_evicted(self) -> list[tuple[int, bytes]]:
        """(block, name) of those whose names were forgotten since the last call.

        Their contents stay until something is computed into them.
        """
        evicted, self._evicted = self._evicted, []
        return evicted

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Compare every count with the block tables of all sequences.

        Raises:
            InvariantError: naming the first block that disagrees.
        """
        refs = [0] * self.num_blocks
        for table in tables:
            require(len(set(table)) == len(table), f"a table holds a block twice: {table}")
            for block in table:
                refs[block] += 1
        entries = {
            block: is_kept
            for is_kept, _, entry, block in self._heap
            if self._entry_of[block] == entry
        }
        nameless = set(self._nameless)
        require(len(nameless) == len(self._nameless), "a block is free twice")
        for block in range(self.num_blocks):
            fault = self._fault(block, refs[block], entries.get(block), block in nameless)
            if fault:
                raise InvariantError(f"block {block}: {fault}")
        require(self._num_free == refs.count(0), f"{self._num_free} free, not {refs.count(0)}")
        named = sum(name is not None for name in self._names)
        require(named == len(self._by_name), f"{named} names, {len(self._by_name)} entries")
        require(all(count > 0 for count in self._keepers.values()), "a name kept by nobody")

    def _fault(self, block: int, num_held: int, is_kept: bool | None, is_nameless: bool) -> str:
        """What is wrong with a block; empty if nothing is.

        Args:
            block: Which.
            num_held: References that tables hold.
            is_kept: As its entry among the free blocks with names says; None without one.
            is_nameless: Whether it is among the free blocks without.
        """
        name, is_free = self._names[block], num_held == 0
        if num_held != self._refs[block]:
            return f"{self._refs[block]} references, tables hold {num_held}"
        if (is_kept is not None) != (is_free and name is not None):
            return "heap"
        if is_nameless != (is_free and name is None):
            return "free list"
        if is_kept is not None and is_kept != (name in self._keepers):
            return "kept"
        if name is not None and self._by_name.get(name) != block:
            return "name"
        return ""
