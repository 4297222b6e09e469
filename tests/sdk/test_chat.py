"""The unmodified OpenAI SDK on chat completions and models."""

from __future__ import annotations

import asyncio

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.gateway.live import MODEL, LiveGateway, say, script

TEXT = "Mañana 日本語 🐕, and more."


def ask(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": "be kind"}, {"role": "user", "content": text}]


async def test_plain(client: AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=ask(say(TEXT)))  # type: ignore[arg-type]
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens > 0


async def test_stream(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(  # type: ignore[call-overload]
        model=MODEL,
        messages=ask(say(TEXT)),
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"top_k": 40, "min_p": 0.1},
    )
    chunks = [chunk async for chunk in stream]
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == TEXT
    assert chunks[-1].usage.total_tokens > 0
    assert {c.id for c in chunks} == {chunks[0].id}


async def test_the_stream_helper(client: AsyncOpenAI) -> None:
    async with client.chat.completions.stream(model=MODEL, messages=ask(say(TEXT))) as stream:  # type: ignore[arg-type]
        final = await stream.get_final_completion()
    assert final.choices[0].message.content == TEXT


async def test_errors_become_the_sdk_s(client: AsyncOpenAI) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.NotFoundError):
        await create(model="none", messages=ask("x"))  # type: ignore[arg-type]
    with pytest.raises(openai.BadRequestError) as caught:
        await create(model=MODEL, messages=ask("x"), temperature=9)  # type: ignore[arg-type]
    assert caught.value.param == "temperature"
    refuse = script(refuse={"class": "Overloaded", "message": "full"})
    with pytest.raises(openai.RateLimitError):
        await create(model=MODEL, messages=ask(refuse))  # type: ignore[arg-type]
    stream = await create(model=MODEL, messages=ask(script(fail_after=5)), stream=True)  # type: ignore[arg-type]
    with pytest.raises(openai.APIError):
        async for _ in stream:
            pass


async def test_models(client: AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == [MODEL]
    assert (await client.models.retrieve(MODEL)).owned_by == "repartee"


async def test_the_sync_client(gateway: LiveGateway) -> None:
    def talk() -> str:
        with OpenAI(base_url=f"{gateway.url}/v1", api_key="any", max_retries=0) as client:
            stream = client.chat.completions.create(
                model=MODEL,
                messages=ask(say(TEXT)),  # type: ignore[arg-type]
                stream=True,
            )
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    assert await asyncio.to_thread(talk) == TEXT
