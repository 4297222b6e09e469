"""Sound bodies and client events, as templates to spoil; and the ids that answers name."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from load_tests.chaos_processes import MODEL

_KEPT_IDS = 200
_TEXTS = ("Hi", "Tell me about rivers.", "Nazdar, světe", "日本語", "a\nb", "", "x" * 3000)


def _ids() -> deque[str]:
    return deque(maxlen=_KEPT_IDS)


@dataclass
class Known:
    """What one tenant has been told of its own."""

    sessions: deque[str] = field(default_factory=_ids)
    responses: deque[str] = field(default_factory=_ids)
    items: deque[str] = field(default_factory=_ids)

    def one_of(self, kind: str, rng: random.Random) -> str:
        """An id of a kind, or one of nobody's."""
        ids: deque[str] = getattr(self, kind)
        if not ids or rng.random() < 0.1:
            return rng.choice(("x", "root", "sess_" + "0" * 24, "resp_" + "f" * 24, "item_{a}"))
        return rng.choice(ids)


def sampling(rng: random.Random) -> dict[str, Any]:
    """Some sampling fields."""
    every: dict[str, Any] = {
        "temperature": rng.choice((0, 0.7, 1, 2)),
        "top_p": rng.choice((0.1, 0.9, 1)),
        "top_k": rng.choice((-1, 0, 1, 40)),
        "min_p": 0.05,
        "seed": rng.randrange(2**32),
        "stop": rng.choice(("the", ["river", "old"], [], None)),
        "logit_bias": {"5": 1, "49151": -100},
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "repetition_penalty": 1.1,
        "stop_token_ids": [2],
        "min_tokens": 1,
        "ignore_eos": True,
    }
    return {name: every[name] for name in rng.sample(sorted(every), rng.choice((0, 0, 1, 3)))}


def _parts(kind: str, rng: random.Random) -> list[dict[str, str]]:
    return [{"type": kind, "text": rng.choice(_TEXTS)} for _ in range(rng.choice((1, 1, 2)))]


def _limit(rng: random.Random) -> int:
    return rng.choice((1, 2, 8, 30, 60))


def chat(rng: random.Random, known: Known) -> dict[str, Any]:
    """A chat completion."""
    messages = [
        {
            "role": rng.choice(("system", "user", "user", "assistant", "developer")),
            "content": rng.choice((rng.choice(_TEXTS), _parts("text", rng))),
        }
        for _ in range(rng.choice((1, 1, 2, 5)))
    ]
    body = {"model": MODEL, "messages": messages, "max_tokens": _limit(rng), **sampling(rng)}
    if rng.random() < 0.5:
        body["stream"] = True
        body["stream_options"] = {"include_usage": rng.random() < 0.5}
    return body


def response(rng: random.Random, known: Known) -> dict[str, Any]:
    """A create of the Responses API."""
    message = {"role": "user", "content": _parts("input_text", rng)}
    body: dict[str, Any] = {
        "model": MODEL,
        "input": rng.choice((rng.choice(_TEXTS), [{"type": "message", **message}])),
        "max_output_tokens": _limit(rng),
        **sampling(rng),
    }
    if rng.random() < 0.3:
        body["previous_response_id"] = known.one_of("responses", rng)
    extras = {
        "store": rng.random() < 0.7,
        "instructions": "Be short.",
        "metadata": {"a": "b"},
        "generate": rng.random() < 0.7,
        "text": {"format": {"type": "text"}, "verbosity": "low"},
    }
    return body | {name: extras[name] for name in rng.sample(sorted(extras), rng.randrange(3))}


def http_response(rng: random.Random, known: Known) -> dict[str, Any]:
    """The same, as a POST may have it."""
    return response(rng, known) | rng.choice(({}, {"stream": True}, {"background": True}))


def settings(rng: random.Random, known: Known) -> dict[str, Any]:
    """A Realtime session's."""
    return {
        "type": "realtime",
        "instructions": rng.choice(_TEXTS),
        "max_output_tokens": rng.choice(("inf", 5, 40)),
        "output_modalities": ["text"],
        "repartee": sampling(rng),
    }


