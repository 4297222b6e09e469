"""Users of every tier over WebSocket, as people are: they think, type, stop, reload, read slowly.

    locust -f load_tests/locustfile.py --headless -u 20 -r 2 -t 2m \\
        --host http://127.0.0.1:8080 --csv load --html load.html

Keys of the tiers come from CHAT_KEY_VIP, CHAT_KEY_STANDARD and CHAT_KEY_BATCH; a
tier without a key is left out once any is set. Each turn's text is checked against what the
server keeps of the conversation: a lost or doubled piece is a failure, `text`. Rows of the
table: `first text` and `gap` (milliseconds), `turn`, `stopped`, `reloaded`; their names begin
with the tier.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import gevent
import websocket
from locust import User, between, constant, task
from locust.exception import StopUser

TURN_TIMEOUT_S = 120.0
TYPING_S = 0.15
STALL_MS = 1000.0
_QUESTIONS = (
    "Name three rivers and say one thing about each.",
    "How does a paper boat stay afloat?",
    "Write a short poem about the first snow.",
    "What would you pack for a week in the mountains?",
    "Explain to a child why the sea is salty.",
)


class TextError(Exception):
    """What arrived is not what the server keeps."""


class ChatUser(User):
    """One person with one conversation.

    Attributes:
        tier: For the names in the table.
    """

    abstract = True
    wait_time = between(1, 5)
    tier = ""

    def on_start(self) -> None:
        """Open a conversation."""
        keys = {tier: os.environ.get(f"CHAT_KEY_{tier.upper()}", "") for tier in _TIERS}
        if any(keys.values()) and not keys[self.tier]:
            raise StopUser
        self._key = keys[self.tier]
        self._session_id = ""
        self._open()

    def on_stop(self) -> None:
        """Leave."""
        with suppress(Exception):
            self._socket.close()

    def _open(self) -> dict[str, Any]:
        base = self.host.replace("http", "ws", 1).rstrip("/")
        query = f"?session_id={self._session_id}" if self._session_id else ""
        headers = [f"Authorization: Bearer {self._key}"] if self._key else []
        self._socket = websocket.create_connection(
            f"{base}/v1/realtime{query}", header=headers, timeout=TURN_TIMEOUT_S
        )
        greeting: dict[str, Any] = json.loads(self._socket.recv())
        self._session_id = greeting["session"]["id"]
        return greeting

    def _send(self, kind: str, **fields: Any) -> None:
        self._socket.send(json.dumps({"type": kind, **fields}))

    def _events(self) -> Iterator[dict[str, Any]]:
        while True:
            event = json.loads(self._socket.recv())
            if event["type"] == "error":
                raise RuntimeError(f"{event['error']['code']}: {event['error']['message']}")
            yield event

    def _note(self, name: str, ms: float, size: int = 0, error: Exception | None = None) -> None:
        self.environment.events.request.fire(
            request_type="WS",
            name=f"{self.tier} {name}",
            response_time=ms,
            response_length=size,
            exception=error,
            context={},
        )

    def _ask(self) -> float:
        """Type a question with its drafts, and send it; when it was sent."""
        question = random.choice(_QUESTIONS)
        words = question.split()
        for number in range(2, len(words), 3):
            self._send("repartee.input_draft", text=" ".join(words[:number]))
            gevent.sleep(TYPING_S)
        item = {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": question}],
        }
        sent_at = time.monotonic()
        self._send("conversation.item.create", item=item)
        self._send("response.create", response={"max_output_tokens": 96})
        return sent_at

    def _read(self, sent_at: float, pause_s: float = 0.0) -> str:
        """Read an answer to its end, and check it."""
        text, last_at = "", 0.0
        for event in self._events():
            kind, now = event["type"], time.monotonic()
            if kind == "response.output_text.delta":
                if last_at:
                    self._note("gap", (now - last_at) * 1000)
                    if (now - last_at) * 1000 > STALL_MS and not pause_s:
                        self._note("stall", (now - last_at) * 1000)
                else:
                    self._note("first text", (now - sent_at) * 1000)
                text, last_at = text + event["delta"], now
                gevent.sleep(pause_s)
            elif kind == "response.output_text.done" and event["text"] != text:
                raise TextError(f"{len(text)} characters came of {len(event['text'])}")
            elif kind == "response.done":
                if event["response"]["status"] == "failed":
                    raise RuntimeError(str(event["response"]["status_details"]["error"]["code"]))
                return text
        return text

    def _turn(self, name: str, pause_s: float = 0.0) -> None:
        started = time.monotonic()
        try:
            text = self._read(self._ask(), pause_s)
        except Exception as error:
            self._fail(name, started, error)
            return
        self._note(name, (time.monotonic() - started) * 1000, len(text))

    def _fail(self, name: str, started: float, error: Exception) -> None:
        """Count it, and come back on a new socket, as a page does."""
        label = "text" if isinstance(error, TextError) else name
        self._note(label, (time.monotonic() - started) * 1000, error=error)
        self.on_stop()
        gevent.sleep(1)
        self._session_id = ""
        self._open()

    @task(10)
    def turn(self) -> None:
        """Ask and read."""
        self._turn("turn")

    @task(2)
    def read_slowly(self) -> None:
        """Ask, and read a chunk each fifth of a second."""
        self._turn("slow turn", 0.2)

    @task(2)
    def stop_an_answer(self) -> None:
        """Ask, and stop the answer at its first words."""
        started = time.monotonic()
        try:
            self._ask()
            for event in self._events():
                if event["type"] == "response.output_text.delta":
                    self._send("response.cancel")
                    break
                if event["type"] == "response.done":
                    break
            stopped_at = time.monotonic()
            for event in self._events():
                if event["type"] == "response.done":
                    break
        except Exception as error:
            if "response_cancel_not_active" not in str(error):
                self._fail("stopped", started, error)
            return
        self._note("stopped", (time.monotonic() - stopped_at) * 1000)

    @task(2)
    def reload(self) -> None:
        """Lose the socket within an answer, come back, and find the whole of it."""
        started = time.monotonic()
        try:
            self._ask()
            before = ""
            for event in self._events():
                if event["type"] == "response.output_text.delta":
                    before += event["delta"]
                    break
            self._socket.shutdown()
            text = self._take_up()
            if not text.startswith(before):
                raise TextError(f"{before[:40]!r} was seen, {text[:40]!r} is kept")
        except Exception as error:
            self._fail("reloaded", started, error)
            return
        self._note("reloaded", (time.monotonic() - started) * 1000, len(text))

    def _take_up(self) -> str:
        """Open the session again and read on; the whole answer."""
        greeting = self._open()
        items = greeting["repartee.items"]
        last = items[-1] if items else {"role": "user"}
        if last["role"] == "assistant":
            return str(last["content"][0]["text"])
        text = ""
        for event in self._events():
            kind = event["type"]
            if kind == "repartee.response.resumed":
                text = event["text"]
            elif kind == "response.output_text.delta":
                text += event["delta"]
            elif kind == "response.output_text.done" and event["text"] != text:
                raise TextError(f"{len(text)} characters came of {len(event['text'])}")
            elif kind == "response.done":
                break
        return text


class VipUser(ChatUser):
    """Pays."""

    tier = "vip"
    weight = 1


class StandardUser(ChatUser):
    """Most people."""

    tier = "standard"
    weight = 6


class BatchUser(ChatUser):
    """A program: asks again at once."""

    tier = "batch"
    weight = 1
    wait_time = constant(0)


_TIERS = ("vip", "standard", "batch")
