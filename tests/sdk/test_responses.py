"""The unmodified OpenAI SDK on `/v1/responses`."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.gateway.live import MODEL, LiveGateway, say, script

TEXT = "Mañana 日本語 🐕, and more of it."
EVENTS = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


def kinds(events: list[Any]) -> list[str]:
    """Types in order, runs of deltas as one."""
    found = [event.type for event in events]
    return [kind for i, kind in enumerate(found) if i == 0 or kind != found[i - 1]]


def text_of(events: list[Any]) -> str:
    return "".join(e.delta for e in events if e.type == "response.output_text.delta")


async def test_plain(client: AsyncOpenAI) -> None:
    answer = await client.responses.create(
        model=MODEL,
        instructions="be kind",
        input=say(TEXT),
        metadata={"a": "b"},
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=900,
        extra_body={"top_k": 40, "seed": 3},
    )
    assert answer.output_text == TEXT and answer.status == "completed"
    assert answer.metadata == {"a": "b"} and answer.instructions == "be kind"
    assert (answer.temperature, answer.top_p, answer.max_output_tokens) == (0.5, 0.9, 900)
    assert answer.usage is not None and answer.usage.output_tokens_details.reasoning_tokens == 0
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert answer.completed_at is not None
    again = await client.responses.retrieve(answer.id)
    assert again.to_dict() == answer.to_dict()


async def test_stream(client: AsyncOpenAI) -> None:
    stream = await client.responses.create(model=MODEL, input=say(TEXT), stream=True)
    events = [event async for event in stream]
    assert kinds(events) == EVENTS and text_of(events) == TEXT
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    last = events[-1].response
    assert last.output_text == TEXT
    assert (await client.responses.retrieve(last.id)).to_dict() == last.to_dict()


async def test_the_stream_helper(client: AsyncOpenAI) -> None:
    async with client.responses.stream(model=MODEL, input=say(TEXT)) as stream:
        seen = [event async for event in stream]
        final = await stream.get_final_response()
    assert final.output_text == TEXT
    assert seen[-1].type == "response.completed"
    # The helper skips by number what it is sent from the beginning.
    deltas = [event for event in seen if event.type == "response.output_text.delta"]
    number = deltas[1].sequence_number
    async with client.responses.stream(response_id=final.id, starting_after=number) as stream:
        rest = [event async for event in stream]
    assert text_of(deltas[:2]) + text_of(rest) == TEXT


async def test_what_ends_early(client: AsyncOpenAI) -> None:
    answer = await client.responses.create(
        model=MODEL, input=script(num_tokens=50), max_output_tokens=5
    )
    assert answer.status == "incomplete" and answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.usage is not None and answer.usage.output_tokens == 5
    stream = await client.responses.create(
        model=MODEL, input=script(num_tokens=50, fail_after=5), stream=True
    )
    events = [event async for event in stream]
    assert events[-1].type == "response.failed"
    assert events[-1].response.error is not None
    assert events[-1].response.error.code == "server_error"
    kept = await client.responses.retrieve(events[-1].response.id)
    assert kept.status == "failed" and kept.output_text == text_of(events)


async def test_chains(client: AsyncOpenAI) -> None:
    previous, inputs = None, []
    for turn in range(4):
        answer = await client.responses.create(
            model=MODEL, input=say(f"turn {turn}"), previous_response_id=previous
        )
        assert answer.output_text == f"turn {turn}"
        assert answer.previous_response_id == previous
        assert answer.usage is not None
        inputs.append(answer.usage.input_tokens)
        previous = answer.id
    assert inputs == sorted(set(inputs))
    items = await client.responses.input_items.list(previous or "")
    assert [item.content[0].text for item in items.data] == [say("turn 3")]  # type: ignore[union-attr]
    with pytest.raises(openai.NotFoundError) as caught:
        await client.responses.create(model=MODEL, input="x", previous_response_id="resp_none")
    assert caught.value.code == "previous_response_not_found"
    assert caught.value.param == "previous_response_id"


async def test_items_as_input(client: AsyncOpenAI) -> None:
    first = await client.responses.create(model=MODEL, input=say("one"))
    answer = await client.responses.create(
        model=MODEL,
        input=[
            {"role": "developer", "content": "be kind"},
            {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
            *[item.to_dict() for item in first.output],  # type: ignore[list-item]
            {"type": "message", "role": "user", "content": say("two")},
        ],
    )
    assert answer.output_text == "two"
    page = await client.responses.input_items.list(answer.id, order="asc", limit=3)
    roles = [item.role async for item in page]  # type: ignore[union-attr]
    assert roles == ["developer", "user", "assistant", "user"]


async def test_background_and_cancel(client: AsyncOpenAI) -> None:
    running = await client.responses.create(
        model=MODEL, input=script(num_tokens=5000, rate=100), background=True
    )
    assert running.status == "in_progress" and running.output == []
    assert (await client.responses.retrieve(running.id)).status == "in_progress"
    with pytest.raises(openai.ConflictError):
        await client.responses.create(model=MODEL, input="x", previous_response_id=running.id)
    for _ in range(2):
        cancelled = await client.responses.cancel(running.id)
        assert cancelled.status == "cancelled"
    async with asyncio.timeout(10):
        stream = await client.responses.retrieve(running.id, stream=True)
        events = [event async for event in stream]
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.status == "cancelled"
    assert text_of(events) == cancelled.output_text


async def test_delete(client: AsyncOpenAI, gateway: LiveGateway) -> None:
    answer = await client.responses.create(model=MODEL, input="x")
    running = await client.responses.create(
        model=MODEL, input=script(num_tokens=5000, rate=100), background=True
    )
    for each in (answer, running):
        await client.responses.delete(each.id)
        with pytest.raises(openai.NotFoundError) as caught:
            await client.responses.retrieve(each.id)
        assert caught.value.code == "response_not_found"
    await gateway.settled()


async def test_a_response_that_is_not_stored(client: AsyncOpenAI) -> None:
    answer = await client.responses.create(model=MODEL, input=say("gone"), store=False)
    assert answer.output_text == "gone"
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(answer.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model=MODEL, input="x", previous_response_id=answer.id)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"temperature": 9}, "temperature"),
        ({"text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"background": True, "store": False}, "background"),
        ({"metadata": {"a": "x" * 600}}, "metadata.a"),
        ({"input": []}, "input"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input.0.role"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0"),
        ({"input": [{"type": "function_call_output"}]}, "input.0.type"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
async def test_wrong_requests_name_their_field(
    client: AsyncOpenAI, fields: dict[str, Any], param: str
) -> None:
    body = {"input": "x", **fields}
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(model=MODEL, extra_body=body)
    assert caught.value.param == param


async def test_refusals_leave_nothing(client: AsyncOpenAI, gateway: LiveGateway) -> None:
    refuse = script(refuse={"class": "Overloaded", "message": "full"})
    for is_stream in (False, True):
        with pytest.raises(openai.RateLimitError):
            await client.responses.create(model=MODEL, input=refuse, stream=is_stream)
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model="none", input="x")
    await gateway.settled()


async def test_the_sync_client(gateway: LiveGateway) -> None:
    def talk() -> str:
        with OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client:
            stream = client.responses.create(model=MODEL, input=say(TEXT), stream=True)
            return text_of(list(stream))

    assert await asyncio.to_thread(talk) == TEXT
