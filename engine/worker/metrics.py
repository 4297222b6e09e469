"""The names and meanings of what a worker counts: `WorkerState.metrics`.

A name may end in one label set, as in `repartee_worker_responses_total{outcome="stop"}`;
whoever exposes it adds the worker's own label to that set. Names ending in `_total`
only rise during a worker's life.
"""

from __future__ import annotations

from collections.abc import Mapping

HELP: Mapping[str, str] = {
    "repartee_worker_responses_total": "Responses that ended, by outcome: stop, length, cancelled, "
    "failed, or lost to another worker.",
    "repartee_submits_total": "Requests read from the inbox, repeats not counted.",
    "repartee_taken_over_total": "Responses that another worker had begun, or whose command "
    "was lost.",
    "repartee_handed_over_total": "Responses left to other workers when this one stopped.",
    "repartee_cancels_total": "Cancels read from the inbox, those of unknown ids included.",
    "repartee_warm_commands_total": "Drafts read from the inbox, those not taken included.",
    "repartee_unreadable_commands_total": "Inbox entries passed over.",
    "repartee_prompt_tokens_total": "Prompt tokens of ended responses.",
    "repartee_completion_tokens_total": "Generated tokens of ended responses.",
    "repartee_cached_tokens_total": "Prompt tokens found in the prefix cache, of ended responses.",
    "repartee_events_published_total": "Events written to logs and gateways.",
    "repartee_redis_errors_total": "Writes that found Redis down.",
    "repartee_engine_faults_total": "Engine steps that raised.",
    "repartee_responses_live": "Responses that have not ended, those being tokenised included.",
    "repartee_unsent_bytes": "Bytes of events not yet written to Redis.",
    "repartee_worker_asyncio_tasks": "Tasks of the worker's event loop.",
}

OUTCOMES = ("stop", "length", "cancelled", "failed", "lost")


def outcome_name(outcome: str) -> str:
    """The counter of one outcome."""
    return f'repartee_worker_responses_total{{outcome="{outcome}"}}'


def zeros() -> dict[str, float]:
    """Every metric at 0, so that a rate can be taken from the first event on."""
    plain = {name: 0.0 for name in HELP if name != "repartee_worker_responses_total"}
    return {**plain, **{outcome_name(outcome): 0.0 for outcome in OUTCOMES}}
