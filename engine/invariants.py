"""Compares all of the engine's bookkeeping with itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.invariant_error import require
from engine.sequence import Sequence, Status

if TYPE_CHECKING:
    from engine.engine import Engine


def check_invariants(engine: Engine) -> None:
    """Check blocks, queues and sequences against each other.

    Raises:
        InvariantError: saying what disagrees.
    """
    scheduler = engine.scheduler
    queued = {seq.id for seq in scheduler.waiting}
    running = {seq.id for seq in scheduler.running}
    known = {seq.id for seq in engine.sequences.values()}
    require(len(queued) == len(scheduler.waiting), "a sequence waits twice")
    require(len(running) == len(scheduler.running), "a sequence runs twice")
    require(not queued & running, f"waiting and running: {queued & running}")
    require(queued | running == known, f"queues and requests differ: {(queued | running) ^ known}")
    require(len(scheduler.running) <= engine.config.max_running, "more run than may")
    for seq in scheduler.waiting:
        require(seq.status is Status.WAITING, f"{seq.request_id} waits as {seq.status}")
        require(not seq.block_table, f"{seq.request_id} waits and holds blocks")
    for seq in scheduler.running:
        _check_running(engine, seq)
    tables = [seq.block_table for seq in scheduler.running]
    scheduler.blocks.check([*tables, *scheduler.warm_ups.tables])
    engine.retention.check()
    if scheduler.swaps.host is not None:
        scheduler.swaps.host.check()
    if not known and not scheduler.warm_ups.tables:
        require(scheduler.blocks.num_used == 0, "blocks are in use while nothing runs")


def _check_running(engine: Engine, seq: Sequence) -> None:
    name = seq.request_id
    require(seq.status is Status.RUNNING, f"{name} runs as {seq.status}")
    require(0 <= seq.num_computed < len(seq.tokens), f"{name}: {seq.num_computed} computed")
    require(len(seq.tokens) < seq.max_tokens, f"{name} runs past its end")
    capacity = len(seq.block_table) * engine.config.block_size
    require(seq.num_computed <= capacity, f"{name} computed past its blocks")
    most = engine.scheduler.blocks.blocks_for(seq.max_tokens)
    require(len(seq.block_table) <= most, f"{name} holds more blocks than its answer can fill")
    if seq.partial is not None:
        end = seq.num_computed + seq.partial.num_tokens
        require(end <= len(seq.tokens), f"{name}: a piece ends at {end} of {len(seq.tokens)}")
        require(seq.partial.num_layers > 0, f"{name}: a piece is begun at no layer")
    require(
        seq.num_suspensions <= engine.config.max_suspensions,
        (f"{name} was suspended {seq.num_suspensions} times"),
    )
