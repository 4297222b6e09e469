"""The engine's settings, checked when they are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Speculation = Literal["off", "ngram", "auto"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """How one engine schedules and what it may use.

    Attributes:
        num_blocks: KV blocks in all.
        block_size: Tokens a block holds.
        max_running: Most sequences in the batch; memory and step time usually
            limit it before.
        vip_max_waiting: Most VIP requests waiting; one more is refused as Overloaded.
        standard_max_waiting: The same for standard requests.
        batch_max_waiting: The same for batch requests.
        vip_max_wait_ms: A VIP request whose predicted wait is longer is refused as
            Overloaded, milliseconds.
        standard_max_wait_ms: The same for standard requests.
        batch_max_wait_ms: The same for batch requests.
        max_step_tokens: Most tokens one step computes.
        target_step_ms: Step time up to which a batch may grow, milliseconds; up to
            four times that of a single sequence it always may.
        prefill_step_ms: Step time that pieces of prompts are cut to while nothing
            decodes: the longest that a new request waits for the running step,
            milliseconds. Beside decodes, see `engine.step_budget`.
        mixed_step_ms: Time that a step with pieces of prompts beside decodes may
            always take, milliseconds. For devices whose decodes are so short that a
            small multiple of them holds no piece worth computing; 0 leaves it at
            that multiple. With more prompts than chats that decode it stretches, see
            `engine.mixed_steps`.
        decode_plan_ms: Time that a plan of several decode steps may take, so that who
            comes meanwhile waits no longer, milliseconds; 0 leaves it at as many steps
            as the runner can.
        max_pause_ms: How long running requests below vip may be left out of steps
            while a VIP waits for its first token, milliseconds; 0 never.
        ageing_ms: A waiting request passes newer ones of the next higher tier
            after this long, milliseconds.
        batch_wait_ms: How long a new request may wait for others to begin with, where
            that saves a twentieth of the machine's time, milliseconds; 0 never. Where
            nothing runs, nobody waits. See `engine.batch_forming`.
        max_suspensions: How often one sequence may be suspended for others.
        flush_ms: Longest wait of a token for its chunk to fill, milliseconds.
        prefix_cache: Whether computed prefixes are found again.
        retained_share: Part of the blocks that is kept by preference for conversations
            between their turns.
        retained_s: How long after a turn, seconds.
        warm_tokens_per_minute: Most tokens that one tenant's warm-ups compute.
        speculation: `off`; `ngram` drafts whenever it can; `auto` drafts where it
            measures a gain.
        max_draft_tokens: Most tokens guessed ahead for one sequence.
        check_invariants: Compare all bookkeeping after each step; for tests.
    """

    num_blocks: int
    block_size: int = 16
    max_running: int = 256
    vip_max_waiting: int = 1024
    standard_max_waiting: int = 1024
    batch_max_waiting: int = 1024
    vip_max_wait_ms: float = 10_000.0
    standard_max_wait_ms: float = 7_000.0
    batch_max_wait_ms: float = 20_000.0
    max_step_tokens: int = 2048
    target_step_ms: float = 80.0
    prefill_step_ms: float = 200.0
    mixed_step_ms: float = 0.0
    decode_plan_ms: float = 0.0
    max_pause_ms: float = 500.0
    ageing_ms: float = 10_000.0
    batch_wait_ms: float = 100.0
    max_suspensions: int = 3
    flush_ms: float = 150.0
    prefix_cache: bool = True
    retained_share: float = 0.5
    retained_s: float = 900.0
    warm_tokens_per_minute: int = 60_000
    speculation: Speculation = "off"
    max_draft_tokens: int = 8
    check_invariants: bool = False

    def __post_init__(self) -> None:
        for name in (
            *("num_blocks", "block_size", "max_running"),
            *("vip_max_waiting", "standard_max_waiting", "batch_max_waiting"),
        ):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        for name in (
            *("target_step_ms", "prefill_step_ms", "ageing_ms"),
            *("vip_max_wait_ms", "standard_max_wait_ms", "batch_max_wait_ms"),
        ):
            self._require(name, getattr(self, name) > 0, "above 0")
        self._require(
            "max_step_tokens",
            self.max_step_tokens >= self.block_size,
            f"at least block_size ({self.block_size})",
        )
        self._require("mixed_step_ms", self.mixed_step_ms >= 0, "at least 0")
        self._require("decode_plan_ms", self.decode_plan_ms >= 0, "at least 0")
        self._require("max_pause_ms", self.max_pause_ms >= 0, "at least 0")
        self._require("batch_wait_ms", 0 <= self.batch_wait_ms <= 200, "from 0 to 200")
        self._require("max_suspensions", self.max_suspensions >= 0, "at least 0")
        self._require("retained_share", 0 <= self.retained_share <= 1, "from 0 to 1")
        self._require("retained_s", self.retained_s >= 0, "at least 0")
        self._require("warm_tokens_per_minute", self.warm_tokens_per_minute >= 0, "at least 0")
        self._require("flush_ms", self.flush_ms >= 0, "at least 0")
        self._require("speculation", self.speculation in ("off", "ngram", "auto"), "known")
        self._require("max_draft_tokens", 1 <= self.max_draft_tokens <= 64, "from 1 to 64")

    def _require(self, name: str, holds: bool, rule: str) -> None:
        if not holds:
            raise ValueError(f"{name} must be {rule}, got {getattr(self, name)!r}")

    @property
    def num_kv_tokens(self) -> int:
        """Tokens that all blocks together hold."""
        return self.num_blocks * self.block_size
