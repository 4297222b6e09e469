"""Decode steps on the GPU: their buffers, the graph of one step, and steps under way.

State stays on the device from step to step. The host fills it once, then asks for steps
and collects tokens later, so that it works on earlier tokens while the GPU makes the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engine.cuda_graph import Pool, StepGraph
from engine.cuda_rows import HostRows, Rows, fill_rows, limit_of
from engine.shared_prefix import Group, fill_tiles
from kernels.cuda.launch import OVERLAP_ROWS, overlapped_launches
from kernels.decode_state.triton import advance
from kernels.kv_cache import AttentionBatch, LayerCache, SharedPrefix
from kernels.sampling.triton import DeviceRows, sample_rows

# Contexts at which another number of programs shares a sequence's attention.
CONTEXT_STEPS = (1024, 4096, 16384, 65536, 1 << 20)

Forward = Callable[..., torch.Tensor]


@dataclass(slots=True)
class Segment:
    """Steps that were launched together, and where their tokens arrive.

    Attributes:
        num_steps: How many.
        tokens: int64 [steps, rows], on the host.
        landed: Recorded once they are there; None off the GPU.
    """

    num_steps: int
    tokens: torch.Tensor
    landed: torch.cuda.Event | None

    def wait(self) -> list[list[int]]:
        """Each row's tokens."""
        if self.landed is not None:
            self.landed.synchronize()
        return self.tokens[: self.num_steps].T.tolist()


