"""`/v1/responses` over HTTP beyond what the SDK's tests see: leaving, gateways, tenants."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

from app.auth import parse_api_keys
from tests.gateway.live import LiveGateway, running_gateway, say, script
from tests.spine import running_worker, until


async def until_first_delta(gateway: LiveGateway, **body: Any) -> str:
    """Begin a stream, leave it at the first delta; the response's id."""
    async with gateway.http.stream(
        "POST", "/v1/responses", json={**body, "stream": True}
    ) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        response_id = ""
        async for line in answer.aiter_lines():
            if not line.startswith("data: "):
                continue
            event = json.loads(line[6:])
            if event["type"] == "response.created":
                response_id = event["response"]["id"]
            if event["type"] == "response.output_text.delta":
                return response_id
    raise AssertionError("the stream ended before its first delta")


async def events_after(gateway: LiveGateway, response_id: str, after: int) -> list[dict[str, Any]]:
    answer = await gateway.http.get(
        f"/v1/responses/{response_id}", params={"stream": "true", "starting_after": after}
    )
    assert answer.status_code == 200
    return [json.loads(x[6:]) for x in answer.text.splitlines() if x.startswith("data: ")]


async def test_a_stored_response_goes_on_when_its_reader_leaves(gateway: LiveGateway) -> None:
    text = "word " * 40
    response_id = await until_first_delta(gateway, input=script(text=text, rate=200))
    running = (await gateway.http.get(f"/v1/responses/{response_id}")).json()
    assert running["status"] == "in_progress" and running["output"] == []
    events = await events_after(gateway, response_id, 3 + 5)
    rest = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
    assert rest == text[5:]
    assert events[-1]["type"] == "response.completed"
    kept = (await gateway.http.get(f"/v1/responses/{response_id}")).json()
    assert kept == events[-1]["response"]


async def test_a_response_that_is_not_stored_ends_with_its_reader(gateway: LiveGateway) -> None:
    slow = script(num_tokens=5000, rate=50)
    response_id = await until_first_delta(gateway, input=slow, store=False)
    await gateway.settled()
    assert (await gateway.http.get(f"/v1/responses/{response_id}")).status_code == 404
    assert await gateway.metric("repartee_responses_total", outcome="cancelled") == 1


async def test_a_plain_caller_who_leaves(gateway: LiveGateway) -> None:
    for is_stored in (True, False):
        body = {"input": script(text="word " * 20, rate=100), "store": is_stored}
        call = asyncio.create_task(gateway.http.post("/v1/responses", json=body))
        await gateway.running(1)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await gateway.settled()
    reasons = [
        await gateway.metric("repartee_responses_total", api="responses", outcome=outcome)
        for outcome in ("completed", "cancelled")
    ]
    assert reasons == [1, 1]


async def test_another_gateway_finishes_what_one_began(redis_url: str) -> None:
    text = "word " * 60
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(running_gateway(redis_url))
        async with running_gateway(redis_url, worker=False) as second:
            await until(lambda: second.gateway.responses.engine.ready())
            body = {"input": script(text=text, rate=150), "background": True}
            response_id = (await second.http.post("/v1/responses", json=body)).json()["id"]
        # The gateway that was to keep the end is gone.
        events = await events_after(first, response_id, 0)
        assert events[0]["type"] == "response.in_progress"
        kept = (await first.http.get(f"/v1/responses/{response_id}")).json()
        assert kept["status"] == "completed"
        assert kept["output"][0]["content"][0]["text"] == text
        body = {"input": say("on"), "previous_response_id": response_id}
        assert (await first.http.post("/v1/responses", json=body)).json()["status"] == "completed"


