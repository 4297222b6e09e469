"""From a model's path to an engine that can step: what the worker process runs.

The KV pool is sized here, and precision and threads are set, for one process.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from engine.config import EngineConfig, Speculation
from engine.engine import Engine
from engine.host_tier import HostTier
from engine.kv_blocks import KV_DTYPES, block_shape, kv_bytes_per_token
from engine.kv_codec import KvCodec
from engine.loading.head import HeadKind
from engine.loading.loader import LoadedModel, load_model
from engine.model.config import ModelConfig
from engine.queue_limits import QueueLimits
from engine.runner import CpuRunner
from engine.turn_memo import TurnMemo
from engine.worker.build_error import BuildError
from kernels import native

logger = logging.getLogger(__name__)

BLOCK_SIZE = 16
# The pool holds a whole context window and at least this much, but never more than
# this share of the memory that is free after loading.
LEAST_POOL_BYTES = 256 << 20
POOL_SHARE = 0.5
# The GPU kernels' products are of tensor cores in bf16: Ampere and later.
LEAST_CAPABILITY = (8, 0)

Progress = Callable[[float, str], None]


def build_engine(
    path: Path,
    *,
    kv_dtype: str = "auto",
    kv_blocks: int = 0,
    host_kv_mb: int = 0,
    max_running: int = 256,
    speculation: Speculation = "off",
    limits: QueueLimits | None = None,
    threads: int = 0,
    device: str = "auto",
    compute: str = "auto",
    head: HeadKind | None = None,
    progress: Progress | None = None,
) -> Engine:
    """Load a model and put an engine over it.

    Args:
        path: GGUF file or Hugging Face folder.
        kv_dtype: bf16, int8 or fp8; auto is bfloat16, or float32 where `compute` is fp32.
        kv_blocks: KV blocks of `BLOCK_SIZE` tokens; 0 sizes the pool by the window
            and the free memory.
        host_kv_mb: MiB for packed KV blocks that leave the pool; 0 drops them.
        max_running: Most requests that run at once.
        speculation: See `EngineConfig`.
        limits: How long and how many may wait; None leaves the defaults.
        threads: CPU threads; 0 is one for each usable core.
        device: auto, cpu or cuda.
        compute: int16, int8 or fp32; auto is int16. See `kernels.pack`.
        head: What a dense output layer is rounded to; None keeps it.
        progress: Called with (fraction done, what comes next).

    Raises:
        ModelFileError: the model is missing, damaged or not supported.
        BuildError: the device or the memory doesn't allow what was asked for.
    """
    if choose_device(device) == "cuda":
        if compute != "auto":
            raise BuildError(f"--compute {compute} is of the CPU; on a GPU leave it at auto")
        # Its kernels need Triton, which a machine without a GPU may lack.
        from engine.worker.build_cuda import load_on_gpu

        kv_type = KV_DTYPES["bf16" if kv_dtype == "auto" else kv_dtype]
        loaded, config, runner = load_on_gpu(
            path,
            kv_dtype=kv_type,
            kv_blocks=kv_blocks,
            max_running=max_running,
            speculation=speculation,
            head=head,
            progress=progress,
        )
    else:
        if progress:
            progress(0.0, "preparing the CPU kernels")
        set_threads(threads)
        kv_type = torch.float32 if compute == "fp32" else torch.bfloat16
        if kv_dtype != "auto":
            kv_type = KV_DTYPES[kv_dtype]
        arithmetic = None if compute == "auto" else compute
        loaded = load_model(path, "cpu", arithmetic, head=head, progress=progress)
        config = EngineConfig(
            num_blocks=kv_blocks or default_kv_blocks(loaded, kv_type, free_memory_bytes()),
            block_size=BLOCK_SIZE,
            max_running=max_running,
            speculation=speculation,
        )
        runner = _cpu_runner(loaded, config, kv_type)
    if host_kv_mb << 20 > free_memory_bytes():
        raise BuildError(
            f"--host-kv-mb {host_kv_mb} is more than the {free_memory_bytes() >> 20} MiB of free "
            "memory"
        )
    return Engine(
        limits.apply(config) if limits else config,
        card=loaded.card,
        runner=runner,
        vocabulary=loaded.tokenizer,
        encode_chat=loaded.chat_template.encode,
        memo=TurnMemo(),
        host_tier=make_host_tier(loaded.config, kv_type, host_kv_mb << 20),
    )


def _cpu_runner(loaded: LoadedModel, config: EngineConfig, kv_dtype: torch.dtype) -> CpuRunner:
    pool_bytes = config.num_kv_tokens * kv_bytes_per_token(loaded.config, kv_dtype)
    logger.info("%d KV blocks, %d MiB", config.num_blocks, pool_bytes >> 20)
    try:
        return CpuRunner(loaded.model, config, kv_dtype)
    except RuntimeError as error:
        raise BuildError(
            f"--kv-blocks {config.num_blocks} needs {pool_bytes >> 20} MiB, which is not to be had"
        ) from error


def make_host_tier(config: ModelConfig, kv_dtype: torch.dtype, max_bytes: int) -> HostTier | None:
    """A host tier for a model's blocks, packed on a thread of its own; None for 0 bytes."""
    if not max_bytes:
        return None
    executor = ThreadPoolExecutor(1, thread_name_prefix="kv-packing")
    return HostTier(max_bytes, KvCodec(*block_shape(config, BLOCK_SIZE, kv_dtype)), executor)


