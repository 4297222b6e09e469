"""What `/metrics` shows, and the accounting of each response.

Counts add up: every request counted is, in the end, counted once by outcome; the
first-token histogram holds exactly the responses that produced a token; tokens are
counted from the terminal event, whatever the outcome. They do over all gateways: the end
of an answer whose gateway died is counted by another (`app/gateway/ledger.py`).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.redis_client import round_trips
from engine.contract import (
    Delta,
    Event,
    Failed,
    Finished,
    FinishReason,
    InvalidRequest,
    Tier,
    WorkerState,
)

_FIRST_TOKEN_S = (0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0)
_LABEL = re.compile(r'(\w+)="([^"]*)"', re.ASCII)
_GAP_S = (0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)


class Outcome(StrEnum):
    """How a response ended."""

    COMPLETED = "completed"
    LENGTH = "length"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    FAILED = "failed"


class GatewayMetrics:
    """One gateway's counters.

    Args:
        workers: The workers' states, whose own metrics are shown as well.
    """

    def __init__(self, workers: Callable[[], Iterable[WorkerState]]) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        by_tier = ("api", "tier")
        self.requests = Counter(
            "repartee_requests", "Answers asked for.", by_tier, registry=registry
        )
        self.limited = Counter(
            "repartee_limited",
            "Answers refused by the caller's limits; not among the requests.",
            by_tier,
            registry=registry,
        )
        self.responses = Counter(
            "repartee_responses",
            "Answers ended, by outcome.",
            (*by_tier, "outcome"),
            registry=registry,
        )
        self.running = Gauge(
            "repartee_responses_running", "Answers not ended.", by_tier, registry=registry
        )
        self.first_token = Histogram(
            "repartee_time_to_first_token_seconds",
            "From the request to its first token.",
            by_tier,
            buckets=_FIRST_TOKEN_S,
            registry=registry,
        )
        self.queue_time = Histogram(
            "repartee_queue_seconds",
            "From an answer's acceptance by a worker until it first ran.",
            by_tier,
            buckets=_FIRST_TOKEN_S,
            registry=registry,
        )
        self.chunk_gap = Histogram(
            "repartee_chunk_gap_seconds",
            "Between two chunks of an answer.",
            by_tier,
            buckets=_GAP_S,
            registry=registry,
        )
        self.tokens = Counter(
            "repartee_tokens",
            "Tokens of ended answers: prompt, cached (part of prompt), completion.",
            ("tier", "kind"),
            registry=registry,
        )
        self.http_requests = Counter(
            "repartee_http_requests",
            "HTTP requests and socket upgrades answered.",
            ("route", "status"),
            registry=registry,
        )
        self.connections = Gauge("repartee_connections", "Open sockets.", registry=registry)
        self.pending_bytes = Gauge(
            "repartee_pending_bytes", "Bytes queued for slow sockets.", registry=registry
        )
        self.merged_deltas = Counter(
            "repartee_merged_deltas", "Deltas merged for slow sockets.", registry=registry
        )
        self.slow_closes = Counter(
            "repartee_slow_closes", "Sockets and streams cut for reading slowly.", registry=registry
        )
        tasks = Gauge("repartee_asyncio_tasks", "Tasks of the event loop.", registry=registry)
        tasks.set_function(_num_tasks)
        registry.register(round_trips)
        registry.register(_WorkerMetrics(workers))

    def meter(self, api: str, tier: Tier) -> ResponseMeter:
        """Count one request, and give what follows it to its end."""
        return ResponseMeter(self, api, tier)

    def meter_for_another(self, api: str, tier: Tier) -> ResponseMeter:
        """What counts the end of an answer that another gateway counted as asked for."""
        return ResponseMeter(self, api, tier, is_asked_here=False)

    def render(self) -> bytes:
        """Prometheus text."""
        return generate_latest(self.registry)


class ResponseMeter:
    """Counts one response; `note` every event, or `fail` if it never started.

    Args:
        metrics: Where.
        api: Which way it was asked for.
        tier: Of its caller.
        is_asked_here: Whether this gateway was asked; else only the end is counted.

    Attributes:
        summary: What it came to, for a log line; the outcome once it has ended.
    """

    def __init__(
        self, metrics: GatewayMetrics, api: str, tier: Tier, *, is_asked_here: bool = True
    ) -> None:
        self._metrics = metrics
        self._labels = (api, tier.value)
        self._first_token = metrics.first_token.labels(*self._labels)
        self._gap = metrics.chunk_gap.labels(*self._labels)
        self._started_at = time.monotonic()
        self._last_chunk_at: float | None = None
        self._ended = False
        self._is_asked_here = is_asked_here
        self.summary: dict[str, str | int | float] = {"api": api, "tier": tier.value}
        if is_asked_here:
            metrics.requests.labels(*self._labels).inc()
            metrics.running.labels(*self._labels).inc()

    def note(self, event: Event) -> None:
        """Take one event of the response in."""
        if isinstance(event, Delta):
            self.note_delta(event)
        elif isinstance(event, Finished):
            if event.queued_ms is not None:
                self._metrics.queue_time.labels(*self._labels).observe(event.queued_ms / 1000)
                self.summary["queued_ms"] = event.queued_ms
            self._end(_OUTCOMES[event.reason])
        elif isinstance(event, Failed):
            self.fail(event.error)
        if isinstance(event, Finished | Failed) and event.usage is not None:
            count = self._metrics.tokens.labels
            tier = self._labels[1]
            count(tier, "prompt").inc(event.usage.prompt_tokens)
            count(tier, "cached").inc(event.usage.cached_tokens)
            count(tier, "completion").inc(event.usage.completion_tokens)
            self.summary |= asdict(event.usage)

    def fail(self, error: BaseException) -> None:
        """End without a result: rejected if the request was at fault, else failed."""
        rejected = isinstance(error, InvalidRequest)
        self._end(Outcome.REJECTED if rejected else Outcome.FAILED)

    def abandon(self) -> None:
        """End as cancelled, where no terminal event came to say so."""
        self._end(Outcome.CANCELLED)

    def leave(self) -> None:
        """It has ended, and another gateway has counted that."""
        if not self._ended:
            self._ended = True
            self._metrics.running.labels(*self._labels).dec()

    def note_delta(self, event: Delta) -> None:
        """`note`, of a delta."""
        now = time.monotonic()
        if self._last_chunk_at is not None:
            self._gap.observe(now - self._last_chunk_at)
        elif event.num_tokens > 0:
            self._first_token.observe(now - self._started_at)
            self.summary["first_token_ms"] = round((now - self._started_at) * 1000, 1)
        else:
            return
        self._last_chunk_at = now

    def _end(self, outcome: Outcome) -> None:
        if self._ended:
            return
        self._ended = True
        self.summary["outcome"] = outcome.value
        if self._is_asked_here:
            self.summary["seconds"] = round(time.monotonic() - self._started_at, 3)
            self._metrics.running.labels(*self._labels).dec()
        self._metrics.responses.labels(*self._labels, outcome.value).inc()


_OUTCOMES = {
    FinishReason.STOP: Outcome.COMPLETED,
    FinishReason.LENGTH: Outcome.LENGTH,
    FinishReason.CANCELLED: Outcome.CANCELLED,
}


def _num_tasks() -> float:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        # Outside an event loop there are none.
        return 0


class _WorkerMetrics(Collector):
    """The workers' heartbeats as metrics, labelled by worker and model."""

    def __init__(self, workers: Callable[[], Iterable[WorkerState]]) -> None:
        self._workers = workers

    def describe(self) -> Iterable[Metric]:
        """Nothing: the names are not known before the first scrape."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """One family per name, one sample per worker."""
        families: dict[str, Metric] = {}
        for state in self._workers():
            own = {"worker": state.worker_id, "model": state.card.id}
            for full_name, value in {**_gauges(state), **state.metrics}.items():
                name, labels = _split(full_name)
                family = families.get(name)
                if family is None:
                    family = families[name] = _family(name)
                family.add_sample(name, {**labels, **own}, float(value))
        yield from families.values()


def _gauges(state: WorkerState) -> dict[str, float]:
    return {
        "repartee_worker_running": state.num_running,
        "repartee_worker_waiting": state.num_waiting,
        "repartee_worker_used_blocks": state.used_blocks,
        "repartee_worker_blocks": state.num_blocks,
        "repartee_worker_decode_tokens_per_second": state.decode_tokens_per_s,
        "repartee_worker_draining": float(state.draining),
        "repartee_worker_beat_age_seconds": max(0.0, time.time() - state.beat_at),
        "repartee_worker_step_age_seconds": max(0.0, time.time() - state.last_step_at),
    }


def _split(full_name: str) -> tuple[str, dict[str, str]]:
    """A worker's metric name, and the labels of the set that it may end in."""
    name, _, labels = full_name.partition("{")
    return name, dict(_LABEL.findall(labels))


def _family(name: str) -> Metric:
    text = "Reported by the worker."
    if name.endswith("_total"):
        return CounterMetricFamily(name.removesuffix("_total"), text)
    return GaugeMetricFamily(name, text)
