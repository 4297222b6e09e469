"""A client that will have its answer, whatever falls meanwhile: it reconnects and resumes."""

from __future__ import annotations

import asyncio
import json
import random
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, WebSocketException

MAX_FRAME_BYTES = 1 << 22
RETRY_S = (0.1, 0.5)
# A socket that says nothing for so long is given up for another.
SILENT_S = 6.0


@dataclass
class Asked:
    """One question and what became of it.

    Attributes:
        prompt: What is said.
        seed: Of the answer.
        max_tokens: Its length at most.
        temperature: 0 for a greedy answer.
        text: The answer as the client put it together.
        stored: The answer as the conversation keeps it.
        response_ids: Responses that it heard of; one, if all is well.
        tokens: Of each of these, how many tokens were charged and how many were shown.
        num_sockets: Sockets that it took.
        num_resumed: Of those, how many took up a running answer.
        num_ends: Times that it was told of the end.
        failure: What the server said of a failed answer; empty if none failed.
    """

    prompt: str
    seed: int
    max_tokens: int
    temperature: float = 1.0
    text: str = ""
    stored: str | None = None
    response_ids: list[str] = field(default_factory=list)
    tokens: list[tuple[int, int]] = field(default_factory=list)
    num_sockets: int = 0
    num_resumed: int = 0
    num_ends: int = 0
    failure: str = ""


class LostSocketError(Exception):
    """The socket can't be used any more."""


class StubbornClient:
    """One conversation with one turn.

    Args:
        asked: What to ask; filled in.
        ports: The gateways' ports, as they are now.
        rng: Chooses gateways and waits.
    """

    def __init__(self, asked: Asked, ports: Callable[[], list[int]], rng: random.Random) -> None:
        self.asked = asked
        self.session_id: str | None = None
        self._ports = ports
        self._rng = rng
        self._item_id = f"item_{secrets.token_hex(8)}"
        self._cursor: dict[str, int] | None = None
        self._texts: list[str] = []
        self._is_live = False
        self._is_done = False

    async def run(self) -> None:
        """Until the answer is there and stored."""
        while not self._is_done:
            try:
                await self._try_once()
            except (OSError, WebSocketException, InvalidHandshake, LostSocketError, TimeoutError):
                await asyncio.sleep(self._rng.uniform(*RETRY_S))
        self.asked.text = "".join(self._texts)

    async def _try_once(self) -> None:
        ports = self._ports()
        if not ports:
            raise LostSocketError("no gateway")
        url = f"ws://127.0.0.1:{self._rng.choice(ports)}/v1/realtime"
        if self.session_id is not None:
            url += f"?session_id={self.session_id}"
            if self._cursor is not None:
                url += f"&epoch={self._cursor['epoch']}&starting_after={self._cursor['seq']}"
        async with connect(url, max_size=MAX_FRAME_BYTES, compression=None, open_timeout=5) as ws:
            self.asked.num_sockets += 1
            await self._converse(ws)

    async def _converse(self, ws: ClientConnection) -> None:
        greeting = await self._receive(ws)
        if greeting["type"] != "session.created":
            raise LostSocketError(str(greeting))
        self.session_id = greeting["session"]["id"]
        items = greeting["repartee.items"] or []
        if self._found(items):
            return
        # Whether an answer runs is told before the pong.
        self._is_live = False
        await ws.send(json.dumps({"type": "repartee.ping"}))
        while not self._is_done and (event := await self._receive(ws))["type"] != "repartee.pong":
            self._take(event)
        if not self._is_live and not self._is_done:
            await self._ask(ws, items)
        while not self._is_done:
            self._take(await self._receive(ws))

    async def _receive(self, ws: ClientConnection) -> dict[str, Any]:
        async with asyncio.timeout(SILENT_S):
            event: dict[str, Any] = json.loads(await ws.recv())
        return event

    def _found(self, items: list[dict[str, Any]]) -> bool:
        """Whether the answer was finished meanwhile."""
        answers = [item for item in items if item["role"] == "assistant"]
        if not answers:
            return False
        self._texts = [part["text"] for part in answers[-1]["content"]]
        self.asked.num_ends += 1
        self._is_done = True
        return True

    async def _ask(self, ws: ClientConnection, items: list[dict[str, Any]]) -> None:
        content = [{"type": "input_text", "text": self.asked.prompt}]
        item = {"id": self._item_id, "type": "message", "role": "user", "content": content}
        frames: list[dict[str, Any]] = []
        if not items:
            frames.append({"type": "conversation.item.create", "item": item})
        frames.append(
            {
                "type": "response.create",
                "repartee.answers": self._item_id,
                "response": {
                    "max_output_tokens": self.asked.max_tokens,
                    # To its length, so that something can fall in its midst.
                    "repartee": {
                        "seed": self.asked.seed,
                        "temperature": self.asked.temperature,
                        "ignore_eos": True,
                    },
                },
            }
        )
        for number, frame in enumerate(frames):
            await ws.send(json.dumps({"event_id": f"{self._item_id}-{number}", **frame}))

    def _take(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "response.created":
            self._note_response(event["response"]["id"])
        elif kind == "repartee.response.resumed":
            self._is_live = True
            self.asked.num_resumed += 1
            self._note_response(event["response"]["id"])
            if event["text"] is not None:
                self._texts = [event["text"]]
            self._cursor = event["repartee.cursor"]
        elif kind == "response.output_text.delta":
            self._texts.append(event["delta"])
            self._cursor = event["repartee.cursor"]
        elif kind == "response.done":
            self._end(event["response"])
        elif kind == "error":
            # Busy or gone: another socket finds out what holds.
            raise LostSocketError(str(event["error"]))

    def _note_response(self, response_id: str) -> None:
        if response_id not in self.asked.response_ids:
            self.asked.response_ids.append(response_id)
            self._texts = []

    def _end(self, response: dict[str, Any]) -> None:
        error = response["status_details"]["error"] if response["status"] == "failed" else {}
        if error.get("code") == "overloaded":
            # It was never begun; whoever stays gets it later.
            self.asked.response_ids.remove(response["id"])
            raise LostSocketError(str(error))
        self.asked.num_ends += 1
        self._is_done = True
        self.asked.failure = str(error) if error else ""
