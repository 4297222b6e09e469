"""Ask over Realtime with the `openai` SDK, and see the answer as it is written.

    python examples/openai_realtime.py "What is a heron?" "And an egret?"

OPENAI_BASE_URL is where Repartee is (http://127.0.0.1:8080/v1 by default), OPENAI_API_KEY the key
if it asks for one. All questions are turns of one conversation.
"""

from __future__ import annotations

import asyncio
import os
import sys

from openai import AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection


async def ask(connection: AsyncRealtimeConnection, text: str) -> None:
    """One turn; writes the answer to standard output."""
    await connection.conversation.item.create(
        item={
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": text}],
        }
    )
    await connection.response.create()
    async for event in connection:
        if event.type == "response.output_text.delta":
            sys.stdout.write(event.delta)
            sys.stdout.flush()
        elif event.type == "error":
            raise RuntimeError(event.error.message)
        elif event.type == "response.done":
            sys.stdout.write("\n")
            if event.response.status == "failed":
                raise RuntimeError(f"the answer failed: {event.response.status_details}")
            return


async def main(questions: list[str]) -> None:
    """Ask all questions in turn."""
    client = AsyncOpenAI(
        base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8080/v1"),
        api_key=os.environ.get("OPENAI_API_KEY", "none"),
    )
    model = (await client.models.list()).data[0].id
    async with client, client.realtime.connect(model=model) as connection:
        for question in questions:
            await ask(connection, question)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
