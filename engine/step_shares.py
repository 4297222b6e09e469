"""Whose tokens a step computes, and how many tokens of prompts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.config import EngineConfig
from engine.contract import Tier
from engine.mixed_steps import mixed_step_ms
from engine.prompt_pieces import MIN_PIECE_TOKENS
from engine.sequence import Sequence
from engine.step_budget import STRETCH, StepBudget


@dataclass(frozen=True, slots=True)
class StepShares:
    """Who may take part in a step.

    Attributes:
        decodes: Whose next token it computes.
        prefills: Of whose prompts it may compute pieces.
        num_paused: Sequences that would decode, but pause for a VIP's prompt.
    """

    decodes: list[Sequence]
    prefills: list[Sequence]
    num_paused: int


def share_step(
    running: Iterable[Sequence], budget: StepBudget, config: EngineConfig, now: float
) -> StepShares:
    """Sort the running sequences by what they need of a step.

    While a VIP's prompt takes more than one step beside all decodes, everybody below
    pauses, each for `max_pause_ms` at most.

    Args:
        running: The batch.
        budget: Measured step times.
        config: The engine's.
        now: Seconds on the engine's clock.
    """
    decodes = [seq for seq in running if seq.num_uncomputed == 1]
    prefills = [seq for seq in running if seq.num_uncomputed > 1]
    vip_tokens = sum(s.num_uncomputed for s in prefills if s.request.tier is Tier.VIP)
    all_shares = StepShares(decodes, prefills, 0)
    if not vip_tokens or len(decodes) + vip_tokens <= num_step_tokens(all_shares, budget, config):
        return all_shares
    overdue_at = now - config.max_pause_ms / 1000
    due = [s for s in decodes if s.request.tier is Tier.VIP or s.served_at <= overdue_at]
    prefills = [s for s in prefills if s.request.tier is Tier.VIP or s.served_at <= overdue_at]
    return StepShares(due, prefills, len(decodes) - len(due))


def num_step_tokens(
    shares: StepShares,
    budget: StepBudget,
    config: EngineConfig,
    least_tokens: float = MIN_PIECE_TOKENS,
) -> float:
    """Tokens that a step has room for, those of its decodes included.

    Where decodes pause for a VIP's prompt, the step may take as long as it might with
    them in it: chats see no longer gaps, and small steps, which waste most of their
    time, are few.

    Args:
        shares: Who takes part.
        budget: Measured step times.
        config: The engine's.
        least_tokens: Of prompts, whatever was measured, so that they get on.
    """
    num_decodes = len(shares.decodes)
    if num_decodes:
        least_ms = mixed_step_ms(shares.decodes, shares.prefills, config)
        if shares.num_paused:
            all_ms = budget.decode_ms(num_decodes + shares.num_paused) or 0.0
            least_ms = max(least_ms, STRETCH * all_ms)
        # What little a wrong guess for the shorter ones costs, they make up for soon.
        context = max((seq.num_computed for seq in shares.prefills), default=0)
        beside = budget.tokens_beside(num_decodes, least_ms, context)
        within = num_decodes + max(beside, least_tokens)
    else:
        within = budget.tokens_alone(config.prefill_step_ms)
    return min(within, config.max_step_tokens)
