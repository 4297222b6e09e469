"""The events of one response, numbered so that any gateway numbers them alike.

The numbers count what the reader has of the text, in characters (code points):

| event | sequence_number |
|---|---|
| response.created, response.in_progress | 0, 1 |
| response.output_item.added, response.content_part.added | 2, 3 |
| response.output_text.delta that brings the text to n characters | n + 3 |
| of a text of n characters: the three done events, and the end | n + 4 to n + 7 |

So they rise, with gaps, and do not depend on how the text was cut into pieces, by whom,
or whether a slow reader got several as one. Whoever has seen number N misses what comes
after N, whoever sends it.

The end is response.completed, response.incomplete (also for a cancelled response, whose
status says so) or response.failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from app.protocol.errors import public
from app.protocol.responses.items import output_object, text_part
from app.protocol.responses.objects import (
    ended_object,
    leaves_output,
    output_id_of,
    running_object,
    status_of,
)
from engine.contract import Cursor, Delta, Event, Failed, Finished

_CREATED = 0
_ADDED = 2
# The number of a text of no characters.
_TEXT = 3
_END_KINDS = {"completed": "response.completed", "failed": "response.failed"}
HEARTBEAT = b": waiting\n\n"


class ResponseEvents:
    """See the module.

    Args:
        head: The response, as `response_head` made it.
        after: The last number that the reader has seen; -1 for none.
        stream_id: The WebSocket lane, named in every event.
        is_warm_up: The response has no output by intent.
        ended_at: Tells when the response ended, in Unix seconds, once it has.
    """

    def __init__(
        self,
        head: Mapping[str, Any],
        *,
        after: int = -1,
        stream_id: str | None = None,
        is_warm_up: bool = False,
        ended_at: Callable[[], float | None],
    ) -> None:
        self._head = head
        self._after = after
        self._lane = {} if stream_id is None else {"stream_id": stream_id}
        self._is_warm_up = is_warm_up
        self._ended_at = ended_at
        self._item_id = output_id_of(head["id"])
        self._place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        self._texts: list[str] = []
        self._num_taken = 0
        self._num_seen = max(0, after - _TEXT)
        self._has_begun = False
        self._is_open = False
        self._last = after
        fixed = {"type": "response.output_text.delta", **self._place, "logprobs": [], **self._lane}
        self._delta_head = orjson.dumps(fixed)[:-1] + b',"sequence_number":%d,"delta":'

    def take(self, event: Event) -> list[bytes]:
        """What an event of the log shows, as far as the reader has not seen it."""
        if isinstance(event, Delta):
            return self.take_deltas([event])
        frames = self._begin()
        if isinstance(event, Finished | Failed):
            frames += self._end(event)
        return frames

    def take_deltas(self, deltas: Sequence[Delta]) -> list[bytes]:
        """Deltas that go out as one; nothing for those without text."""
        frames, text = self.note("".join(delta.text for delta in deltas))
        return [*frames, self.delta(text)] if text else frames

    def note(self, text: str) -> tuple[list[bytes], str]:
        """Take text in.

        Returns:
            What goes out before it, and what of it is to go through `delta`.
        """
        frames = self._begin()
        if text:
            frames += self._open()
        unseen = text[max(0, self._num_seen - self._num_taken) :]
        self._texts.append(text)
        self._num_taken += len(text)
        return frames, unseen

    def delta(self, text: str, cursor: Cursor | None = None) -> bytes:
        """`response.output_text.delta`, each rendered once and in order."""
        self._num_seen += len(text)
        self._last = _TEXT + self._num_seen
        return self._delta_head % self._last + orjson.dumps(text) + b"}"

    def failure(self, error: BaseException) -> bytes:
        """The `error` event that ends a stream, not its response."""
        known = public(error)
        fields = {"code": known.code, "message": known.message, "param": known.param}
        return self._frame("error", max(self._last, 0), fields)

    def _begin(self) -> list[bytes]:
        if self._has_begun:
            return []
        self._has_begun = True
        response = running_object(self._head)
        kinds = ("response.created", "response.in_progress")
        return self._unseen(
            [(kind, _CREATED + i, {"response": response}) for i, kind in enumerate(kinds)]
        )

    def _open(self) -> list[bytes]:
        if self._is_open:
            return []
        self._is_open = True
        item = output_object(self._item_id, None, "in_progress")
        added = {"output_index": 0, "item": item}
        part = {**self._place, "part": text_part("")}
        return self._unseen(
            [
                ("response.output_item.added", _ADDED, added),
                ("response.content_part.added", _ADDED + 1, part),
            ]
        )

    def _end(self, event: Finished | Failed) -> list[bytes]:
        text = "".join(self._texts)
        has_output = not self._is_warm_up and leaves_output(event, text)
        response = ended_object(
            self._head, event, text, has_output=has_output, ended_at=self._ended_at()
        )
        number = _TEXT + 1 + len(text)
        frames = self._open() if has_output else []
        events: list[tuple[str, int, dict[str, Any]]] = []
        if has_output:
            (item,) = response["output"]
            done = {**self._place, "text": text, "logprobs": []}
            part = {**self._place, "part": text_part(text)}
            events += [
                ("response.output_text.done", number, done),
                ("response.content_part.done", number + 1, part),
                ("response.output_item.done", number + 2, {"output_index": 0, "item": item}),
            ]
        kind = _END_KINDS.get(status_of(event), "response.incomplete")
        events.append((kind, number + 3, {"response": response}))
        return frames + self._unseen(events)

    def _unseen(self, events: Sequence[tuple[str, int, dict[str, Any]]]) -> list[bytes]:
        return [
            self._frame(kind, number, fields)
            for kind, number, fields in events
            if number > self._after
        ]

    def _frame(self, kind: str, number: int, fields: Mapping[str, Any]) -> bytes:
        self._last = number
        return orjson.dumps({"type": kind, "sequence_number": number, **fields, **self._lane})


class ResponseSse:
    """The same as server-sent events.

    Args:
        events: The response's.
    """

    def __init__(self, events: ResponseEvents) -> None:
        self._events = events

    def render(self, event: Event) -> bytes:
        """Bytes of one event; may be empty."""
        return _sse(self._events.take(event))

    def render_deltas(self, deltas: Sequence[Delta]) -> bytes:
        """Bytes of deltas that go out as one."""
        return _sse(self._events.take_deltas(deltas))

    def render_error(self, error: BaseException) -> bytes:
        """Bytes of an end that the response doesn't have: it may go on elsewhere."""
        return _sse([self._events.failure(error)])


def _sse(frames: Sequence[bytes]) -> bytes:
    return b"".join(b"event: %b\ndata: %b\n\n" % (_kind(frame), frame) for frame in frames)


def _kind(frame: bytes) -> bytes:
    # Every frame begins with its type.
    return frame[9 : frame.index(b'"', 9)]
