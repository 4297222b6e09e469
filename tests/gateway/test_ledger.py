"""Answers of a gateway that died are counted by another, each once."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.gateway import ledger
from app.gateway.ledger import AnswerLedger, Entry
from engine.contract import Failed, Finished, Tier, event_from_wire
from tests.gateway.live import LiveGateway, receive, running_gateway, script
from tests.gateway.test_realtime import ask
from tests.gateway.test_slow_sockets import narrow
from tests.redis_server import RedisServer
from tests.spine import (
    ROOT,
    collect,
    make_request,
    running_client,
    running_worker,
    until,
    worker_process,
)

METRIC = re.compile(r"(\w+?)(?:\{(.*)\})? (\S+)")


@contextmanager
def gateway_process(redis_url: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`repartee gateway` as people run it."""
    command = [sys.executable, "-m", "app.cli", "gateway", "--port", "0"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--redis-url", redis_url], cwd=ROOT, stdout=out, stderr=out
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def client_of(log: Path) -> AsyncIterator[httpx.AsyncClient]:
    found = await until(lambda: re.search(r"listening on \S+ port (\d+)", log.read_text()), 60)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{found[1]}", timeout=20) as http:

        async def is_ready() -> bool:
            return (await http.get("/readyz")).status_code == 200

        await until(is_ready, 20)
        yield http


def sums(page: str, name: str, label: str) -> dict[str, float]:
    """A metric's samples by one of its labels; none that is 0."""
    found: dict[str, float] = {}
    for match in map(METRIC.fullmatch, page.splitlines()):
        if match is not None and match[1] == name and float(match[3]):
            value = re.search(rf'{label}="([^"]*)"', match[2] or "")
            key = value[1] if value else ""
            found[key] = found.get(key, 0.0) + float(match[3])
    return found


def ends(redis_server: RedisServer) -> dict[str, Finished | Failed]:
    """How each response ended, by its log."""
    found: dict[str, Finished | Failed] = {}
    with redis_server.client() as outside:
        for name in outside.scan_iter("rp:log:*"):
            (_, fields), *_ = outside.xrevrange(name, count=1)
            last = event_from_wire(json.loads(fields["e"]))
            if isinstance(last, Finished | Failed):
                found[last.request_id] = last
    return found


def everything(pages: list[str]) -> dict[str, dict[str, float]]:
    """All counters of answers, over all gateways."""
    page = "\n".join(pages)
    return {
        "requests": sums(page, "repartee_requests_total", "tier"),
        "outcomes": sums(page, "repartee_responses_total", "outcome"),
        "queued": sums(page, "repartee_queue_seconds_count", "tier"),
        "tokens": sums(page, "repartee_tokens_total", "kind"),
    }


async def background(http: httpx.AsyncClient, content: str, **fields: Any) -> str:
    body = {"input": content, "background": True, **fields}
    answer = await http.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def test_met_01_what_a_killed_gateway_was_asked_for_is_counted_once(
    redis_url: str, redis_server: RedisServer, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running_worker(redis_url))
        others: list[LiveGateway] = [
            await stack.enter_async_context(running_gateway(redis_url, worker=False))
            for _ in range(2)
        ]
        process = stack.enter_context(gateway_process(redis_url, log))
        http = await stack.enter_async_context(client_of(log))
        await until(lambda: all(g.gateway.responses.engine.ready() for g in others))
        early = await http.post("/v1/responses", json={"input": script(num_tokens=7)})
        assert early.json()["status"] == "completed"
        slow = {"num_tokens": 80, "rate": 40}
        asked = [
            await background(http, script(**slow)),
            await background(http, script(fail_after=70, **slow)),
            await background(http, script(**slow), max_output_tokens=60),
        ]
        stalled = await background(http, script(stall_after=3))
        last_page = (await http.get("/metrics")).text
        process.kill()
        process.wait()
        with redis_server.client() as outside:
            # As it goes by itself some seconds later.
            assert outside.delete(*outside.keys("rp:alive:*")) == 3
        answer = await others[0].http.post(f"/v1/responses/{stalled}/cancel")
        assert answer.status_code == 200
        await until(lambda: {*asked, stalled} <= set(ends(redis_server)))

        async def pages() -> list[str]:
            return [last_page, *[(await g.http.get("/metrics")).text for g in others]]

        async def is_all_counted() -> bool:
            return sum(everything(await pages())["outcomes"].values()) >= 5

        await until(is_all_counted, 20)
        with redis_server.client() as outside:
            await until(lambda: outside.scard(ledger.GATEWAYS) == 2)
        found = everything(await pages())
    told = ends(redis_server)
    usages = [end.usage for end in told.values() if end.usage is not None]
    assert len(told) == len(usages) == 5
    assert found["requests"] == {"standard": 5}
    assert found["outcomes"] == {"completed": 2, "failed": 1, "length": 1, "cancelled": 1}
    queued = [end for end in told.values() if getattr(end, "queued_ms", None) is not None]
    assert found["queued"] == {"standard": len(queued)}
    assert found["tokens"] == {
        kind: total
        for kind in ("prompt", "cached", "completion")
        if (total := sum(getattr(usage, f"{kind}_tokens") for usage in usages))
    }


@asynccontextmanager
async def faulty_stack(
    redis_url: str, log: Path
) -> AsyncIterator[tuple[LiveGateway, httpx.AsyncClient, list[subprocess.Popen[bytes]]]]:
    """A gateway that stays; one to be killed; it and a worker that is to be killed as well."""
    options = ("--rate", "40", "--context-window", "1000000")
    async with AsyncExitStack() as stack:
        worker = stack.enter_context(worker_process(redis_url, *options))
        left = await stack.enter_async_context(
            running_gateway(redis_url, worker=False, max_pending_bytes=20_000)
        )
        dying = stack.enter_context(gateway_process(redis_url, log))
        http = await stack.enter_async_context(client_of(log))
        await until(left.gateway.responses.engine.ready, 20)
        yield left, http, [dying, worker]


async def told_usage(http: httpx.AsyncClient, response_id: str) -> dict[str, int]:
    """What a client hears of a stored response's tokens; it has ended."""
    body = (await http.get(f"/v1/responses/{response_id}")).json()
    assert body["status"] in ("completed", "failed", "incomplete", "cancelled"), body
    usage = body["usage"]
    return {
        "prompt": usage["input_tokens"],
        "cached": usage["input_tokens_details"]["cached_tokens"],
        "completion": usage["output_tokens"],
    }


async def test_met_01_after_all_faults_together_the_metrics_are_what_clients_were_told(
    redis_url: str, redis_server: RedisServer, tmp_path: Path
) -> None:
    async with faulty_stack(redis_url, tmp_path / "log") as (left, http, (dying, worker)):
        asked: list[str] = []
        stalled: list[str] = []
        async with narrow(left) as slow:
            await receive(slow)
            await ask(slow, script(num_tokens=150_000, rate=0))

            async def is_cut() -> bool:
                return await left.metric("repartee_slow_closes_total") == 1

            await until(is_cut, 30)
        await until(lambda: len(ends(redis_server)) == 1, 20)
        for client in (http, left.http):
            asked += [
                await background(client, script(num_tokens=9)),
                await background(client, script(num_tokens=90)),
                await background(client, script(num_tokens=90, fail_after=70)),
                await background(client, script(num_tokens=90), max_output_tokens=60),
            ]
            stalled.append(await background(client, script(stall_after=4)))
        asked += stalled
        # The short ones have ended, the others not by far: nothing is counted after this page.
        await until(lambda: len(ends(redis_server)) == 3, 20)
        last_page = (await http.get("/metrics")).text
        for process in (dying, worker):
            process.kill()
        with redis_server.client() as outside:
            (gone,) = set(outside.smembers(ledger.GATEWAYS)) - {
                left.gateway.responses.engine.gateway_id
            }
            # As it goes by itself some seconds later.
            outside.delete(ledger.alive_key(gone))
        with worker_process(redis_url, "--rate", "0", "--context-window", "1000000"):
            for response_id in stalled:
                answer = await left.http.post(f"/v1/responses/{response_id}/cancel")
                assert answer.status_code == 200
            await until(lambda: len(ends(redis_server)) == len(asked) + 1, 30)

            async def are_counted() -> bool:
                page = (await left.http.get("/metrics")).text
                outcomes = everything([last_page, page])["outcomes"]
                return sum(outcomes.values()) >= len(asked) + 1

            await until(are_counted, 20)
            usages = [await told_usage(left.http, each) for each in asked]
        page = (await left.http.get("/metrics")).text
        told = ends(redis_server)
        (loose,) = [end for rid, end in told.items() if rid not in asked]
        assert isinstance(loose, Finished)
        usages.append(
            {kind: getattr(loose.usage, f"{kind}_tokens") for kind in usages[0]},
        )
        found = everything([last_page, page])
        assert found["requests"] == {"standard": len(asked) + 1}
        assert found["outcomes"] == {"completed": 5, "failed": 2, "length": 2, "cancelled": 2}
        queued = [end for end in told.values() if getattr(end, "queued_ms", None) is not None]
        assert found["queued"] == {"standard": len(queued)}
        totals = {kind: sum(usage[kind] for usage in usages) for kind in usages[0]}
        assert found["tokens"] == {kind: total for kind, total in totals.items() if total}
        for name in ("connections", "pending_bytes", "responses_running"):
            assert not sums(page, f"repartee_{name}", "tier"), name
        assert sums(page, "repartee_redis_seconds_count", "tier")[""] > 0


@dataclass
class Counted:
    """What a ledger's owner was told to count."""

    ends: list[tuple[str, Finished | Failed]] = field(default_factory=list)

    async def __call__(self, response_id: str, entry: Entry, end: Finished | Failed) -> None:
        assert (entry.api, entry.tier) == ("chat", Tier.VIP)
        self.ends.append((response_id, end))


@asynccontextmanager
async def running_ledger(
    redis_url: str, gateway_id: str
) -> AsyncIterator[tuple[AnswerLedger, Counted]]:
    book, counted = AnswerLedger(redis_url, gateway_id), Counted()
    task = asyncio.create_task(book.run(counted))
    try:
        yield book, counted
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await book.close()


async def ended_response(redis_url: str) -> str:
    """A response that a worker has ended."""
    async with running_client(redis_url) as client:
        await until(client.ready)
        request = make_request()
        await collect(await client.submit(request))
    return request.request_id


async def test_a_gateway_that_was_held_up_asks_before_it_counts(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "BEAT_S", 0.05)
    entry = Entry("chat", Tier.VIP, 2e12)
    async with running_worker(redis_url):
        first, second, third = [await ended_response(redis_url) for _ in range(3)]
    async with AsyncExitStack() as stack:
        asleep, own = await stack.enter_async_context(running_ledger(redis_url, "a"))
        _, counted = await stack.enter_async_context(running_ledger(redis_url, "b"))
        await until(lambda: asleep.is_held)
        asleep.begin(first, entry)
        # Nobody takes what a living gateway has, ended or not.
        await asyncio.sleep(0.5)
        assert not counted.ends
        assert await asleep.is_ours(first)
        asleep.end(first)
    async with AsyncExitStack() as stack:
        _, counted = await stack.enter_async_context(running_ledger(redis_url, "c"))
        late = AnswerLedger(redis_url, "d")
        stack.push_async_callback(late.close)
        task = asyncio.create_task(late.run(own))
        await until(lambda: late.is_held)
        late.begin(second, entry)
        late.begin("resp_unknown_to_redis", entry)
        await until(lambda: not late._began)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await late._redis.delete(ledger.alive_key("d"))
        await until(lambda: [rid for rid, _ in counted.ends] == [second])
        # It wakes up: one was counted, the other is left to it, and so is a new one.
        assert not await late.is_ours(second)
        assert await late.is_ours("resp_unknown_to_redis")
        late.begin(third, entry)
        assert await late.is_ours(third)
        task = asyncio.create_task(late.run(own))
        await until(lambda: late.is_taken(second))
        assert not late.is_taken(third)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert not own.ends


async def test_an_answer_without_any_end_is_counted_after_its_deadline(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "BEAT_S", 0.05)
    async with running_ledger(redis_url, "gone") as (gone, _):
        await until(lambda: gone.is_held)
        gone.begin("resp_lost", Entry("chat", Tier.VIP, 1.0))
        gone.begin("resp_to_come", Entry("chat", Tier.VIP, 2e12))
        await until(lambda: not gone._began)
    async with running_ledger(redis_url, "b") as (_, counted):
        await until(lambda: counted.ends)
        ((response_id, end),) = counted.ends
    assert response_id == "resp_lost"
    assert isinstance(end, Failed)
    assert end.error.code == "answer_lost"
