"""A model's own chat template: messages to the token ids of a prompt.

The template runs as written, on the messages as sent, with one exception: where a
message spells a control token, the spelling is broken by a random guard that is
taken out again before encoding. So templates may trim and cut as they like, harmless
messages give the ids that rendering and encoding in one go would give, and a spelling
typed by a user stays text.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import ext, nodes, parser, sandbox

from engine.contract import ContextLengthExceeded, InvalidRequest, Message
from engine.tokenizer import Tokenizer
from engine.turn_memo import Recall

# What a template can raise on messages that it wasn't written for.
_TEMPLATE_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
_ROLE = re.compile(r"[A-Za-z_]{1,32}")


class ChatTemplate:
    """Renders and encodes conversations.

    Whatever the last message's role, the prompt ends with the opening of a new
    assistant turn: a last message from the assistant is one of its earlier answers.

    Args:
        source: Jinja source, as in the model's files.
        tokenizer: The model's.
        context_window: Tokens of prompt and answer together.

    Raises:
        ValueError: when the source isn't a Jinja template.
    """

    def __init__(self, source: str, tokenizer: Tokenizer, context_window: int) -> None:
        self._tokenizer = tokenizer
        self._context_window = context_window
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise ValueError(f"chat template is not valid Jinja ({error})") from error

    def encode(self, messages: Sequence[Message], recall: Recall | None = None) -> list[int]:
        """Ids of the prompt for the next answer.

        Args:
            messages: The conversation.
            recall: Knows what was tokenised before; see `engine.turn_memo`.

        Raises:
            InvalidRequest: no messages, an odd role, or what the template refuses.
            ContextLengthExceeded: the prompt leaves no room for an answer.
        """
        guard = _fresh_guard(messages)
        rendered = self.render(messages, guard)
        # UTF-8 has at least one byte a character, so that most prompts pass uncounted.
        if len(rendered) * 4 >= self._context_window:
            least = -(-len(rendered.encode()) // self._tokenizer.max_token_bytes)
            self._check_length(least, "at least ")
        ids = self._tokenizer.encode_marked(rendered, guard, recall)
        self._check_length(len(ids), "")
        return ids

    def render(self, messages: Sequence[Message], guard: str = "") -> str:
        """The prompt as text, control tokens spelled out.

        Args:
            messages: The conversation.
            guard: What to break control spellings in contents with; "" leaves them.
        """
        if not messages:
            raise InvalidRequest("messages must hold at least one message.", param="messages")
        turns = [self._turn(index, message, guard) for index, message in enumerate(messages)]
        try:
            return self._template.render(
                messages=turns,
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._tokenizer.named,
            )
        except _TEMPLATE_ERRORS as error:
            raise InvalidRequest(
                f"messages do not fit the model's chat template: {error}.", param="messages"
            ) from error

    def _turn(self, index: int, message: Message, guard: str) -> dict[str, str]:
        # A role is written between the template's own markers, so it must be a plain word.
        if not _ROLE.fullmatch(message.role):
            raise InvalidRequest(
                f"messages.{index}.role must be a word of at most 32 letters, "
                f"got {message.role!r:.80}.",
                param=f"messages.{index}.role",
            )
        content = message.content
        try:
            content.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"messages.{index}.content must be Unicode text, "
                f"holds half a surrogate pair at character {error.start}.",
                param=f"messages.{index}.content",
            ) from error
        return {
            "role": message.role,
            "content": self._tokenizer.guarded(content, guard) if guard else content,
        }

    def _check_length(self, num_tokens: int, prefix: str) -> None:
        if num_tokens >= self._context_window:
            raise ContextLengthExceeded(
                f"messages have {prefix}{num_tokens} tokens; the model's context window is "
                f"{self._context_window} tokens and must leave room for an answer.",
                param="messages",
            )


def _fresh_guard(messages: Sequence[Message]) -> str:
    """A string that no message contains and that never overlaps with itself."""
    while True:
        # Two noncharacters around hexadecimal digits.
        guard = f"\ufdd0{secrets.token_hex(8)}\ufdd1"
        if not any(guard in message.content for message in messages):
            return guard


class _Generation(ext.Extension):
    """`{% generation %}`, which marks answers for training and renders as its body."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's own convention)

    def parse(self, source: parser.Parser) -> list[nodes.Node]:
        next(source.stream)
        return source.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> sandbox.ImmutableSandboxedEnvironment:
    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