async def test_an_end_that_nobody_saw_is_read_from_the_log(redis_url: str) -> None:
    async with AsyncExitStack() as stack:
        async with running_gateway(redis_url, worker=False) as first:
            worker = await stack.enter_async_context(running_worker(redis_url))
            await until(lambda: first.gateway.responses.engine.ready())
            body = {"input": script(text="word " * 20, rate=100), "background": True}
            response_id = (await first.http.post("/v1/responses", json=body)).json()["id"]
        await until(lambda: not worker._engine.has_work())
        second = await stack.enter_async_context(running_gateway(redis_url, worker=False))
        await until(lambda: second.gateway.responses.engine.ready())

        async def status() -> str:
            answer = await second.http.get(f"/v1/responses/{response_id}")
            return str(answer.json()["status"])

        async def is_completed() -> bool:
            return await status() == "completed"

        await until(is_completed)


async def test_a_stream_of_a_gateway_that_stops_ends_with_a_word(redis_url: str) -> None:
    async with (
        running_gateway(redis_url) as first,
        running_gateway(redis_url, worker=False, grace_s=0.1) as second,
    ):
        await until(lambda: second.gateway.responses.engine.ready())
        text = "word " * 200
        body = {"input": script(text=text, rate=200), "stream": True}
        events: list[dict[str, Any]] = []
        async with second.http.stream("POST", "/v1/responses", json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    events.append(json.loads(line[6:]))
                if len(events) == 6:
                    second.server.stop()
        assert events[-1]["type"] == "error" and events[-1]["code"] == "draining"
        response_id = events[0]["response"]["id"]
        rest = await events_after(first, response_id, events[-1]["sequence_number"])
        both = [e for e in events + rest if e["type"] == "response.output_text.delta"]
        assert "".join(e["delta"] for e in both) == text


async def test_another_tenant_sees_nothing(redis_url: str) -> None:
    entries = "a" * 20 + ":one," + "b" * 20 + ":two"
    async with running_gateway(redis_url, api_keys=parse_api_keys(entries)) as gateway:
        own = {"authorization": "Bearer " + "a" * 20}
        other = {"authorization": "Bearer " + "b" * 20}
        made = await gateway.http.post("/v1/responses", json={"input": say("x")}, headers=own)
        path = f"/v1/responses/{made.json()['id']}"
        for method, each in (
            ("GET", path),
            ("GET", path + "?stream=true"),
            ("GET", path + "/input_items"),
            ("POST", path + "/cancel"),
            ("DELETE", path),
        ):
            answer = await gateway.http.request(method, each, headers=other)
            assert answer.status_code == 404, (method, each)
        body = {"input": "x", "previous_response_id": made.json()["id"]}
        assert (
            await gateway.http.post("/v1/responses", json=body, headers=other)
        ).status_code == 404
        assert (await gateway.http.get(path, headers=own)).status_code == 200


async def test_wrong_queries_name_their_field(gateway: LiveGateway) -> None:
    made = (await gateway.http.post("/v1/responses", json={"input": "x"})).json()
    path = f"/v1/responses/{made['id']}"
    for query, param in (
        ("?starting_after=3", "starting_after"),
        ("?stream=true&starting_after=-1", "starting_after"),
        ("?stream=yes", "stream"),
        ("?include=x", "include"),
        ("?other=1", "other"),
        ("/input_items?limit=0", "limit"),
        ("/input_items?order=up", "order"),
        ("/input_items?after=x", "after"),
    ):
        answer = await gateway.http.get(path + query)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), query


async def test_a_chain_is_seen_by_the_worker_as_one_conversation(gateway: LiveGateway) -> None:
    first = (await gateway.http.post("/v1/responses", json={"input": "x"})).json()
    body = {"input": "y", "previous_response_id": first["id"], "instructions": "now"}
    second = (await gateway.http.post("/v1/responses", json=body)).json()
    body = {"input": "z", "previous_response_id": second["id"]}
    third = (await gateway.http.post("/v1/responses", json=body)).json()
    assert third["instructions"] is None
    store = gateway.gateway.realtime._sessions.responses
    record = await store.load(third["id"], "default")
    assert record.chain == first["id"] and record.before == (first["id"], second["id"])
