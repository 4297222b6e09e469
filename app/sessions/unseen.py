"""Answers that ended while no gateway followed them, taken from their logs."""

from __future__ import annotations

from dataclasses import dataclass

from app.routing.log import ResponseLog
from app.sessions.records import ActiveResponse, Item, end_reason
from engine.contract import Cursor, Delta, Event, Failed, Finished, FinishReason


@dataclass(frozen=True, slots=True)
class UnseenEnd:
    """An answer has ended; `item` is what it leaves, None for nothing."""

    item: Item | None


async def ended_log(log: ResponseLog, response_id: str, *, is_over: bool) -> list[Event] | None:
    """All events of a response that has ended.

    Args:
        log: Where its events are.
        response_id: Which.
        is_over: Its time is over: what there is, is all there will be.

    Returns:
        None if it still runs.

    Raises:
        RedisError: Redis failed.
    """
    last = await log.last(response_id)
    if not is_over and not isinstance(last, Finished | Failed):
        return None
    events: list[Event] = []
    cursor = Cursor(0, 0)
    while part := await log.read(response_id, cursor):
        events += part
        cursor = Cursor(part[-1].epoch, part[-1].seq)
    return events


async def unseen_answer(
    log: ResponseLog, active: ActiveResponse, *, is_over: bool
) -> UnseenEnd | None:
    """How a conversation's response that counts as running has ended; see `ended_log`."""
    events = await ended_log(log, active.response_id, is_over=is_over)
    if events is None:
        return None
    last = events[-1] if events else None
    text = "".join(event.text for event in events if isinstance(event, Delta))
    reason = last.reason if isinstance(last, Finished) else None
    if not text and reason not in (FinishReason.STOP, FinishReason.LENGTH):
        return UnseenEnd(None)
    status = "completed" if reason is FinishReason.STOP else "incomplete"
    return UnseenEnd(Item(active.item_id, "assistant", text, status, reason=end_reason(last)))
