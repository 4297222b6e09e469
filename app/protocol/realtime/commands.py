"""Client events as typed commands.

Understood are session.update, conversation.item.create, .retrieve, .delete and
.truncate, response.create, response.cancel and the private
repartee.conversation.truncate, repartee.input_draft and repartee.ping.

An item of text has no audio to cut, so `conversation.item.truncate` takes the private
field `repartee.text_end`: how many characters (code points) stay. `audio_end_ms` may be
there for form's sake.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from app.protocol.content import check_size
from app.protocol.fields import Fields, join, missing
from app.protocol.ids import MAX_ID_CHARS
from app.protocol.metadata import read_metadata
from app.protocol.realtime.items import ItemReference, NewItem, read_input, read_item
from app.protocol.realtime.settings import (
    SessionSettings,
    check_modalities,
    read_limit,
    read_update,
    refuse_tools,
)
from app.protocol.sampling import SAMPLING_FIELDS, read_sampling
from engine.contract import InvalidRequest, Message, ModelCard, SamplingParams

MAX_TOKEN_CHARS = 4096
_AUDIO_MS_LIMIT = 2**53


@dataclass(frozen=True, slots=True)
class UpdateSession:
    """Replace the session's settings."""

    settings: SessionSettings


@dataclass(frozen=True, slots=True)
class CreateItem:
    """Put an item behind another: None means at the end, "root" at the front."""

    item: NewItem
    previous_item_id: str | None


@dataclass(frozen=True, slots=True)
class RetrieveItem:
    """Show an item."""

    item_id: str


@dataclass(frozen=True, slots=True)
class DeleteItem:
    """Take an item out."""

    item_id: str


@dataclass(frozen=True, slots=True)
class TruncateItem:
    """Keep the first `text_end` characters of an assistant's item."""

    item_id: str
    text_end: int
    audio_end_ms: int


@dataclass(frozen=True, slots=True)
class TruncateConversation:
    """Take out all items after this one; None takes out everything."""

    item_id: str | None


@dataclass(frozen=True, slots=True)
class CreateResponse:
    """Generate an answer.

    Attributes:
        in_conversation: Whether it reads and joins the default conversation.
        input: What to read instead of the conversation; None means the conversation.
        instructions: System text put first; empty means none.
        sampling: Session's and response's fields together.
        metadata: Given back with the response.
        answers: Item of the conversation without which nothing is generated: a
            client that sends an item and this in one go means that item, not the
            conversation as it stands where the item was refused. None asks nothing.
    """

    in_conversation: bool
    input: tuple[NewItem | ItemReference, ...] | None
    instructions: str
    sampling: SamplingParams
    metadata: Mapping[str, str] | None
    answers: str | None = None


@dataclass(frozen=True, slots=True)
class CancelResponse:
    """End a response; None means the one in the default conversation."""

    response_id: str | None


@dataclass(frozen=True, slots=True)
class InputDraft:
    """The message that the person is typing, so far."""

    text: str


@dataclass(frozen=True, slots=True)
class RenewToken:
    """Go on under another credential of the same tenant."""

    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Ping:
    """Answer at once."""


Command = (
    UpdateSession
    | CreateItem
    | RetrieveItem
    | DeleteItem
    | TruncateItem
    | TruncateConversation
    | CreateResponse
    | CancelResponse
    | InputDraft
    | RenewToken
    | Ping
)


def read_command(kind: str, fields: Fields, settings: SessionSettings, card: ModelCard) -> Command:
    """Read a client event's body.

    Args:
        kind: Its `type`.
        fields: The whole event.
        settings: The session as it stands.
        card: The session's model.

    Raises:
        InvalidRequest: for an unknown type, or naming the wrong field.
    """
    reader = _READERS.get(kind)
    if reader is None:
        raise InvalidRequest(
            f"Unknown event type: {kind[:64]!r}.", code="unknown_event_type", param="type"
        )
    return reader(fields, settings, card)


def _read_session_update(
    fields: Fields, settings: SessionSettings, card: ModelCard
) -> UpdateSession:
    fields.only(("type", "event_id", "session"))
    session = fields.object("session")
    if session is None:
        raise missing("session")
    return UpdateSession(read_update(session, settings, card))


def _read_item_create(fields: Fields, settings: SessionSettings, card: ModelCard) -> CreateItem:
    fields.only(("type", "event_id", "item", "previous_item_id"))
    item = fields.object("item")
    if item is None:
        raise missing("item")
    created = read_item(item)
    check_size([created.message], card, "item.content")
    return CreateItem(created, fields.string("previous_item_id", MAX_ID_CHARS))


def _read_item_retrieve(fields: Fields, settings: SessionSettings, card: ModelCard) -> RetrieveItem:
    fields.only(("type", "event_id", "item_id"))
    return RetrieveItem(fields.required_string("item_id", MAX_ID_CHARS))


