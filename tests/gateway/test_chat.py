"""Chat completions over a real socket, a real Redis and a fake engine."""

from __future__ import annotations

import json

from tests.gateway.live import LiveGateway, say


async def stream_of(gateway: LiveGateway, content: str, **fields: object) -> list[str]:
    """The data lines of a streamed completion."""
    response = await gateway.chat(content, stream=True, **fields)
    assert response.status_code == 200
    lines = response.text.split("\n\n")
    return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


async def test_a_plain_completion(gateway: LiveGateway) -> None:
    response = await gateway.chat(say("Hello there."))
    assert response.status_code == 200
    body = response.json()
    assert body["choices"][0]["message"]["content"] == "Hello there."
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["id"].startswith("chatcmpl-")
    assert response.headers["cache-control"] == "no-store"


async def test_usg_02_stream_and_plain_agree(gateway: LiveGateway) -> None:
    text = "Ahoj, světe! 日本語 🐕 ends."
    plain = (await gateway.chat(say(text), seed=1)).json()
    *chunks, usage, done = await stream_of(
        gateway, say(text), seed=1, stream_options={"include_usage": True}
    )
    assert done == "[DONE]"
    deltas = [json.loads(chunk)["choices"][0]["delta"].get("content") or "" for chunk in chunks]
    assert "".join(deltas) == text == plain["choices"][0]["message"]["content"]
    assert json.loads(usage)["usage"] == plain["usage"]
    counts = plain["usage"]
    assert counts["total_tokens"] == counts["prompt_tokens"] + counts["completion_tokens"]


async def test_png_03_headers_of_a_stream(gateway: LiveGateway) -> None:
    response = await gateway.chat(say("x"), stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-accel-buffering"] == "no"
    assert "no-transform" in response.headers["cache-control"]


async def test_ctx_01_a_prompt_too_long_is_400_also_when_streamed(gateway: LiveGateway) -> None:
    for stream in (False, True):
        response = await gateway.chat("a " * 9000, stream=stream)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["code"] == "context_length_exceeded"
        assert "8192" in error["message"]