def secret(rng: random.Random, known: Known) -> dict[str, Any]:
    """What asks for a client secret."""
    expiry = {"anchor": "created_at", "seconds": rng.choice((10, 600, 7200))}
    return {"expires_after": expiry, "session": settings(rng, known)}


def ticket(rng: random.Random, known: Known) -> dict[str, Any]:
    """What asks for a ticket."""
    return {"session": settings(rng, known)}


def title(rng: random.Random, known: Known) -> dict[str, Any]:
    """A session's new name."""
    return {"title": rng.choice(("A name", "š" * 200, "two\nlines", "<b>"))}


def item(rng: random.Random, known: Known) -> dict[str, Any]:
    """A conversation's item."""
    role = rng.choice(("user", "user", "system", "assistant"))
    kind = "output_text" if role == "assistant" else "input_text"
    made = {"type": "message", "role": role, "content": _parts(kind, rng)}
    if rng.random() < 0.5:
        made["id"] = f"item_{rng.randrange(10**6)}"
    return made


def realtime_response(rng: random.Random, known: Known) -> dict[str, Any]:
    """`response.create`'s response."""
    body: dict[str, Any] = {"max_output_tokens": _limit(rng), "repartee": sampling(rng)}
    if rng.random() < 0.4:
        body["conversation"] = "none"
        reference = {"type": "item_reference", "id": known.one_of("items", rng)}
        body["input"] = rng.choice(([item(rng, known)], [reference], [item(rng, known), reference]))
    if rng.random() < 0.2:
        body["metadata"] = {"k": "v"}
    return body


Template = Callable[[random.Random, Known], dict[str, Any]]


def _event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, **fields}


def _add_item(rng: random.Random, known: Known) -> dict[str, Any]:
    return _event("conversation.item.create", item=item(rng, known))


def _answer(rng: random.Random, known: Known) -> dict[str, Any]:
    return _event("response.create", response=realtime_response(rng, known))


REALTIME: tuple[Template, ...] = (
    *[_add_item] * 5,
    *[_answer] * 5,
    lambda rng, known: _event("session.update", session=settings(rng, known)),
    lambda rng, known: _event(
        "conversation.item.create",
        item=item(rng, known),
        previous_item_id=known.one_of("items", rng),
    ),
    lambda rng, known: _event("conversation.item.retrieve", item_id=known.one_of("items", rng)),
    lambda rng, known: _event("conversation.item.delete", item_id=known.one_of("items", rng)),
    lambda rng, known: {
        "type": "conversation.item.truncate",
        "item_id": known.one_of("items", rng),
        "content_index": 0,
        "audio_end_ms": 5,
        "repartee.text_end": rng.choice((0, 1, 7, 10**6)),
    },
    lambda rng, known: _event("response.create"),
    lambda rng, known: {
        "type": "response.create",
        "repartee.answers": known.one_of("items", rng),
        "response": realtime_response(rng, known),
    },
    lambda rng, known: _event("response.cancel"),
    lambda rng, known: _event("response.cancel", response_id=known.one_of("responses", rng)),
    lambda rng, known: _event(
        "repartee.conversation.truncate", item_id=rng.choice(("root", known.one_of("items", rng)))
    ),
    lambda rng, known: _event("repartee.input_draft", text=rng.choice(_TEXTS)),
    lambda rng, known: _event("repartee.token.renew", token="no-such-token-of-anybody"),
    lambda rng, known: _event("repartee.ping"),
)

RESPONSES: tuple[Template, ...] = (
    *[lambda rng, known: _event("response.create", **response(rng, known))] * 3,
    lambda rng, known: _event(
        "response.create", stream_id=f"lane-{rng.randrange(40)}", **response(rng, known)
    ),
    lambda rng, known: _event("response.cancel", response_id=known.one_of("responses", rng)),
    lambda rng, known: _event("response.cancel", stream_id=f"lane-{rng.randrange(40)}"),
    lambda rng, known: _event("response.cancel"),
)
