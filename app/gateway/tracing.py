"""Answers as OpenTelemetry spans, for who has a collector.

One span an answer, a child of the caller's `traceparent` if there is one, with three of its
own: queue, prefill (until the first token) and decode. Attributes follow OpenTelemetry's
semantic conventions for generative AI where they have a name. Spans are sent over HTTP by
a thread of the exporter's; a collector that is away costs spans, never an answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

from app.startup_error import StartupError
from engine.contract import GenerateRequest

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

Summary = Mapping[str, str | int | float]

# The caller's W3C trace context; empty without one.
trace_parent: ContextVar[str] = ContextVar("trace_parent", default="")

_NS_PER_S = 1_000_000_000
_ATTRIBUTES = {
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "repartee.usage.cached_tokens",
    "outcome": "repartee.outcome",
    "queued_ms": "repartee.queued_ms",
    "first_token_ms": "repartee.first_token_ms",
}


class Tracing(Protocol):
    """Told of every answer once, when it has ended."""

    def ended(self, request: GenerateRequest, parent: str, summary: Summary) -> None:
        """Take one answer in.

        Args:
            request: What was asked.
            parent: `trace_parent` when it was asked.
            summary: See `ResponseMeter`.
        """

    def close(self) -> None:
        """Send what is left."""


class NoTracing:
    """Traces nothing."""

    def ended(self, request: GenerateRequest, parent: str, summary: Summary) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class OtlpTracing:
    """Spans to a collector.

    Args:
        provider: Makes spans and sends them.
    """

    def __init__(self, provider: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("repartee.gateway")
        self._propagator = TraceContextTextMapPropagator()

    def ended(self, request: GenerateRequest, parent: str, summary: Summary) -> None:
        """See Tracing."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        start_ns = int(request.created_at * _NS_PER_S)
        end_ns = start_ns + int(float(summary["seconds"]) * _NS_PER_S)
        context = self._propagator.extract({"traceparent": parent} if parent else {})
        span = self._tracer.start_span(
            f"chat {request.model}", context, SpanKind.SERVER, start_time=start_ns
        )
        span.set_attributes(
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": "repartee",
                "gen_ai.request.model": request.model,
                "gen_ai.response.id": request.request_id,
                "gen_ai.conversation.id": request.conversation_id or "",
                "repartee.api": summary["api"],
                "repartee.tier": summary["tier"],
                **{_ATTRIBUTES[name]: summary[name] for name in _ATTRIBUTES if name in summary},
            }
        )
        if summary["outcome"] == "failed":
            span.set_status(Status(StatusCode.ERROR))
        inside = set_span_in_context(span)
        for name, begin_ns, finish_ns in _phases(start_ns, end_ns, summary):
            child = self._tracer.start_span(name, inside, start_time=begin_ns)
            child.end(finish_ns)
        span.end(end_ns)

    def close(self) -> None:
        """See Tracing."""
        self._provider.shutdown()


def _phases(start_ns: int, end_ns: int, summary: Summary) -> list[tuple[str, int, int]]:
    """Name, beginning and end of each part of an answer that is known."""
    if "queued_ms" not in summary or "first_token_ms" not in summary:
        return []
    ran_ns = start_ns + int(float(summary["queued_ms"]) * 1e6)
    first_ns = start_ns + int(float(summary["first_token_ms"]) * 1e6)
    return [
        ("queue", start_ns, ran_ns),
        ("prefill", ran_ns, max(first_ns, ran_ns)),
        ("decode", max(first_ns, ran_ns), max(end_ns, first_ns)),
    ]


def make_tracing(endpoint: str) -> Tracing:
    """Spans to the collector at `endpoint`, OTLP over HTTP; none for an empty one.

    Raises:
        StartupError: the exporter is not installed.
    """
    if not endpoint:
        return NoTracing()
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise StartupError(
            "--otlp-endpoint needs OpenTelemetry's exporter, which is not installed.",
            "pip install 'repartee[otel]'",
        ) from None
    provider = TracerProvider(resource=Resource.create({"service.name": "repartee-gateway"}))
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
    provider.add_span_processor(BatchSpanProcessor(exporter))
    return OtlpTracing(provider)
