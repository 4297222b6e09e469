"""What a card's memory is shared out to: weights, the work of a step, graphs, the KV pool.

Out of memory is ruled out by this sum: the largest step that the scheduler may plan is run
once and its peak measured before the pool is made, and the pool takes what is left.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.model.config import ModelConfig
from engine.runner import Model
from kernels.kv_cache import AttentionBatch, LayerCache
from kernels.sampling import SamplingRow
from kernels.sampling.batch import SamplingBatch
from kernels.sampling.triton import sample_triton

MIB = 1 << 20
# Rows of a step whose logits are wanted at once, at most; see `engine.cuda_runner`.
MAX_LOGITS_ROWS = 256
# Graphs kept at once; the one longest out of use gives way. What is left for the driver's
# part of each, several times what graphs of 32 layers were seen to take, and for what a
# library keeps for its products.
MAX_GRAPHS = 64
GRAPH_BYTES = 24 * MIB
LIBRARY_BYTES = 256 * MIB
# The graphs' pool and the eager steps' each hold a step's work, and neither is packed
# without gaps.
NUM_WORK_AREAS = 2
FRAGMENTATION = 1.25
# Of what is left, so that a display or another process's context doesn't tip it over.
POOL_SHARE = 0.95


@dataclass(frozen=True, slots=True)
class CardMemory:
    """One card's memory now, bytes.

    Attributes:
        name: The card's.
        free: What no process holds.
        total: All of it.
    """

    name: str
    free: int
    total: int

    def __str__(self) -> str:
        return f"{self.free // MIB} of {self.total // MIB} MiB free on {self.name}"


def card_memory() -> CardMemory:
    """The current card's, with what this process's allocator holds unused given back."""
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return CardMemory(torch.cuda.get_device_name(), free, total)


def gauges() -> dict[str, float]:
    """The card's memory and this process's part of it, by Prometheus name."""
    free, total = torch.cuda.mem_get_info()
    return {
        "repartee_gpu_memory_bytes": total,
        "repartee_gpu_memory_free_bytes": free,
        "repartee_gpu_memory_allocated_bytes": torch.cuda.memory_allocated(),
        "repartee_gpu_memory_reserved_bytes": torch.cuda.memory_reserved(),
    }


def dense_bytes(config: ModelConfig) -> int:
    """Memory of a model's matrices in bf16."""
    hidden, heads = config.hidden_size, config.num_heads + 2 * config.num_kv_heads
    layer = hidden * (heads * config.head_dim + config.num_heads * config.head_dim)
    layer += 3 * hidden * config.intermediate_size
    tables = config.vocab_size * hidden * (1 if config.tied else 2)
    return 2 * (config.num_layers * layer + tables)


def step_work_bytes(
    model: Model,
    config: EngineConfig,
    kv_dtype: torch.dtype,
    peak: Callable[[Callable[[], None]], int] | None = None,
) -> int:
    """Memory that the largest step takes beside weights and KV pool, by running it.

    One prompt of `config.max_step_tokens`, sampled as if it ended in as many sequences as a
    step may hold. Its KV goes to one cache that stands for every layer's.

    Args:
        model: On its device.
        config: The engine's; the size of its pool doesn't matter.
        kv_dtype: Of the KV pool.
        peak: Runs a function and says how much more memory than before it held at most;
            None asks torch's allocator.
    """
    num_tokens = min(config.max_step_tokens, model.config.context_window)
    num_rows = min(MAX_LOGITS_ROWS, num_tokens)
    device = model.device
    num_blocks = -(-num_tokens // config.block_size)
    shape = (num_blocks, model.config.num_kv_heads, config.block_size, model.config.head_dim)
    cache = LayerCache.zeros(shape, kv_dtype, device)
    positions = torch.arange(num_tokens, device=device)
    batch = AttentionBatch(
        query_starts=torch.tensor([0, num_tokens], dtype=torch.int32, device=device),
        context_lens=torch.tensor([num_tokens], dtype=torch.int32, device=device),
        block_tables=torch.arange(num_blocks, dtype=torch.int32, device=device).unsqueeze(0),
        max_query_len=num_tokens,
        max_context_len=num_tokens,
    )
    rows = SamplingBatch.from_rows([SamplingRow(top_p=0.9)] * num_rows)

    def step() -> None:
        logits = model.forward(
            torch.zeros_like(positions), positions, positions, batch,
            [cache] * model.config.num_layers, positions[-num_rows:],
        )  # fmt: skip
        sample_triton(logits, rows)

    return (peak or _peak_bytes)(step)


def work_reserve_bytes(step_bytes: int, table_bytes: int) -> int:
    """Memory kept from the KV pool for the work of steps.

    Args:
        step_bytes: Of the largest step; see `step_work_bytes`.
        table_bytes: Of the graphs' inputs.
    """
    areas = int(NUM_WORK_AREAS * FRAGMENTATION * step_bytes)
    return areas + MAX_GRAPHS * GRAPH_BYTES + LIBRARY_BYTES + table_bytes


def pool_bytes(free: int, reserve: int) -> int:
    """What the KV pool may take of `free` bytes; 0 where nothing is left."""
    return max(0, int((free - reserve) * POOL_SHARE))


def _peak_bytes(run: Callable[[], None]) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
