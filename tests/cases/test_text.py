"""Text of the packaged model: whole characters, no markers, exact stops, on every way."""

from __future__ import annotations

import asyncio

import pytest

from engine.loading import open_checkpoint
from tests.cases.ask import Product
from tests.engine.model_file import default_model

PROMPTS = (
    "List ten weather emoji",
    "Napiš větu o dešti",
    "เขียนเกี่ยวกับฝน",
    "写一句关于雨的话",
    "日本語で雨について書いて",
    "مرحبا كيف حالك",
    "Write 🐕 five times",
    "नमस्ते, मौसम कैसा है?",
)
POEM = "Write a haiku about the sea."


async def test_txt_01_bat_01_characters_stay_whole_alone_and_together(product: Product) -> None:
    alone = [await product.streamed(prompt) for prompt in PROMPTS]
    for answer in alone:
        assert answer.text
        joined = [delta for delta in answer.deltas if "\ufffd" in delta]
        # A half character can only be the very end of an answer that was cut.
        assert not joined or (answer.finish == "length" and answer.text.endswith("\ufffd"))
        "".join(answer.deltas).encode()
    together = await asyncio.gather(
        *(product.ways[i % 3](prompt) for i, prompt in enumerate(PROMPTS))
    )
    assert together == alone
    assert any(not answer.text.isascii() for answer in alone)


@pytest.mark.parametrize("token", ["10813", "238"])
async def test_txt_02_bytes_that_are_no_text_are_replaced_alike(
    product: Product, token: str
) -> None:
    fields = {"max_tokens": 5, "logit_bias": {token: 100}}
    answers = [await way("Hi", **fields) for way in product.ways]
    assert answers[0] == answers[1] == answers[2]
    assert set(answers[0].text) == {"\ufffd"}
    assert (answers[0].finish, answers[0].completion_tokens) == ("length", 5)


@pytest.mark.parametrize(("content", "num_tokens"), [("a<|im_end|>b", 39), ("ab", 31)])
async def test_spc_01_typed_markers_stay_text(
    product: Product, content: str, num_tokens: int
) -> None:
    for way in product.ways:
        assert (await way(content, max_tokens=1)).prompt_tokens == num_tokens


@pytest.mark.parametrize("temperature", [0, 1])
async def test_spc_03_no_marker_in_any_answer(product: Product, temperature: float) -> None:
    tokenizer = open_checkpoint(default_model()).tokenizer()
    spellings = [tokenizer.token_bytes(token).decode() for token in tokenizer.control_ids]
    spellings = [spelling for spelling in spellings if spelling]
    prompts = ["Hi", "Say hello.", "Bye", "1+1?", "Who are you?", "Name a colour.", "Thanks!"]
    answers = await asyncio.gather(
        *(
            product.ways[i % 3](prompt, temperature=temperature, seed=i, max_tokens=50)
            for i, prompt in enumerate(prompts)
        )
    )
    assert "stop" in {answer.finish for answer in answers}
    for answer in answers:
        assert "<|" not in answer.text
        assert not [spelling for spelling in spellings if spelling in answer.text]


async def test_stp_01_a_stop_across_deltas_is_cut_exactly(product: Product) -> None:
    whole = await product.streamed(POEM)
    deltas = [delta for delta in whole.deltas if delta]
    for place in (2, len(deltas) // 2):
        edge = sum(len(delta) for delta in deltas[:place])
        stop = whole.text[edge - 3 : edge + 3]
        answers = [await way(POEM, stop=stop) for way in product.ways]
        assert answers[0] == answers[1] == answers[2]
        assert answers[0].text == whole.text[: whole.text.index(stop)]
        assert answers[0].finish == "stop"


async def test_stp_02_stp_06_a_stop_that_never_comes_changes_nothing(product: Product) -> None:
    prompt = "List five colours, one per line."
    whole = await product.streamed(prompt, max_tokens=40)
    assert "\n" in whole.text
    for stop in ("\nZZZZ", "Z" * 400):
        for way in product.ways:
            assert await way(prompt, max_tokens=40, stop=stop) == whole
