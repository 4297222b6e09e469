"""Spans as a collector receives them."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from app.gateway.tracing import NoTracing, make_tracing
from engine.contract import GenerateRequest, Message, SamplingParams, Tier

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT_ID = "00f067aa0ba902b7"
REQUEST = GenerateRequest(
    request_id="resp_1",
    model="m",
    messages=(Message("user", "a secret"),),
    sampling=SamplingParams(),
    tier=Tier.VIP,
    tenant="acme",
    conversation_id="sess_1",
    reply_to="gw_1",
    created_at=1_700_000_000.0,
    deadline_at=1_700_000_600.0,
)
SUMMARY = {
    "api": "realtime",
    "tier": "vip",
    "queued_ms": 20.0,
    "first_token_ms": 120.0,
    "seconds": 1.5,
    "prompt_tokens": 31,
    "completion_tokens": 7,
    "cached_tokens": 16,
    "outcome": "completed",
}


class Collector:
    """Keeps what is posted to it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        bodies = self.bodies

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                bodies.append(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                """Nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def spans(self) -> dict[str, Span]:
        """Every span by name."""
        requests = [ExportTraceServiceRequest.FromString(body) for body in self.bodies]
        return {
            span.name: span
            for request in requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        }


@pytest.fixture
def collector() -> Iterator[Collector]:
    found = Collector()
    thread = threading.Thread(target=found.server.serve_forever)
    thread.start()
    yield found
    found.server.shutdown()
    found.server.server_close()
    thread.join()


def test_an_answer_is_a_span_of_its_callers_trace_with_its_phases(collector: Collector) -> None:
    tracing = make_tracing(collector.url)
    tracing.ended(REQUEST, f"00-{TRACE_ID}-{PARENT_ID}-01", SUMMARY)
    tracing.close()
    spans = collector.spans()
    answer = spans["chat m"]
    assert answer.trace_id.hex() == TRACE_ID
    assert answer.parent_span_id.hex() == PARENT_ID
    assert answer.end_time_unix_nano - answer.start_time_unix_nano == 1_500_000_000
    ends = {
        name: (spans[name].end_time_unix_nano - answer.start_time_unix_nano) // 1_000_000
        for name in ("queue", "prefill", "decode")
    }
    assert ends == {"queue": 20, "prefill": 120, "decode": 1500}
    assert {spans[name].parent_span_id for name in ends} == {answer.span_id}
    values = {entry.key: entry.value for entry in answer.attributes}
    assert values["gen_ai.usage.input_tokens"].int_value == 31
    assert values["repartee.tier"].string_value == "vip"
    assert b"a secret" not in b"".join(collector.bodies)


def test_an_answer_that_never_ran_has_no_phases_and_a_failed_one_an_error(
    collector: Collector,
) -> None:
    tracing = make_tracing(collector.url)
    summary = {"api": "chat", "tier": "batch", "seconds": 0.1, "outcome": "failed"}
    tracing.ended(REQUEST, "", summary)
    tracing.close()
    spans = collector.spans()
    assert list(spans) == ["chat m"]
    assert spans["chat m"].status.code == 2
    assert not spans["chat m"].parent_span_id


def test_without_an_endpoint_nothing_is_traced() -> None:
    assert isinstance(make_tracing(""), NoTracing)
