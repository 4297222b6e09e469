"""`/v1/sessions`: its queries and bodies read, conversations rendered.

A session object is `{id, object: "session", title, model, status, num_items, created_at,
updated_at}`; times are whole Unix seconds, `status` is `idle` or `in_progress`. One read
by itself has `items` too, in the shape of the Realtime API with `created_at` beside.
A list has `storage` beside: what of the caller's limits is used, null without any.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from app.protocol.fields import Fields
from app.protocol.json_codec import decode_object
from app.protocol.queries import only, read_choice, read_whole
from app.protocol.realtime.items import item_object
from app.protocol.realtime.response import item_reason
from app.sessions import Item, Session, SessionSummary
from app.sessions.index import Page, Place
from app.sessions.quota import StorageUse
from app.sessions.titles import check_title
from engine.contract import InvalidRequest

DEFAULT_LIMIT = 20
MAX_LIMIT = 100
MAX_QUERY_CHARS = 200
EXPORT_FORMATS = ("json", "markdown")
_EXTENSIONS = {"json": "json", "markdown": "md"}
_HEADINGS = {"user": "User", "assistant": "Assistant", "system": "System"}
_MAX_NAME_CHARS = 60


@dataclass(frozen=True, slots=True)
class ListQuery:
    """What a list is asked for; `query` is empty for all."""

    limit: int
    after: Place | None
    query: str


def read_list_query(params: Mapping[str, str]) -> ListQuery:
    """The query of `GET /v1/sessions`.

    Raises:
        InvalidRequest: naming the field.
    """
    only(params, ("limit", "after", "query"))
    query = params.get("query", "").strip()
    if len(query) > MAX_QUERY_CHARS:
        raise InvalidRequest(
            f"query must be at most {MAX_QUERY_CHARS} characters, got {len(query)}.", param="query"
        )
    after = params.get("after")
    place = Place.of_text(after, "after") if after else None
    limit = read_whole(params, "limit", 1, MAX_LIMIT) or DEFAULT_LIMIT
    return ListQuery(limit, place, query)


def read_rename(body: bytes) -> str:
    """The title in the body of `POST /v1/sessions/{id}`.

    Raises:
        InvalidRequest: naming the field.
    """
    fields = Fields(decode_object(body))
    fields.only(("title",))
    return check_title(fields.required_string("title"), "title")


def read_export_format(params: Mapping[str, str]) -> str:
    """`format` of an export: json unless said otherwise.

    Raises:
        InvalidRequest: naming the field.
    """
    only(params, ("format",))
    return read_choice(params, "format", EXPORT_FORMATS, "json")


def list_object(page: Page, use: StorageUse | None) -> dict[str, Any]:
    """A page of the list, and what the caller has stored."""
    data = [_summary_object(summary) for summary in page.sessions]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": page.next is not None,
        "next_after": None if page.next is None else page.next.to_text(),
        "storage": None if use is None else _storage_object(use),
    }


def _storage_object(use: StorageUse) -> dict[str, Any]:
    """What is used and what there may be; a limit of null is none."""
    limits = use.limits
    return {
        "conversations": {"used": use.conversations, "limit": limits.conversations or None},
        "stored_bytes": {"used": use.stored_bytes, "limit": limits.stored_bytes or None},
    }


def session_object(session: Session) -> dict[str, Any]:
    """A conversation with its items."""
    active = session.active
    return {
        **_summary_object(
            SessionSummary(
                session_id=session.session_id,
                title=session.title,
                settings=session.settings,
                num_items=len(session.items),
                is_running=active is not None,
                created_at=session.created_at,
                updated_at=session.updated_at,
            )
        ),
        "instructions": session.settings["instructions"],
        "active_response_id": None if active is None else active.response_id,
        "items": [_item_object(item) for item in session.items],
    }


def deleted_object(session_id: str) -> dict[str, Any]:
    """What a delete is answered with."""
    return {"id": session_id, "object": "session.deleted", "deleted": True}


def export_json(session: Session) -> dict[str, Any]:
    """A conversation to take along."""
    return {**session_object(session), "object": "session.export"}


def export_markdown(session: Session) -> str:
    """A conversation to read elsewhere; texts stand as they are."""
    lines = [f"# {session.title or 'Conversation'}", ""]
    lines += [f"{_time(session.created_at)}, {session.settings['model']}", ""]
    if session.settings["instructions"]:
        lines += ["## Instructions", "", session.settings["instructions"], ""]
    for item in session.items:
        note = "" if item.status == "completed" else " (incomplete)"
        lines += [f"## {_HEADINGS.get(item.role, item.role)}{note}", "", item.text, ""]
    return "\n".join(lines)


def file_name(session: Session, kind: str) -> str:
    """A name that every file system and header takes: letters, digits, dashes."""
    words = re.sub(r"[^A-Za-z0-9]+", "-", session.title or "").strip("-")
    name = words[:_MAX_NAME_CHARS].strip("-") or "conversation"
    return f"{name}.{_EXTENSIONS[kind]}"


def _summary_object(summary: SessionSummary) -> dict[str, Any]:
    shown = {
        "id": summary.session_id,
        "object": "session",
        "title": summary.title,
        "model": summary.settings["model"],
        "status": "in_progress" if summary.is_running else "idle",
        "num_items": summary.num_items,
        "created_at": int(summary.created_at),
        "updated_at": int(summary.updated_at),
    }
    if summary.match is not None:
        shown["match"] = {"item_id": summary.match.item_id, "excerpt": summary.match.excerpt}
    return shown


def _item_object(item: Item) -> dict[str, Any]:
    reason = item_reason(item.reason)
    shown = item_object(item.item_id, item.role, item.text, item.status, reason)
    return {**shown, "created_at": int(item.created_at), "response_id": item.response_id}


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