class DecodeChunk:
    """Decodes up to `num_rows` sequences, without the host between steps.

    Args:
        forward: The model's; see `engine.runner.Model`.
        caches: One a layer.
        num_rows: Rows of the batch; those without a sequence are padding.
        max_context_len: Longest context of any row, rounded up; sizes the attention.
        max_blocks: Blocks of the longest sequence that may come.
        max_steps: Most steps a segment.
        tile_shape: Of `SharedPrefix.tile_rows`; None reads each row's own KV only.
        device: Where it runs.
        pool: The graphs' shared memory.
    """

    def __init__(
        self,
        forward: Forward,
        caches: Sequence[LayerCache],
        num_rows: int,
        max_context_len: int,
        max_blocks: int,
        max_steps: int,
        tile_shape: tuple[int, int] | None,
        device: torch.device,
        pool: Pool,
    ) -> None:
        self.max_context_len = max_context_len
        self._forward = forward
        self._caches = caches
        self._block_size = caches[0].block_size
        self._num_rows = num_rows
        pinned = device.type == "cuda"
        # What was given to the device may still be on its way while the host fills the next.
        self._host = [
            HostRows(num_rows, max_blocks, tile_shape or (0, 0), pinned) for _ in range(2)
        ]
        # One segment is read while a second and a third are under way.
        self._host_out = [
            torch.empty(max_steps, num_rows, dtype=torch.int64, pin_memory=pinned) for _ in range(3)
        ]
        self._num_filled = 0
        self._num_segments = 0
        # Rows with a sequence, and the position before which each row may write KV.
        self._live: set[int] = set()
        self._limits = [0] * num_rows
        self._ints = torch.empty(7, num_rows, dtype=torch.int64, device=device)
        self._tables = torch.zeros(num_rows, max_blocks, dtype=torch.int32, device=device)
        self._floats = torch.empty(3, num_rows, dtype=torch.float32, device=device)
        self._lens = torch.zeros(2, num_rows, dtype=torch.int32, device=device)
        self._out = torch.empty(max_steps, num_rows, dtype=torch.int64, device=device)
        self._rows = torch.arange(num_rows, device=device)
        self._shared: SharedPrefix | None = None
        if tile_shape is not None:
            self._shared = SharedPrefix(
                torch.full(tile_shape, -1, dtype=torch.int32, device=device),
                torch.zeros(tile_shape[0], dtype=torch.int32, device=device),
                torch.zeros(num_rows, dtype=torch.int32, device=device),
            )
        self._batch = AttentionBatch(
            query_starts=torch.arange(num_rows + 1, dtype=torch.int32, device=device),
            context_lens=self._lens[0],
            block_tables=self._tables,
            max_query_len=1,
            max_context_len=max_context_len,
            shared=self._shared,
        )
        temperature, top_p, min_p = self._floats
        self._sampling = DeviceRows(
            temperature, self._lens[1], top_p, min_p, self._ints[4], self._ints[2]
        )
        # With padding alone, a step compiles every kernel and writes no KV.
        self.start(())
        self._graph = StepGraph(self._step, pool)

    def start(
        self, work: Rows, made: Sequence[list[int]] = (), groups: Sequence[Group] = ()
    ) -> None:
        """Put the device's rows where `work` says; steps under way are not waited for.

        Args:
            work: The rows.
            made: Tokens of each row that were made already, from where `work` starts on.
            groups: Rows that begin with the same blocks, where the chunk shares prefixes.
        """
        host = self._next_host()
        places = range(len(work))
        self._take_rows(host, work, places)
        fill_rows(host, work, made or [[]] * len(work), places, self._limits, self._block_size)
        self._ints.copy_(host.ints, non_blocking=True)
        self._floats.copy_(host.floats, non_blocking=True)
        self._tables.copy_(host.tables, non_blocking=True)
        self._lens.copy_(host.lens, non_blocking=True)
        if self._shared is not None:
            fill_tiles(
                groups, self._block_size, host.tile_rows.numpy(), host.tile_lens.numpy(),
                host.row_lens.numpy(),
            )  # fmt: skip
            self._shared.tile_rows.copy_(host.tile_rows, non_blocking=True)
            self._shared.tile_lens.copy_(host.tile_lens, non_blocking=True)
            self._shared.row_lens.copy_(host.row_lens, non_blocking=True)

    def go_on(self, work: Rows, found: Sequence[int | None]) -> list[int]:
        """Let the rows go on with the blocks they have been given since.

        Rows that are not in `work` end; sequences that have no row get one, and start
        where `work` says.

        Args:
            work: What decodes from now on.
            found: Which row each of it is; None for one that has none.

        Returns:
            Which row each of `work` is now.
        """
        taken = {row for row in found if row is not None}
        free = (row for row in range(self._num_rows) if row not in taken)
        places = [next(free) if row is None else row for row in found]
        fresh = [i for i, row in enumerate(found) if row is None]
        changed = {*(self._live - taken), *(places[i] for i in fresh)}
        host = self._next_host()
        self._take_rows(host, work, places)
        if changed:
            new = [work[i] for i in fresh]
            at = [places[i] for i in fresh]
            fill_rows(host, new, [[]] * len(new), at, self._limits, self._block_size)
            self._merge(host, changed)
        host.ints[5] = torch.tensor(self._limits)
        self._ints[5].copy_(host.ints[5], non_blocking=True)
        self._tables.copy_(host.tables, non_blocking=True)
        return places

    def _take_rows(self, host: HostRows, work: Rows, places: Sequence[int]) -> None:
        """Note which rows live, how far each may go, and the blocks of each."""
        self._live = set(places)
        self._limits = [0] * self._num_rows
        for item, place in zip(work, places, strict=True):
            host.put_table(place, item)
            self._limits[place] = limit_of(item, self._block_size)

    def _merge(self, host: HostRows, changed: set[int]) -> None:
        """Put the host's values into the changed rows, and leave the others to the device."""
        host.ints[6] = 0
        host.ints[6, sorted(changed)] = 1
        ints = host.ints.to(self._ints.device, non_blocking=True)
        is_new = ints[6] > 0
        for values, given in (
            (self._ints[:5], ints[:5]),
            (self._floats, host.floats.to(self._ints.device, non_blocking=True)),
            (self._lens, host.lens.to(self._ints.device, non_blocking=True)),
        ):
            values.copy_(torch.where(is_new, given, values))

    def reaches(self, row: int, position: int) -> bool:
        """Whether a row, once it has made the token before `position`, goes on from there."""
        return position < self._limits[row]

    def launch(self, num_steps: int) -> Segment:
        """Start `num_steps` steps; their tokens land in the segment."""
        self._ints[6].zero_()
        for _ in range(num_steps):
            self._graph.run()
        tokens = self._host_out[self._num_segments % len(self._host_out)]
        self._num_segments += 1
        tokens[:num_steps].copy_(self._out[:num_steps], non_blocking=True)
        landed = None
        if self._out.is_cuda:
            landed = torch.cuda.Event()
            landed.record()
        return Segment(num_steps, tokens, landed)

    @torch.inference_mode()
    def _step(self) -> None:
        ids, positions, sample_positions, slots, _, limits, steps = self._ints
        with overlapped_launches(self._num_rows < OVERLAP_ROWS):
            logits = self._forward(ids, positions, slots, self._batch, self._caches, self._rows)
            sampled = sample_rows(logits, self._sampling)
            advance(
                sampled, ids, positions, sample_positions, slots, self._lens[0], limits,
                self._batch.block_tables, self._out, steps, self._block_size,
            )  # fmt: skip

    def _next_host(self) -> HostRows:
        self._num_filled += 1
        return self._host[self._num_filled % len(self._host)]
