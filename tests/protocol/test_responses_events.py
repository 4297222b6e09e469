"""The numbers of a response's events: whoever has seen N misses what comes after N."""

from __future__ import annotations

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from app.protocol.responses.events import ResponseEvents, ResponseSse
from engine.contract import (
    Accepted,
    Cursor,
    Delta,
    EngineFault,
    Event,
    Failed,
    Finished,
    FinishReason,
    Usage,
)

HEAD = {"id": "resp_1", "object": "response", "model": "m", "metadata": {}}
USAGE = Usage(3, 4)
PIECES = st.lists(st.text(max_size=5), max_size=12)
ENDS = st.sampled_from(
    [
        *(Finished("resp_1", 1, 99, reason, USAGE) for reason in FinishReason),
        Failed("resp_1", 1, 99, EngineFault("secret")),
    ]
)


def events_of(after: int = -1) -> ResponseEvents:
    return ResponseEvents(HEAD, after=after, ended_at=lambda: 5.0)


def log_of(pieces: list[str], end: Event) -> list[Event]:
    deltas = [Delta("resp_1", 1, seq, text, 1) for seq, text in enumerate(pieces, 1)]
    return [Accepted("resp_1", 1, 0, 3), *deltas, end]


def shown(events: ResponseEvents, log: list[Event]) -> list[dict[str, Any]]:
    return [orjson.loads(frame) for event in log for frame in events.take(event)]


def text_of(frames: list[dict[str, Any]]) -> str:
    return "".join(f["delta"] for f in frames if f["type"] == "response.output_text.delta")


@given(PIECES, ENDS)
def test_a_response_is_told_whole_with_rising_numbers(pieces: list[str], end: Event) -> None:
    frames = shown(events_of(), log_of(pieces, end))
    numbers = [frame["sequence_number"] for frame in frames]
    assert numbers == sorted(set(numbers))
    assert [f["type"] for f in frames[:2]] == ["response.created", "response.in_progress"]
    kinds = [frame["type"] for frame in frames]
    assert kinds[-1] in ("response.completed", "response.incomplete", "response.failed")
    text = "".join(pieces)
    assert text_of(frames) == text
    output = frames[-1]["response"]["output"]
    assert ("response.output_item.added" in kinds) == bool(output)
    if output:
        assert output[0]["content"][0]["text"] == text
        assert kinds[-4:-1] == [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
        ]
    assert "secret" not in str(frames)


@given(PIECES, PIECES, ENDS, st.integers(-1, 80))
def test_whoever_returns_gets_the_rest_however_it_was_cut(
    cut: list[str], other: list[str], end: Event, place: int
) -> None:
    """Two gateways, or a takeover, cut the same text in different pieces."""
    text = "".join(cut)
    again = [text[i : i + 1 + len(piece)] for i, piece in _spans(text, other)]
    first = shown(events_of(), log_of(cut, end))
    seen = [frame for frame in first if frame["sequence_number"] <= place]
    number = max((frame["sequence_number"] for frame in seen), default=-1)
    rest = shown(events_of(number), log_of(again, end))
    assert all(frame["sequence_number"] > number for frame in rest)
    assert text_of(seen) + text_of(rest) == text
    plain = [f for f in first if f not in seen and f["type"] != "response.output_text.delta"]
    assert [f for f in rest if f["type"] != "response.output_text.delta"] == plain


def _spans(text: str, sizes: list[str]) -> list[tuple[int, str]]:
    spans, start = [], 0
    for size in [*sizes, "x" * len(text)]:
        spans.append((start, size))
        start += 1 + len(size)
        if start >= len(text):
            return spans
    return spans


@given(PIECES, st.integers(0, 20), st.integers(-1, 40))
def test_merged_deltas_leave_no_gap_and_no_double(
    pieces: list[str], merged: int, after: int
) -> None:
    text = "".join(pieces)
    deltas = [Delta("resp_1", 1, seq, piece, 1) for seq, piece in enumerate(pieces, 1)]
    events = events_of(after)
    frames = [orjson.loads(frame) for frame in events.take(Accepted("resp_1", 1, 0, 3))]
    for group in (deltas[:merged], deltas[merged:]):
        frames += [orjson.loads(frame) for frame in events.take_deltas(group)]
    assert text_of(frames) == text[max(0, after - 3) :]


@given(PIECES)
def test_a_slow_socket_s_deltas_are_numbered_as_they_go_out(pieces: list[str]) -> None:
    """The writer of a socket renders text later than it is taken in, and in one."""
    events = events_of()
    waiting = "".join(events.note(piece)[1] for piece in pieces)
    frame = orjson.loads(events.delta(waiting, Cursor(1, 1)))
    assert frame["delta"] == "".join(pieces)
    assert frame["sequence_number"] == 3 + len(waiting)


def test_event_streams_name_each_event() -> None:
    sse = ResponseSse(events_of())
    data = sse.render(Accepted("resp_1", 1, 0, 3))
    first, second, end = data.split(b"\n\n")
    assert first.startswith(b"event: response.created\ndata: {")
    assert second.startswith(b"event: response.in_progress\ndata: {")
    assert end == b""
    assert sse.render(Delta("resp_1", 1, 1, "", 1)) == b""
    error = sse.render_error(EngineFault("secret"))
    assert error.startswith(b"event: error\n") and b"secret" not in error
