"""Query strings of the Responses API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.protocol.ids import MAX_ID_CHARS
from app.protocol.queries import only, read_choice, read_flag, read_whole
from app.protocol.responses.items import InputItem
from engine.contract import InvalidRequest

MAX_NUMBER = 2**31 - 1
DEFAULT_LIMIT = 20
MAX_LIMIT = 100


@dataclass(frozen=True, slots=True)
class RetrieveQuery:
    """How a response is to be shown; -1 is before its first event."""

    is_stream: bool
    starting_after: int


def read_retrieve_query(params: Mapping[str, str]) -> RetrieveQuery:
    """The query of `GET /v1/responses/{id}`.

    Raises:
        InvalidRequest: naming the field.
    """
    only(params, ("stream", "starting_after", "include_obfuscation", "include", "include[]"))
    for name in ("include", "include[]"):
        if params.get(name):
            raise InvalidRequest(
                "include is not supported by this server.",
                code="unsupported_parameter",
                param="include",
            )
    read_flag(params, "include_obfuscation")
    is_stream = read_flag(params, "stream")
    after = read_whole(params, "starting_after", 0, MAX_NUMBER)
    if after is not None and not is_stream:
        raise InvalidRequest("starting_after is only for stream=true.", param="starting_after")
    return RetrieveQuery(is_stream, -1 if after is None else after)


@dataclass(frozen=True, slots=True)
class InputQuery:
    """Which input items are asked for."""

    limit: int
    after: str | None
    is_descending: bool

    def page(self, items: Sequence[InputItem]) -> tuple[list[InputItem], bool]:
        """Those items, and whether there are more.

        Raises:
            InvalidRequest: `after` is none of them.
        """
        ordered = list(reversed(items)) if self.is_descending else list(items)
        start = 0
        if self.after is not None:
            ids = [item.item_id for item in ordered]
            if self.after not in ids:
                raise InvalidRequest(
                    f"after must be an input item's id, got {self.after[:64]!r}.", param="after"
                )
            start = ids.index(self.after) + 1
        end = start + self.limit
        return ordered[start:end], len(ordered) > end


def read_input_query(params: Mapping[str, str]) -> InputQuery:
    """The query of `GET /v1/responses/{id}/input_items`.

    Raises:
        InvalidRequest: naming the field.
    """
    only(params, ("limit", "after", "order"))
    after = params.get("after")
    if after is not None and len(after) > MAX_ID_CHARS:
        raise InvalidRequest(
            f"after must be at most {MAX_ID_CHARS} characters, got {len(after)}.", param="after"
        )
    return InputQuery(
        limit=read_whole(params, "limit", 1, MAX_LIMIT) or DEFAULT_LIMIT,
        after=after,
        is_descending=read_choice(params, "order", ("asc", "desc"), "desc") == "desc",
    )
