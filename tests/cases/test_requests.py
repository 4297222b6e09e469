"""Requests to the packaged model: prompts, limits and sampling, right and wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.cases.ask import Messages, Product, RefusedError, Way

USER = {"role": "user", "content": "Hi"}


async def refusal(way: Way, messages: Messages, **fields: Any) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        await way(messages, **fields)
    assert caught.value.error.get("status", 400) == 400
    return caught.value


async def test_tpl_06_no_second_first_token(product: Product) -> None:
    for way in product.ways:
        answer = await way("Hi")
        assert (answer.prompt_tokens, answer.finish) == (31, "stop")


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "user", "content": None}], "messages.0.content"),
        ([USER, {"role": "user"}], "messages.1.content"),
        ([], "messages"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image_url"}]}],
            "messages.0.content.1",
        ),
    ],
)
async def test_tpl_01_02_04_wrong_messages_name_their_place(
    product: Product, messages: list[dict[str, Any]], param: str
) -> None:
    for way in (product.plain, product.streamed):
        assert (await refusal(way, messages)).param == param


async def test_tpl_01_02_04_07_odd_messages_mean_the_same_everywhere(product: Product) -> None:
    parts = [{"type": "text", "text": "Name a "}, {"type": "text", "text": "color"}]
    silent = [USER, {"role": "assistant", "content": ""}, USER]
    roles = ("system", "user", "user", "system", "assistant")
    odd = [{"role": role, "content": letter} for role, letter in zip(roles, "ABCDE", strict=True)]
    conversations: list[Messages] = [[{"role": "user", "content": parts}], silent, odd, "", "   "]
    for messages in conversations:
        answers = [await way(messages, max_tokens=6) for way in product.ways]
        assert answers[0] == answers[1] == answers[2]
    assert await product.plain(conversations[0]) == await product.plain("Name a color")
    null = [USER, {"role": "assistant", "content": None}, USER]
    assert await product.plain(null) == await product.plain(silent)
    # Without a system turn, the template puts its own before the user's.
    assert (await product.plain("", max_tokens=1)).prompt_tokens == 30
    only_system = [{"role": "system", "content": "Be kind"}]
    assert (await product.plain(only_system, max_tokens=1)).prompt_tokens == 11


async def test_smp_01_smp_05_whatever_leaves_one_choice_is_greedy(product: Product) -> None:
    greedy = await product.plain("Name a fruit.")
    assert greedy.text
    fields: list[dict[str, Any]] = [
        *({"temperature": temperature} for temperature in (1e-4, 1e-6, 1e-30)),
        *({"temperature": 1, **f} for f in ({"top_p": 0.0001}, {"top_p": 0}, {"top_k": 1})),
    ]
    answers = [
        await product.ways[i % 3]("Name a fruit.", seed=i, **f) for i, f in enumerate(fields)
    ]
    assert set(answers) == {greedy}


async def test_smp_05_top_k_from_the_vocabulary_up_is_off(product: Product) -> None:
    answers = {
        await product.plain("Name a fruit.", temperature=1, seed=9, top_k=top_k)
        for top_k in (0, -1, 49152, 49153, 9_999_999)
    }
    assert len(answers) == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        *(({"logit_bias": {key: 1}}, "logit_bias") for key in ("49152", "-1", "abc", "1.5")),
        ({"logit_bias": {"5": 1e308}}, "logit_bias"),
        ({"stop_token_ids": [49152], "min_tokens": 5}, "stop_token_ids"),
        ({"stop": ""}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": {"a": 1}}, "stop"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 1.0001}, "top_p"),
    ],
)
async def test_smp_02_03_04_stp_04_wrong_values_name_their_field_on_both_apis(
    product: Product, fields: dict[str, Any], param: str
) -> None:
    running = asyncio.create_task(product.streamed("Tell me a story.", max_tokens=20))
    for way in product.ways:
        assert (await refusal(way, "Hi", **fields)).param in (param, f"response.repartee.{param}")
    answer = await running
    assert answer.completion_tokens == 20


@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"1e999"])
@pytest.mark.parametrize("name", ["temperature", "top_p", "frequency_penalty"])
async def test_smp_02_numbers_that_are_none(product: Product, name: str, value: bytes) -> None:
    body = b'{"messages":[{"role":"user","content":"Hi"}],"%s":%s}' % (name.encode(), value)
    response = await product.post(body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == name


async def test_smp_07_a_seed_holds_beside_unseeded_requests(product: Product) -> None:
    seeded = {"temperature": 0.8, "seed": 42}
    lone = await product.plain("Tell me a story.", **seeded)
    asked = []
    for i in range(6):
        asked.append(product.ways[i % 3]("Tell me a story.", **seeded))
        asked.append(product.plain(f"Noise number {i}.", temperature=1))
    answers = await asyncio.gather(*asked)
    assert set(answers[::2]) == {lone}
    assert await product.plain("Tell me a story.", temperature=0.8, seed=43) != lone


async def test_smp_09_limits_on_tokens(product: Product) -> None:
    for value in (0, -5, 1.5, "10", 10**12):
        assert (await refusal(product.plain, "Hi", max_tokens=value)).param == "max_tokens"
    for way in product.ways:
        one = await way("Hi", max_tokens=1)
        assert (one.completion_tokens, one.finish) == (1, "length")
        assert (await way("Hi", max_tokens=None)).finish == "stop"


async def test_smp_11_more_than_one_choice_is_refused(product: Product) -> None:
    for way in (product.plain, product.streamed):
        assert (await refusal(way, "Hi", n=3)).param == "n"