def _read_item_delete(fields: Fields, settings: SessionSettings, card: ModelCard) -> DeleteItem:
    fields.only(("type", "event_id", "item_id"))
    return DeleteItem(fields.required_string("item_id", MAX_ID_CHARS))


def _read_item_truncate(fields: Fields, settings: SessionSettings, card: ModelCard) -> TruncateItem:
    fields.only(
        ("type", "event_id", "item_id", "content_index", "audio_end_ms", "repartee.text_end")
    )
    fields.integer("content_index", 0, 0)
    text_end = fields.integer("repartee.text_end", 0, 2**31 - 1)
    if text_end is None:
        raise missing("repartee.text_end")
    return TruncateItem(
        item_id=fields.required_string("item_id", MAX_ID_CHARS),
        text_end=text_end,
        audio_end_ms=fields.integer("audio_end_ms", 0, _AUDIO_MS_LIMIT) or 0,
    )


def _read_truncate(
    fields: Fields, settings: SessionSettings, card: ModelCard
) -> TruncateConversation:
    fields.only(("type", "event_id", "item_id"))
    item_id = fields.required_string("item_id", MAX_ID_CHARS)
    return TruncateConversation(None if item_id == "root" else item_id)


def _read_response_create(
    fields: Fields, settings: SessionSettings, card: ModelCard
) -> CreateResponse:
    fields.only(("type", "event_id", "response", "repartee.answers"))
    response = fields.object("response") or Fields({}, "response")
    response.only(
        (
            "conversation",
            "input",
            "instructions",
            "max_output_tokens",
            "metadata",
            "output_modalities",
            "repartee",
            "audio",
            "tool_choice",
            "parallel_tool_calls",
            "tools",
            "prompt",
            "reasoning",
        )
    )
    check_modalities(response)
    refuse_tools(response)
    in_conversation = response.choice("conversation", ("auto", "none")) != "none"
    instructions = response.string("instructions")
    return CreateResponse(
        in_conversation=in_conversation,
        input=_read_inputs(response, card),
        instructions=settings.instructions if instructions is None else instructions,
        sampling=_read_response_sampling(response, settings, card),
        metadata=read_metadata(response),
        answers=fields.string("repartee.answers", MAX_ID_CHARS),
    )


def _read_inputs(response: Fields, card: ModelCard) -> tuple[NewItem | ItemReference, ...] | None:
    values = response.array("input")
    if values is None:
        return None
    path = response.param("input")
    inputs = tuple(read_input(Fields.of(v, join(path, i))) for i, v in enumerate(values))
    check_size([item.message for item in inputs if isinstance(item, NewItem)], card, path)
    return inputs


def _read_response_sampling(
    response: Fields, settings: SessionSettings, card: ModelCard
) -> SamplingParams:
    limit = settings.max_output_tokens
    if response.get("max_output_tokens") is not None:
        limit = read_limit(response)
    private = response.object("repartee") or Fields({}, response.param("repartee"))
    private.only(SAMPLING_FIELDS)
    merged = {**settings.sampling, **private.source}
    return read_sampling(Fields(merged, private.path), limit, card.vocab_size)


def _read_response_cancel(
    fields: Fields, settings: SessionSettings, card: ModelCard
) -> CancelResponse:
    fields.only(("type", "event_id", "response_id"))
    return CancelResponse(fields.string("response_id", MAX_ID_CHARS))


def _read_input_draft(fields: Fields, settings: SessionSettings, card: ModelCard) -> InputDraft:
    fields.only(("type", "event_id", "text"))
    draft = InputDraft(fields.required_string("text"))
    check_size([Message("user", draft.text)], card, "text")
    return draft


def _read_renewal(fields: Fields, settings: SessionSettings, card: ModelCard) -> RenewToken:
    fields.only(("type", "event_id", "token"))
    return RenewToken(fields.required_string("token", MAX_TOKEN_CHARS))


def _read_ping(fields: Fields, settings: SessionSettings, card: ModelCard) -> Ping:
    fields.only(("type", "event_id"))
    return Ping()


_READERS: dict[str, Callable[[Fields, SessionSettings, ModelCard], Command]] = {
    "session.update": _read_session_update,
    "conversation.item.create": _read_item_create,
    "conversation.item.retrieve": _read_item_retrieve,
    "conversation.item.delete": _read_item_delete,
    "conversation.item.truncate": _read_item_truncate,
    "response.create": _read_response_create,
    "response.cancel": _read_response_cancel,
    "repartee.conversation.truncate": _read_truncate,
    "repartee.input_draft": _read_input_draft,
    "repartee.token.renew": _read_renewal,
    "repartee.ping": _read_ping,
}