def choose_device(wanted: str) -> str:
    """The device that `wanted` (auto, cpu or cuda) comes to: auto is a usable GPU, else the CPU.

    Raises:
        BuildError: cuda is asked for and can't be had.
    """
    if wanted == "cpu":
        return "cpu"
    missing = missing_gpu()
    if missing and wanted == "cuda":
        raise BuildError(f"--device cuda: {missing}")
    return "cpu" if missing else "cuda"


def missing_gpu() -> str:
    """Why there is no GPU to run on; empty where there is one."""
    if not torch.cuda.is_available():
        return "torch finds no GPU here"
    capability = torch.cuda.get_device_capability()
    if capability < LEAST_CAPABILITY:
        found = ".".join(map(str, capability))
        return f"{torch.cuda.get_device_name()} has compute capability {found}, below 8.0"
    return ""


def set_threads(count: int) -> None:
    """Threads of the kernels; 0 leaves their own choice. Torch has as many only without them.

    Besides the kernels a step runs only small torch operations, and sharing one of those
    out costs tens of milliseconds where another process holds the other core.
    """
    if native.status().available:
        if count:
            native.set_num_threads(count)
        torch.set_num_threads(1)
        return
    torch.set_num_threads(count or len(os.sched_getaffinity(0)))


def default_kv_blocks(loaded: LoadedModel, kv_dtype: torch.dtype, free_bytes: int) -> int:
    """Blocks for one whole window and at least `LEAST_POOL_BYTES`, if memory allows.

    Raises:
        BuildError: not even a sixteenth of the window fits.
    """
    block_bytes = BLOCK_SIZE * kv_bytes_per_token(loaded.config, kv_dtype)
    window_blocks = -(-loaded.context_window // BLOCK_SIZE)
    wanted = max(window_blocks, LEAST_POOL_BYTES // block_bytes)
    blocks = min(wanted, int(free_bytes * POOL_SHARE) // block_bytes)
    if blocks < window_blocks // 16:
        raise BuildError(
            f"{free_bytes >> 20} MiB of free memory hold {blocks} KV blocks, too few for a "
            f"window of {loaded.context_window} tokens"
        )
    return blocks


def free_memory_bytes() -> int:
    """What this process may still take: the machine's, or its control group's if less."""
    free = _meminfo_available()
    for limit_file, used_file in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ):
        try:
            limit = Path(limit_file).read_text().strip()
            used = int(Path(used_file).read_text())
        except OSError:
            continue
        if limit != "max":
            free = min(free, max(0, int(limit) - used))
    return free


def _meminfo_available() -> int:
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        # Not Linux: all that the machine has is the best that is known.
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    match = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0
