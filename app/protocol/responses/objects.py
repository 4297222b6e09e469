"""A response as JSON, at any time of its life, and lists of items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from app.protocol.errors import public
from app.protocol.responses.items import InputItem, input_object, output_object
from app.protocol.responses.request import ResponsesRequest
from engine.contract import (
    Failed,
    Finished,
    FinishReason,
    InvalidRequest,
    Overloaded,
    ReparteeError,
    Usage,
)

_STATUS = {
    FinishReason.STOP: "completed",
    FinishReason.LENGTH: "incomplete",
    FinishReason.CANCELLED: "cancelled",
}


def output_id_of(response_id: str) -> str:
    """The id of a response's one output item, on whatever gateway."""
    return "msg_" + response_id.removeprefix("resp_")


def response_head(response_id: str, request: ResponsesRequest, created_at: float) -> dict[str, Any]:
    """What stays the same of a response from its beginning."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(created_at),
        "model": request.card.id,
        "instructions": request.instructions,
        "previous_response_id": request.previous_response_id,
        "metadata": dict(request.metadata or {}),
        "max_output_tokens": request.sampling.max_tokens,
        "temperature": request.sampling.temperature,
        "top_p": request.sampling.top_p,
        "store": request.is_stored,
        "background": request.is_background,
        "parallel_tool_calls": False,
        "tool_choice": "none",
        "tools": [],
        "text": {"format": {"type": "text"}},
        "truncation": "disabled",
    }


def running_object(head: Mapping[str, Any]) -> dict[str, Any]:
    """A response under way."""
    return {
        **head,
        "status": "in_progress",
        "output": [],
        "usage": None,
        "error": None,
        "incomplete_details": None,
        "completed_at": None,
    }


def ended_object(
    head: Mapping[str, Any],
    event: Finished | Failed,
    text: str,
    *,
    has_output: bool,
    ended_at: float | None,
) -> dict[str, Any]:
    """A response that is over.

    Args:
        head: As `response_head` made it.
        event: How it ended.
        text: The whole answer.
        has_output: Whether it leaves an item.
        ended_at: Unix seconds, if known.
    """
    status = status_of(event)
    item_status = "completed" if status == "completed" else "incomplete"
    item = output_object(output_id_of(head["id"]), text, item_status)
    return {
        **head,
        "status": status,
        "output": [item] if has_output else [],
        "usage": None if event.usage is None else usage_object(event.usage),
        "error": failure_object(event.error) if isinstance(event, Failed) else None,
        "incomplete_details": ({"reason": "max_output_tokens"} if status == "incomplete" else None),
        "completed_at": int(ended_at) if ended_at and status == "completed" else None,
    }


def status_of(event: Finished | Failed) -> str:
    """`status` of a response that ended so."""
    return "failed" if isinstance(event, Failed) else _STATUS[event.reason]


def leaves_output(event: Finished | Failed, text: str) -> bool:
    """Whether a response leaves an item: any text, or a natural end without one."""
    return bool(text) or (
        isinstance(event, Finished) and event.reason is not FinishReason.CANCELLED
    )


def usage_object(usage: Usage) -> dict[str, Any]:
    """Token counts in the shape of the Responses API."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def failure_object(error: ReparteeError) -> dict[str, Any]:
    """`error` of a failed response: the API's few codes, ours beside them."""
    known = public(error)
    code = "server_error"
    if isinstance(known, InvalidRequest):
        code = "invalid_prompt"
    elif isinstance(known, Overloaded):
        code = "rate_limit_exceeded"
    return {"code": code, "message": known.message, "repartee.code": known.code}


def deleted_object(response_id: str) -> dict[str, Any]:
    """What a delete is answered with."""
    return {"id": response_id, "object": "response", "deleted": True}


def input_list(items: Sequence[InputItem], has_more: bool) -> dict[str, Any]:
    """A page of input items."""
    data = [input_object(item) for item in items]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }
