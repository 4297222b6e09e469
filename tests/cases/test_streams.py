"""The packaged model's answers under way: ends, counts, leaving, cancelling, full windows."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
from typing import Any

import pytest

from tests.cases.ask import (
    PATIENCE_S,
    WINDOW_TOKENS,
    Answer,
    Product,
    RefusedError,
    add_item,
    receive,
    send,
    turn,
)
from tests.spine import until

STORY = {"role": "user", "content": "Tell me a very long story."}
ENDLESS = {"max_tokens": 800, "ignore_eos": True}


async def open_chat(product: Product, *, stream: bool) -> asyncio.StreamWriter:
    """A connection on which a long answer was asked for, and begun if it is a stream."""
    host, _, port = product.address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"messages": [STORY], "stream": stream, **ENDLESS})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {product.address}\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n{body}".encode())
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(4 if stream else 0):
            await reader.readuntil(b"data: ")
    return writer


def leave(writer: asyncio.StreamWriter, *, reset: bool) -> None:
    """Close at once; with a reset, or as a program does that ends."""
    if reset:
        raw: socket.socket = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def test_can_01_can_02_met_02_who_leaves_frees_all_that_was_held(product: Product) -> None:
    await product.idle()
    before = await product.metric("repartee_responses_total", api="chat", outcome="cancelled")
    engine_before = await product.metric("repartee_worker_responses_total", outcome="cancelled")
    writers = [await open_chat(product, stream=number < 4) for number in range(6)]

    async def all_run() -> bool:
        return await product.metric("repartee_responses_running", api="chat") == 6

    await until(all_run, PATIENCE_S)
    for number, writer in enumerate(writers):
        leave(writer, reset=number % 2 == 0)
    await product.idle()
    after = await product.metric("repartee_responses_total", api="chat", outcome="cancelled")
    assert after - before == 6

    async def counted_by_the_worker() -> bool:
        name = "repartee_worker_responses_total"
        return await product.metric(name, outcome="cancelled") - engine_before == 6

    await until(counted_by_the_worker, PATIENCE_S)
    tokens = await product.metric("repartee_tokens_total", kind="completion")
    assert tokens == await product.metric("repartee_completion_tokens_total")
    # Its memory is given to the next one.
    assert (await product.plain("Hi")).finish == "stop"


async def test_can_08_frm_11_cancel_then_create_is_never_lost(product: Product) -> None:
    async with product.socket() as line:
        await receive(line)
        await add_item(line, STORY)
        options: dict[str, Any] = {"max_output_tokens": 500, "repartee": {"ignore_eos": True}}
        created, ends = 0, []
        for number in range(12):
            create = {"type": "response.create", "event_id": f"e-{number}", "response": options}
            await send(line, create)
            while (event := await receive(line))["type"] != "response.created":
                assert event["type"] != "error", event
                if event["type"] == "response.done":
                    ends.append(event["response"]["status"])
            created += 1
            await asyncio.sleep(number % 4 * 0.01)
            await send(line, {"type": "response.cancel"})
        while len(ends) < created:
            event = await receive(line)
            assert event["type"] != "error", event
            if event["type"] == "response.done":
                ends.append(event["response"]["status"])
        assert ends == ["cancelled"] * 12
    await product.idle()


async def test_ctx_01_a_prompt_over_the_window_is_refused_with_both_numbers(
    product: Product,
) -> None:
    for way in product.ways:
        with pytest.raises(RefusedError, match=rf"{WINDOW_TOKENS} tokens, got 1060 ") as caught:
            await way("My name is Bob. " + "word " * WINDOW_TOKENS)
        assert caught.value.code == "context_length_exceeded"


async def test_ctx_02_an_answer_ends_at_the_window(product: Product) -> None:
    prompt = "word " * (WINDOW_TOKENS - 80)
    for way in (product.plain, product.over_socket):
        answer = await way(prompt, max_tokens=None, logit_bias={"2": -100})
        assert answer.finish == "length"
        assert answer.prompt_tokens + answer.completion_tokens == WINDOW_TOKENS
    await product.idle()


async def test_ctx_04_a_conversation_that_fills_up_says_so_and_lives_on(product: Product) -> None:
    async with product.socket() as line:
        await receive(line)
        await add_item(line, {"role": "user", "content": "word " * (WINDOW_TOKENS - 60)})
        options = {"repartee": {"temperature": 0, "logit_bias": {"2": -100}}}
        num_answers, refused = 0, None
        # Text may need fewer tokens when it is read again, so that a second answer fits.
        while refused is None and num_answers < 6:
            await send(line, {"type": "response.create", "response": options})
            try:
                answer = await turn(line)
            except RefusedError as error:
                refused = error
                continue
            num_answers += 1
            assert answer.finish == "length"
            assert answer.prompt_tokens + answer.completion_tokens == WINDOW_TOKENS
        assert refused is not None and num_answers > 0
        assert refused.code == "context_length_exceeded"
        await send(line, {"type": "repartee.ping"})
        while (await receive(line))["type"] != "repartee.pong":
            pass


async def test_usg_01_fin_01_the_form_of_a_stream(product: Product) -> None:
    body = {"messages": [STORY], "stream": True, "temperature": 0, "max_tokens": 7}
    for options, with_usage in (({}, False), ({"include_usage": True}, True)):
        asked = {**body, "stream_options": options} if options else body
        response = await product.post(asked)
        *events, done, end = response.text.split("\n\n")
        assert (done, end) == ("data: [DONE]", "")
        chunks = [json.loads(event.removeprefix("data: ")) for event in events]
        assert [chunk["choices"] == [] for chunk in chunks].count(True) == with_usage
        if with_usage:
            assert chunks.pop()["usage"]["completion_tokens"] == 7
        assert all(chunk.get("usage") is None for chunk in chunks)
        finishes = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
        assert finishes == [None] * (len(chunks) - 1) + ["length"]


async def test_usg_02_fin_02_ggf_04_ends_and_counts_agree(product: Product) -> None:
    for fields, finish in (
        ({"max_tokens": 200}, "stop"),
        ({"max_tokens": 200, "temperature": 0.8, "seed": 4}, "stop"),
        ({"max_tokens": 3}, "length"),
    ):
        answers = [await way("Say hello.", **fields) for way in product.ways]
        assert answers[0] == answers[1] == answers[2]
        assert isinstance(answers[0], Answer)
        assert answers[0].finish == finish
        assert answers[0].completion_tokens < 200
        assert "user\n" not in answers[0].text


async def test_pfx_06_cached_tokens_stay_below_the_prompt(product: Product) -> None:
    body = {
        "messages": [{"role": "system", "content": "Once upon a time. " * 12}, STORY],
        "max_tokens": 2,
    }
    cached = []
    for _ in range(2):
        usage = (await product.post(body)).json()["usage"]
        cached.append(usage["prompt_tokens_details"]["cached_tokens"])
        assert cached[-1] < usage["prompt_tokens"]
    assert cached[0] == 0 < cached[1]


_CROWD = """
import json, socket, sys
host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sockets = []
for number in range(count):
    body = json.dumps({"messages": [{"role": "user", "content": f"Story {number}"}],
                       "max_tokens": 200, "ignore_eos": True, "stream": number % 2 == 0})
    line = socket.create_connection((host, port))
    head = f"POST /v1/chat/completions HTTP/1.1\\r\\nhost: {host}\\r\\n"
    line.sendall(f"{head}content-length: {len(body)}\\r\\n\\r\\n{body}".encode())
    sockets.append(line)
print(sockets[0].recv(10), flush=True)
sys.stdin.read()
"""


async def test_can_07_a_crowd_that_is_killed_leaves_no_slot_taken(product: Product) -> None:
    host, _, port = product.address.partition(":")
    for _ in range(2):
        crowd = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _CROWD, host, port, "40"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert crowd.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            assert await crowd.stdout.readline() == b"b'HTTP/1.1 2'\n"
        crowd.kill()
        await crowd.wait()
    assert (await product.plain("Hi")).finish == "stop"
    await product.idle()
    assert await product.metric("repartee_worker_waiting") == 0
