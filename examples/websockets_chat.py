"""Ask over a plain WebSocket, and lose nothing when the line is lost.

    python examples/websockets_chat.py "Tell me about herons."

REPARTEE_URL is where the server is (ws://127.0.0.1:8080/v1/realtime by default), REPARTEE_KEY its
key if it asks for one. Should the line break in mid-answer, the conversation is opened again and
the answer goes on after the last character that arrived; the ids make sending twice harmless.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from typing import Any
from urllib.parse import urlencode

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

URL = os.environ.get("REPARTEE_URL", "ws://127.0.0.1:8080/v1/realtime")
KEY = os.environ.get("REPARTEE_KEY")
RETRY_S = 0.5


class Turn:
    """One question, and as much of its answer as has come.

    Args:
        text: The question.
    """

    def __init__(self, text: str) -> None:
        number = uuid.uuid4().hex
        self.session_id: str | None = None
        self.cursor: dict[str, int] | None = None
        self._seen = 0
        item_id = f"item_{number}"
        content = [{"type": "input_text", "text": text}]
        item = {"id": item_id, "type": "message", "role": "user", "content": content}
        self._events: list[dict[str, Any]] = [
            {"type": "conversation.item.create", "event_id": f"evt_a{number}", "item": item},
            {
                "type": "response.create",
                "event_id": f"evt_b{number}",
                "repartee.answers": item_id,
            },
        ]

    @property
    def address(self) -> str:
        """Where to go on."""
        if self.session_id is None:
            return URL
        query: dict[str, str | int] = {"session_id": self.session_id}
        if self.cursor is not None:
            query |= {"epoch": self.cursor["epoch"], "starting_after": self.cursor["seq"]}
        return f"{URL}?{urlencode(query)}"

    async def follow(self, socket: ClientConnection) -> bool:
        """Send what is to be sent, and write the answer; whether it is complete."""
        async for frame in socket:
            event = json.loads(frame)
            match event["type"]:
                case "session.created":
                    self.session_id = event["session"]["id"]
                    answers = event.get("repartee.items", [])[1:]
                    if answers:
                        # It ended while nobody listened.
                        self._write(answers[-1]["content"][0]["text"][self._seen :])
                        return True
                    for each in self._events:
                        await socket.send(json.dumps(each))
                case "repartee.response.resumed" if event["text"] is not None:
                    self._write(event["text"][self._seen :])
                case "response.output_text.delta":
                    self.cursor = event["repartee.cursor"]
                    self._write(event["delta"])
                case "response.done":
                    if event["response"]["status"] == "failed":
                        raise RuntimeError(event["response"]["status_details"]["error"]["message"])
                    return True
                case "error" if event["error"]["code"] not in (
                    "duplicate_event",
                    "conversation_already_has_active_response",
                ):
                    raise RuntimeError(event["error"]["message"])
        return False

    def _write(self, text: str) -> None:
        self._seen += len(text)
        sys.stdout.write(text)
        sys.stdout.flush()


async def main(question: str) -> None:
    """Ask, and come back until the answer is complete."""
    protocols = ["realtime", *([f"openai-insecure-api-key.{KEY}"] if KEY else [])]
    turn = Turn(question)
    while True:
        try:
            async with connect(
                turn.address, subprotocols=[Subprotocol(name) for name in protocols]
            ) as socket:
                if await turn.follow(socket):
                    sys.stdout.write("\n")
                    return
        except (OSError, ConnectionClosed):
            pass
        await asyncio.sleep(RETRY_S)


if __name__ == "__main__":
    asyncio.run(main(" ".join(sys.argv[1:])))
