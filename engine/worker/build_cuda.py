"""A model and its runner on a GPU: what is loaded, how memory is shared out, what is refused."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import torch

from engine.config import EngineConfig, Speculation
from engine.cuda_decode import ROW_COUNTS
from engine.cuda_memory import (
    MIB,
    CardMemory,
    card_memory,
    dense_bytes,
    pool_bytes,
    step_work_bytes,
    work_reserve_bytes,
)
from engine.cuda_runner import CudaRunner, table_bytes
from engine.kv_blocks import kv_bytes_per_token
from engine.loading.head import HeadKind
from engine.loading.loader import LoadedModel, load_model, open_checkpoint
from engine.model.llama import Progress
from engine.worker.build_error import BuildError

logger = logging.getLogger(__name__)

BLOCK_SIZE = 16
# Compute capability from which 8-bit floats are converted in hardware: Ada and Hopper.
FP8_CAPABILITY = (8, 9)
# Tokens that a sequence decodes in one plan at most, with the host told once.
MAX_DECODE_STEPS = 8
# The bf16 copy of quantised weights, for large products, where memory is that plentiful.
MOST_WEIGHTS_SHARE = 0.5
# For graphs before the worker says that it is ready, small sizes first; the others are
# captured when they first occur. On a card whose kernels were compiled before, all fit.
WARM_SECONDS = 5.0


def gpu_config(
    num_blocks: int, max_running: int = 256, speculation: Speculation = "off"
) -> EngineConfig:
    """The engine's settings on a GPU, where a step computes thousands of tokens.

    A step with pieces of prompts takes up to 50 ms, 20 tokens a second for chats that
    decode beside it: a piece below some hundred tokens would leave the card waiting.
    Where nothing but decodes runs, a new prompt waits for 25 ms of them at most.
    """
    return EngineConfig(
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_running=max_running,
        max_step_tokens=8192,
        mixed_step_ms=50.0,
        decode_plan_ms=25.0,
        speculation=speculation,
    )


def load_on_gpu(
    path: Path,
    *,
    kv_dtype: torch.dtype,
    kv_blocks: int,
    max_running: int,
    speculation: Speculation,
    head: HeadKind | None,
    progress: Progress | None,
) -> tuple[LoadedModel, EngineConfig, CudaRunner]:
    """Load a model onto the current GPU, make its KV pool, and capture the first graphs.

    Args:
        path: GGUF file or Hugging Face folder.
        kv_dtype: Of the KV pool.
        kv_blocks: KV blocks; 0 takes what weights and work leave.
        max_running: Most requests that run at once.
        speculation: See `EngineConfig`.
        head: What a dense output layer is rounded to; None keeps it.
        progress: Called with (fraction done, what comes next).

    Raises:
        ModelFileError: the model is missing, damaged or not supported.
        BuildError: it doesn't fit the card's free memory, or the card can't do what is asked.
    """
    if kv_dtype is torch.float8_e4m3fn and torch.cuda.get_device_capability() < FP8_CAPABILITY:
        raise BuildError(
            f"--kv-dtype fp8 needs compute capability 8.9, which {torch.cuda.get_device_name()} "
            "lacks; int8 needs none"
        )
    started = time.perf_counter()
    before = card_memory()
    compute = _choose_compute(path, before)
    try:
        loaded = load_model(path, "cuda", compute, head=head, progress=progress)
        torch.cuda.synchronize()
        loaded_at = time.perf_counter()
        config = gpu_config(1, max_running, speculation)
        step_bytes = step_work_bytes(loaded.model, config, kv_dtype)
    except torch.cuda.OutOfMemoryError as error:
        raise BuildError(f"the model does not fit: {before}") from error
    num_blocks = choose_blocks(kv_blocks, loaded, kv_dtype, step_bytes, card_memory())
    config = gpu_config(num_blocks, max_running, speculation)
    try:
        runner = CudaRunner(
            loaded.model, config, kv_dtype=kv_dtype, max_decode_steps=MAX_DECODE_STEPS
        )
    except torch.cuda.OutOfMemoryError as error:
        raise BuildError(
            f"another process took the memory for {num_blocks} KV blocks: {card_memory()}"
        ) from error
    if progress:
        progress(1.0, "capturing graphs")
    runner.warm_up([count for count in ROW_COUNTS if count <= max_running], limit_s=WARM_SECONDS)
    logger.info(
        "weights %d MiB (%s) in %.1f s, a step's work %d MiB, %d KV blocks of %d KiB, "
        "graphs in %.1f s; %s",
        loaded.model.weight_bytes // MIB, compute, loaded_at - started, step_bytes // MIB,
        num_blocks, block_bytes(loaded, kv_dtype) >> 10, time.perf_counter() - loaded_at,
        card_memory(),
    )  # fmt: skip
    return loaded, config, runner


def block_bytes(loaded: LoadedModel, kv_dtype: torch.dtype) -> int:
    """Memory of one KV block."""
    return BLOCK_SIZE * kv_bytes_per_token(loaded.config, kv_dtype)


def choose_blocks(
    wanted: int, loaded: LoadedModel, kv_dtype: torch.dtype, step_bytes: int, card: CardMemory
) -> int:
    """KV blocks: `wanted`, or for 0 as many as fit.

    Args:
        wanted: As asked for.
        loaded: The model, on the card.
        kv_dtype: Of the KV pool.
        step_bytes: Of the largest step; see `engine.cuda_memory.step_work_bytes`.
        card: Its memory, with the weights in place.

    Raises:
        BuildError: what was asked for doesn't fit, or not even a sixteenth of the
            model's window does.
    """
    size = block_bytes(loaded, kv_dtype)
    window_blocks = -(-loaded.context_window // BLOCK_SIZE)
    reserve = work_reserve_bytes(step_bytes, table_bytes(window_blocks + 1))
    fitting = pool_bytes(card.free, reserve) // size
    if wanted > fitting:
        raise BuildError(
            f"--kv-blocks {wanted} needs {wanted * size // MIB} MiB beside {reserve // MIB} MiB "
            f"for work and graphs: {card}, room for {fitting} blocks"
        )
    if fitting < window_blocks // 16:
        raise BuildError(
            f"{card}; less {reserve // MIB} MiB for work and graphs that holds {fitting} KV "
            f"blocks, too few for a window of {loaded.context_window} tokens"
        )
    return wanted or fitting


def _choose_compute(path: Path, card: CardMemory) -> str:
    """How products are formed: with a bf16 copy of quantised weights, or without.

    Raises:
        ModelFileError: the model is missing or damaged.
        BuildError: not even the file's own bytes fit.
    """
    size = file_bytes(path)
    if size > card.free:
        raise BuildError(f"the model's {size // MIB} MiB of weights do not fit: {card}")
    with_copy = size + dense_bytes(open_checkpoint(path).config)
    return "speed" if with_copy < MOST_WEIGHTS_SHARE * card.free else "memory"


def file_bytes(path: Path) -> int:
    """Bytes of a model's weights on disk; 0 where there are none."""
    files = path.glob("*.safetensors") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())
