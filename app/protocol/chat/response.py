"""A chat completion's answer: one object, or the chunks of an event stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from app.protocol.errors import error_body
from engine.contract import (
    Accepted,
    Delta,
    Event,
    Failed,
    Finished,
    FinishReason,
    ReparteeError,
    Unavailable,
    Usage,
)

DONE = b"data: [DONE]\n\n"
# A comment line; every parser of event streams skips it.
HEARTBEAT = b": waiting\n\n"


def cancelled_error() -> ReparteeError:
    """What a client that did not cancel is told of a cancelled answer."""
    return Unavailable("The answer was cancelled before its end.", code="response_cancelled")


def usage_object(usage: Usage) -> dict[str, Any]:
    """Token counts in the shape of chat completions."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }


class ChatStream:
    """Renders one answer's events as server-sent events.

    Args:
        response_id: Server-made id, equal in every chunk.
        model: The model's name.
        created_at: Whole Unix seconds.
        include_usage: Whether to send the usage chunk.
    """

    def __init__(self, response_id: str, model: str, created_at: int, include_usage: bool) -> None:
        head = {
            "id": response_id,
            "object": "chat.completion.chunk",
            "created": created_at,
            "model": model,
        }
        self._head = b"data: " + orjson.dumps(head)[:-1]
        self._include_usage = include_usage
        self._tail = (b',"usage":null' if include_usage else b"") + b"}\n\n"
        self._delta_head = self._head + b',"choices":[{"index":0,"delta":{"content":'
        self._delta_tail = b'},"logprobs":null,"finish_reason":null}]' + self._tail

    def render(self, event: Event) -> bytes:
        """Bytes of one event; a terminal event's end with `[DONE]`."""
        if isinstance(event, Delta):
            return self.render_text(event.text)
        if isinstance(event, Accepted):
            return self._choice({"role": "assistant", "content": "", "refusal": None}, None)
        if isinstance(event, Failed):
            return self.render_error(event.error)
        return self._finish(event) if isinstance(event, Finished) else b""

    def render_deltas(self, deltas: Sequence[Delta]) -> bytes:
        """Deltas as one content chunk."""
        return self.render_text("".join(delta.text for delta in deltas))

    def render_text(self, text: str) -> bytes:
        """A content chunk; nothing for tokens that show no text yet."""
        if not text:
            return b""
        return self._delta_head + orjson.dumps(text) + self._delta_tail

    def render_error(self, error: BaseException) -> bytes:
        """The stream's end when something failed after it began."""
        return b"data: " + orjson.dumps(error_body(error)) + b"\n\n" + DONE

    def _finish(self, event: Finished) -> bytes:
        if event.reason is FinishReason.CANCELLED:
            return self.render_error(cancelled_error())
        last = self._choice({}, event.reason.value)
        if not self._include_usage:
            return last + DONE
        usage = orjson.dumps(usage_object(event.usage))
        return last + self._head + b',"choices":[],"usage":' + usage + b"}\n\n" + DONE

    def _choice(self, delta: dict[str, Any], finish_reason: str | None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return self._head + b',"choices":' + orjson.dumps([choice]) + self._tail


class ChatAnswer:
    """Collects one answer's events into a `chat.completion` object.

    Args:
        response_id: Server-made id.
        model: The model's name.
        created_at: Whole Unix seconds.
    """

    def __init__(self, response_id: str, model: str, created_at: int) -> None:
        self._response_id = response_id
        self._model = model
        self._created_at = created_at
        self._texts: list[str] = []

    def add(self, event: Event) -> dict[str, Any] | None:
        """Take one event in.

        Returns:
            The whole answer once the event was the last, else None.

        Raises:
            ReparteeError: if the answer failed or was cancelled.
        """
        if isinstance(event, Delta):
            self._texts.append(event.text)
            return None
        if isinstance(event, Failed):
            raise event.error
        if not isinstance(event, Finished):
            return None
        if event.reason is FinishReason.CANCELLED:
            raise cancelled_error()
        message = {"role": "assistant", "content": "".join(self._texts), "refusal": None}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": event.reason.value,
        }
        return {
            "id": self._response_id,
            "object": "chat.completion",
            "created": self._created_at,
            "model": self._model,
            "choices": [choice],
            "usage": usage_object(event.usage),
        }
