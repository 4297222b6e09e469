"""KV blocks that the pool had to give up, packed in host memory, to be found again."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Protocol

from engine.invariant_error import require

logger = logging.getLogger(__name__)

# Not yet packed: more than this is not taken in, so that packing, on a thread of its own,
# may fall behind without piling up.
MAX_PENDING_BYTES = 64 << 20
# Bytes, unpacked, that one step moves each way. What it leaves out is computed again.
MAX_STEP_BYTES = 32 << 20


class Codec(Protocol):
    """Packs a block's contents without loss; `engine.kv_codec.KvCodec` is one."""

    @property
    def block_bytes(self) -> int: ...

    def pack(self, bits: Any) -> bytes: ...

    def unpack(self, packed: bytes) -> Any: ...


@dataclass(slots=True)
class HostTierCounts:
    """Totals since start.

    Attributes:
        stored: Blocks packed.
        restored: Blocks given back.
        refused: Blocks not taken, for there were too many at once.
    """

    stored: int = 0
    restored: int = 0
    refused: int = 0


class HostTier:
    """Named contents of blocks, bounded in bytes; the longest unused goes first.

    The engine's thread offers, matches and takes; packing happens on `executor`.
    What was taken stays, so that a block that leaves the pool again need not be packed
    again.

    Args:
        max_bytes: Of packed blocks in all.
        codec: Packs them.
        executor: Of one thread.
    """

    def __init__(self, max_bytes: int, codec: Codec, executor: Executor) -> None:
        self._max_bytes = max_bytes
        self._codec = codec
        self._executor = executor
        self._lock = threading.Lock()
        self._packed: OrderedDict[bytes, bytes] = OrderedDict()
        self._pending: dict[bytes, Any] = {}
        self._num_bytes = 0
        self.counts = HostTierCounts()

    @property
    def num_blocks(self) -> int:
        """Blocks that can be found."""
        return len(self._packed) + len(self._pending)

    @property
    def num_bytes(self) -> int:
        """Bytes of packed blocks."""
        return self._num_bytes

    @property
    def max_step_blocks(self) -> int:
        """Blocks that one step moves each way."""
        return max(1, MAX_STEP_BYTES // self._codec.block_bytes)

    def lacks(self, evicted: Sequence[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        """Of blocks that leave the pool in this step, those to offer.

        Those that left last, for they come first in their prompts: blocks without all
        that were before them are of no use.

        Args:
            evicted: (block, name), in the order in which they left.
        """
        with self._lock:
            for _, name in evicted:
                if name in self._packed:
                    self._packed.move_to_end(name)
            wanted = [
                (block, name)
                for block, name in evicted
                if name not in self._packed and name not in self._pending
            ]
            room = MAX_PENDING_BYTES // self._codec.block_bytes - len(self._pending)
        most = max(0, min(self.max_step_blocks, room))
        self.counts.refused += max(0, len(wanted) - most)
        return wanted[len(wanted) - min(most, len(wanted)) :]

    def offer(self, names: Iterable[bytes], contents: Iterable[Any]) -> None:
        """Take blocks in; they can be found at once and are packed later."""
        for name, bits in zip(names, contents, strict=True):
            with self._lock:
                self._pending[name] = bits
            self._executor.submit(self._pack, name, bits)

    def match(self, names: Sequence[bytes]) -> int:
        """How many of `names`, from the first on, can be taken."""
        with self._lock:
            for count, name in enumerate(names):
                if name not in self._packed and name not in self._pending:
                    return count
        return len(names)

    def take(self, names: Sequence[bytes]) -> list[Any]:
        """The contents of blocks of which `match` has just said that they are there.

        Nothing but packing can come between, and what packing pushes out first is what
        was used least lately: so a block may be missing even so. The answer ends there.
        """
        contents = []
        for name in names:
            with self._lock:
                bits, packed = self._pending.get(name), self._packed.get(name)
                if packed is not None:
                    self._packed.move_to_end(name)
            if bits is None and packed is None:
                break
            contents.append(self._codec.unpack(packed) if packed is not None else bits)
        # What comes first in a prompt goes last.
        with self._lock:
            for name in reversed(names[: len(contents)]):
                if name in self._packed:
                    self._packed.move_to_end(name)
        self.counts.restored += len(contents)
        return contents

    def _pack(self, name: bytes, bits: Any) -> None:
        try:
            packed = self._codec.pack(bits)
        except Exception:
            logger.exception("a KV block could not be packed")
            packed = None
        with self._lock:
            del self._pending[name]
            if packed is None or len(packed) > self._max_bytes:
                return
            self._packed[name] = packed
            self._num_bytes += len(packed)
            self.counts.stored += 1
            while self._num_bytes > self._max_bytes:
                _, oldest = self._packed.popitem(last=False)
                self._num_bytes -= len(oldest)

    def counters(self) -> dict[str, float]:
        """Counters and gauges by Prometheus name."""
        return {
            "repartee_engine_host_blocks": self.num_blocks,
            "repartee_engine_host_bytes": self.num_bytes,
            "repartee_engine_host_stored_total": self.counts.stored,
            "repartee_engine_host_restored_total": self.counts.restored,
            "repartee_engine_host_refused_total": self.counts.refused,
        }

    def check(self) -> None:
        """Compare the books with what is there.

        Raises:
            InvariantError: saying what disagrees.
        """
        with self._lock:
            both = self._packed.keys() & self._pending.keys()
            require(not both, f"{len(both)} blocks are packed and pending")
            num_bytes = sum(map(len, self._packed.values()))
            require(
                num_bytes == self._num_bytes, f"{num_bytes} bytes held, {self._num_bytes} booked"
            )
            require(num_bytes <= self._max_bytes, f"{num_bytes} bytes held of {self._max_bytes}")
            pending_bytes = len(self._pending) * self._codec.block_bytes
            require(pending_bytes <= MAX_PENDING_BYTES, f"{pending_bytes} bytes wait to be packed")
