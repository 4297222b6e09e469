"""The unmodified OpenAI SDK on `/v1/realtime`."""

from __future__ import annotations

import asyncio
from typing import Any

from openai import AsyncOpenAI, OpenAI

from tests.gateway.live import MODEL, LiveGateway, say, script

TURN = [
    "conversation.item.added",
    "conversation.item.done",
    "response.created",
    "response.output_item.added",
    "conversation.item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "conversation.item.done",
    "response.output_item.done",
    "response.done",
]


async def ask(connection: Any, text: str) -> None:
    await connection.conversation.item.create(
        item={
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": text}],
        }
    )
    await connection.response.create()


async def until_done(connection: Any) -> list[Any]:
    events = []
    async with asyncio.timeout(10):
        async for event in connection:
            events.append(event)
            if event.type in ("response.done", "error"):
                return events
    raise AssertionError("the socket ended before the response")


async def test_one_turn_in_order(client: AsyncOpenAI) -> None:
    async with client.realtime.connect(model=MODEL) as connection:
        created = await connection.recv()
        assert created.type == "session.created"
        assert created.session.output_modalities == ["text"]
        assert created.session.model == MODEL
        await ask(connection, say("Hello 日本 🐕 there, how are you?"))
        events = await until_done(connection)
        kinds = [event.type for event in events]
        deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
        assert [k for i, k in enumerate(kinds) if i == 0 or k != kinds[i - 1]] == TURN
        assert "".join(deltas) == "Hello 日本 🐕 there, how are you?"
        response = events[-1].response
        assert response.status == "completed"
        assert response.output[0].content[0].text == "".join(deltas)
        assert response.usage.total_tokens == (
            response.usage.input_tokens + response.usage.output_tokens
        )
        cursors = [
            event.to_dict()["repartee.cursor"]
            for event in events
            if event.type in ("response.output_text.delta", "response.done")
        ]
        assert all(cursor["epoch"] == 1 for cursor in cursors)
        assert [c["seq"] for c in cursors] == sorted({c["seq"] for c in cursors})


async def test_many_turns_share_a_conversation(client: AsyncOpenAI) -> None:
    async with client.realtime.connect(model=MODEL) as connection:
        await connection.recv()
        inputs = []
        for turn in range(3):
            await ask(connection, say(f"answer {turn}"))
            done = (await until_done(connection))[-1]
            assert done.response.output[0].content[0].text == f"answer {turn}"
            inputs.append(done.response.usage.input_tokens)
        assert inputs == sorted(set(inputs))


async def test_session_update_shows_the_whole_session(client: AsyncOpenAI) -> None:
    async with client.realtime.connect(model=MODEL) as connection:
        await connection.recv()
        await connection.session.update(
            session={
                "type": "realtime",
                "instructions": "be brief",
                "max_output_tokens": 5,
                "repartee": {"seed": 7},  # type: ignore[typeddict-unknown-key]
            }
        )
        updated = await connection.recv()
        assert updated.type == "session.updated"
        assert updated.session.instructions == "be brief"
        assert updated.session.max_output_tokens == 5
        assert updated.session.to_dict()["repartee"] == {"seed": 7}
        await ask(connection, "hi")
        done = (await until_done(connection))[-1]
        assert done.response.status == "incomplete"
        assert done.response.status_details.reason == "max_output_tokens"
        assert done.response.usage.output_tokens == 5


async def test_cancel(client: AsyncOpenAI) -> None:
    async with client.realtime.connect(model=MODEL) as connection:
        await connection.recv()
        await ask(connection, script(num_tokens=1000, rate=50))
        async for event in connection:
            if event.type == "response.output_text.delta":
                break
        await connection.response.cancel()
        done = (await until_done(connection))[-1]
        assert done.response.status == "cancelled"
        assert done.response.status_details.reason == "client_cancelled"
        assert done.response.output[0].status == "incomplete"
        await connection.response.cancel(event_id="late")
        error = await connection.recv()
        assert error.type == "error"
        assert error.error.code == "response_cancel_not_active"
        assert error.error.event_id == "late"


async def test_items_are_retrieved_truncated_and_deleted(client: AsyncOpenAI) -> None:
    async with client.realtime.connect(model=MODEL) as connection:
        await connection.recv()
        await ask(connection, say("one two three"))
        done = (await until_done(connection))[-1]
        item_id = done.response.output[0].id
        await connection.send(
            {
                "type": "conversation.item.truncate",
                "item_id": item_id,
                "content_index": 0,
                "audio_end_ms": 0,
                "repartee.text_end": 7,
            }  # type: ignore[typeddict-unknown-key]
        )
        assert (await connection.recv()).type == "conversation.item.truncated"
        await connection.conversation.item.retrieve(item_id=item_id)
        retrieved = await connection.recv()
        assert retrieved.type == "conversation.item.retrieved"
        assert retrieved.item.content[0].text == "one two"
        await connection.conversation.item.delete(item_id=item_id)
        assert (await connection.recv()).type == "conversation.item.deleted"
        await connection.conversation.item.retrieve(item_id=item_id)
        assert (await connection.recv()).type == "error"


async def test_out_of_band_leaves_the_conversation_alone(client: AsyncOpenAI) -> None:
    async with client.realtime.connect(model=MODEL) as connection:
        await connection.recv()
        await connection.response.create(
            response={
                "conversation": "none",
                "metadata": {"topic": "title"},
                "input": [
                    {
                        "type": "message",
                        "role": "user",
                        "content": [{"type": "input_text", "text": say("A title")}],
                    }
                ],
            }
        )
        events = await until_done(connection)
        assert not [event for event in events if event.type.startswith("conversation.")]
        response = events[-1].response
        assert response.metadata == {"topic": "title"}
        assert response.conversation_id is None
        assert response.output[0].content[0].text == "A title"


async def test_the_sync_client(gateway: LiveGateway) -> None:
    def talk() -> list[str]:
        client = OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0)
        with client, client.realtime.connect(model=MODEL) as connection:
            connection.conversation.item.create(
                item={
                    "type": "message",
                    "role": "user",
                    "content": [{"type": "input_text", "text": say("sync")}],
                }
            )
            connection.response.create()
            kinds = []
            for event in connection:
                kinds.append(event.type)
                if event.type == "response.done":
                    return kinds
            return kinds

    kinds = await asyncio.to_thread(talk)
    assert kinds[0] == "session.created"
    assert kinds[-1] == "response.done"
