"""Budgets in a real Redis, the installed one and the oldest supported."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from redis import Redis as SyncRedis
from redis.asyncio import Redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from app.auth import Allowance, Principal
from app.limits import NO_LIMITS, LimitPolicy, RateLimited, orphans, scripts
from app.limits.charge import charge_key
from app.limits.limiter import Limiter
from engine.contract import Tier
from engine.contract.keys import lease
from tests.redis_server import RedisServer, free_port, system_binary
from tests.spine import until

ACME = Principal("acme", Tier.STANDARD)
NAME = "rp:limit:{acme}:standard"
MINUTE_MS = 60_000

MakeLimiter = Callable[..., Limiter]


@pytest.fixture
async def redis(any_redis_url: str) -> AsyncIterator[Redis]:
    client = Redis.from_url(any_redis_url, protocol=2, decode_responses=True)
    yield client
    await client.aclose()


@pytest.fixture
async def limiter_with(any_redis_url: str) -> AsyncIterator[MakeLimiter]:
    """Makes a gateway's limiter for a tenant's allowance."""
    made: list[Limiter] = []

    def make(**allowance: int) -> Limiter:
        policy = LimitPolicy(NO_LIMITS, tenants={"acme": Allowance(**allowance)})
        limiter = Limiter(any_redis_url, lambda: policy, response_lease_s=60)
        made.append(limiter)
        return limiter

    yield make
    for limiter in made:
        await limiter.close()


async def pass_time(redis: Redis, kind: str, milliseconds: float) -> None:
    """Let a rate's budget be as it is so much later."""
    value = await redis.get(f"{NAME}:{kind}")
    assert value is not None
    await redis.set(f"{NAME}:{kind}", f"{float(value) - milliseconds:.3f}", keepttl=True)


async def refusal(awaitable: Any) -> RateLimited:
    with pytest.raises(RateLimited) as caught:
        await awaitable
    return caught.value


async def test_requests_come_back_one_by_one(redis: Redis, limiter_with: MakeLimiter) -> None:
    limiter = limiter_with(requests_per_min=3)
    left = [(await limiter.take(ACME, f"r{i}", 5)).standing.limits[0].remaining for i in range(3)]
    assert left == [2, 1, 0]
    error = await refusal(limiter.take(ACME, "r3", 5))
    assert (error.code, error.http_status, error.type) == (
        "rate_limit_exceeded",
        429,
        "rate_limit_error",
    )
    assert error.retry_after_ms is not None
    assert 0 < error.retry_after_ms <= MINUTE_MS / 3
    assert error.standing.limits[0].remaining == 0
    assert 0 < await redis.pttl(f"{NAME}:req") <= MINUTE_MS
    await pass_time(redis, "req", error.retry_after_ms)
    await limiter.take(ACME, "r3", 5)
    await refusal(limiter.take(ACME, "r4", 5))


async def test_a_refused_request_is_charged_nothing(
    redis: Redis, limiter_with: MakeLimiter
) -> None:
    limiter = limiter_with(requests_per_min=10, tokens_per_min=100, concurrent_responses=5)
    await limiter.take(ACME, "r0", 80)
    error = await refusal(limiter.take(ACME, "r1", 30))
    assert [limit.remaining for limit in error.standing.limits] == [9, 20]
    assert "100 tokens a minute" in error.message
    assert error.retry_after_ms is not None
    assert error.retry_after_ms <= 0.1 * MINUTE_MS + 1
    assert await redis.zrange(f"{NAME}:run", 0, -1) == ["r0"]
    standing = (await limiter.take(ACME, "r2", 20)).standing
    assert [limit.remaining for limit in standing.limits] == [8, 0]


async def test_tokens_are_put_right_once(limiter_with: MakeLimiter) -> None:
    limiter = limiter_with(tokens_per_min=1000)
    charge = await limiter.take(ACME, "r0", 600)
    for _ in range(3):
        await limiter.settle(charge, 100)
    (tokens,) = (await limiter.count(ACME)).limits
    assert 900 <= tokens.remaining <= 901
    charge = await limiter.take(ACME, "r1", 100)
    await limiter.settle(charge, 800)
    (tokens,) = (await limiter.count(ACME)).limits
    assert 100 <= tokens.remaining <= 110
    charge = await limiter.take(ACME, "r2", 100)
    await limiter.settle(charge, None)
    (tokens,) = (await limiter.count(ACME)).limits
    assert tokens.remaining <= 20


async def test_more_than_a_budget_is_asked_of_a_whole_one(
    redis: Redis, limiter_with: MakeLimiter
) -> None:
    limiter = limiter_with(tokens_per_min=100)
    charge = await limiter.take(ACME, "r0", 8192)
    await refusal(limiter.take(ACME, "r1", 1))
    # What it really was stays owed.
    await limiter.settle(charge, 300)
    error = await refusal(limiter.take(ACME, "r1", 1))
    assert error.retry_after_ms is not None
    assert error.retry_after_ms > 1.9 * MINUTE_MS
    await pass_time(redis, "tok", 3 * MINUTE_MS)
    await limiter.take(ACME, "r1", 1)


async def test_a_repeat_is_charged_once(redis: Redis, limiter_with: MakeLimiter) -> None:
    limiter = limiter_with(requests_per_min=2, concurrent_responses=1)
    for _ in range(3):
        charge = await limiter.take(ACME, "r0", 5)
        assert charge.standing.limits[0].remaining == 1
    assert await redis.zcard(f"{NAME}:run") == 1


async def test_answers_at_once(limiter_with: MakeLimiter) -> None:
    limiter, other = limiter_with(concurrent_responses=2), limiter_with(concurrent_responses=2)
    charges = [await limiter.take(ACME, "r0", 5), await other.take(ACME, "r1", 5)]
    error = await refusal(limiter.take(ACME, "r2", 5))
    assert "At most 2 answers" in error.message
    await other.settle(charges[0], 5)
    await limiter.take(ACME, "r2", 5)
    await refusal(other.take(ACME, "r3", 5))
    # A request without an answer needs no place.
    await limiter.count(ACME)


async def test_a_dead_gateways_answers_end_with_their_deadline(
    redis: Redis, limiter_with: MakeLimiter
) -> None:
    limiter = limiter_with(concurrent_responses=1)
    await limiter.take(ACME, "r0", 5)
    score = await redis.zscore(f"{NAME}:run", "r0")
    assert time.time() * 1000 + 60_000 < score < time.time() * 1000 + 75_000
    assert 0 < await redis.pttl(f"{NAME}:run") <= 75_000
    await refusal(limiter.take(ACME, "r1", 5))
    await redis.zadd(f"{NAME}:run", {"r0": 1.0})
    await limiter.take(ACME, "r1", 5)


async def test_another_gateway_settles_what_its_own_does_not(
    redis: Redis, limiter_with: MakeLimiter
) -> None:
    dead = limiter_with(tokens_per_min=1000, concurrent_responses=1)
    other = limiter_with(tokens_per_min=1000, concurrent_responses=1)
    charge = await dead.take(ACME, "r0", 600)
    await until(lambda: not dead._tasks)
    assert 0 < await redis.pttl("rp:charge:{r0}") <= 70_000
    await refusal(other.take(ACME, "r1", 1))
    await other.settle_for_another("r0", 100)
    assert await redis.exists("rp:charge:{r0}") == 0
    await other.settle_for_another("r0", 100)
    await dead.settle(charge, 0)
    (tokens,) = (await other.count(ACME)).limits
    assert 900 <= tokens.remaining <= 901
    await other.take(ACME, "r1", 1)


async def test_a_settlement_is_not_lost_while_redis_is_away(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "DOWN_S", 0.1)
    policy = LimitPolicy(NO_LIMITS, default=Allowance(concurrent_responses=1))
    limiter = Limiter(own_redis.url, lambda: policy, response_lease_s=60)
    charge = await limiter.take(ACME, "r0", 5)
    own_redis.kill()
    settling = asyncio.create_task(limiter.settle(charge, 5))
    await until(lambda: limiter._scripts._is_down)
    own_redis.start()
    await settling
    await limiter.take(ACME, "r1", 5)
    await limiter.close()


async def test_many_at_once_get_exactly_what_there_is(limiter_with: MakeLimiter) -> None:
    gateways = [limiter_with(requests_per_min=10, concurrent_responses=10) for _ in range(3)]

    async def attempt(number: int) -> bool:
        with suppress(RateLimited):
            await gateways[number % 3].take(ACME, f"r{number}", 5)
            return True
        return False

    taken = await asyncio.gather(*(attempt(number) for number in range(60)))
    assert sum(taken) == 10


async def test_a_burst_waits_for_its_turn_and_is_counted(limiter_with: MakeLimiter) -> None:
    limiter = limiter_with(requests_per_min=300)

    async def attempt(number: int) -> bool:
        with suppress(RateLimited):
            await limiter.take(ACME, f"r{number}", 5)
            return True
        return False

    taken = await asyncio.gather(*(attempt(number) for number in range(600)))
    assert 300 <= sum(taken) <= 320


@pytest.fixture
def cluster_url() -> Iterator[str]:
    """A Redis Cluster of one node, which refuses what a larger one would."""
    with tempfile.TemporaryDirectory(prefix="rp-") as folder:
        port, bus_port = free_port(), free_port()
        command = [
            *(system_binary(), "--port", str(port), "--cluster-enabled", "yes"),
            *("--cluster-port", str(bus_port), "--bind", "127.0.0.1"),
            *("--dir", folder, "--save", "", "--loglevel", "warning"),
        ]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            with SyncRedis(port=port, protocol=2, retry=Retry(ConstantBackoff(0.1), 100)) as node:
                node.execute_command("CLUSTER ADDSLOTSRANGE", 0, 16383)
                while node.execute_command("CLUSTER INFO")["cluster_state"] != "ok":
                    time.sleep(0.05)
            yield f"redis://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


async def test_a_cluster_finds_every_call_in_one_slot(
    cluster_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    policy = LimitPolicy(NO_LIMITS, default=Allowance(5, 1000, 5, 5))
    limiter = Limiter(cluster_url, lambda: policy, response_lease_s=60)
    ann = Principal("acme", Tier.VIP, subject="ann", allowance=Allowance(2, 500, 2, 1))
    charge = await limiter.take(ann, "r0", 100)
    assert [limit.remaining for limit in charge.standing.limits] == [1, 400]
    async with limiter.connections.hold(ann):
        await limiter.connections.renew()
        await refusal(limiter.connections.hold(ann).__aenter__())
    await limiter.settle(charge, 10)
    await limiter.settle_for_another("r0", 10)
    standing = await limiter.count(ann)
    assert [limit.remaining for limit in standing.limits] == [0, 490]
    assert "not enforced" not in caplog.text
    await limiter.close()


async def test_a_token_with_limits_has_a_budget_of_its_own(limiter_with: MakeLimiter) -> None:
    limiter = limiter_with(requests_per_min=3)
    ann = Principal("acme", Tier.STANDARD, subject="ann", allowance=Allowance(requests_per_min=2))
    bob = Principal("acme", Tier.STANDARD, subject="bob", allowance=Allowance(requests_per_min=2))
    for _ in range(2):
        await limiter.count(ann)
    await refusal(limiter.count(ann))
    limiter.check(bob)
    await limiter.count(bob)
    await refusal(limiter.count(bob))


async def test_what_is_known_to_be_refused_needs_no_redis(
    redis: Redis, limiter_with: MakeLimiter
) -> None:
    limiter = limiter_with(requests_per_min=1)
    limiter.check(ACME)
    await limiter.count(ACME)
    limiter.check(ACME)
    await refusal(limiter.count(ACME))
    with pytest.raises(RateLimited) as caught:
        limiter.check(ACME)
    assert caught.value.retry_after_ms is not None
    assert 0 < caught.value.retry_after_ms <= MINUTE_MS
    limiter.check(Principal("other", Tier.STANDARD))


async def test_sockets_have_places(redis: Redis, limiter_with: MakeLimiter) -> None:
    limiter, other = limiter_with(connections=2), limiter_with(connections=2)
    async with limiter.connections.hold(ACME):
        async with other.connections.hold(ACME):
            with pytest.raises(RateLimited, match="At most 2 sockets"):
                async with limiter.connections.hold(ACME):
                    pass
            assert await redis.zcard(f"{NAME}:con") == 2
        async with limiter.connections.hold(ACME):
            pass
        # A Redis that lost everything hears of open sockets again.
        await redis.flushall()
        await limiter.connections.renew()
        await other.connections.renew()
        assert await redis.zcard(f"{NAME}:con") == 1
    assert await redis.zcard(f"{NAME}:con") == 0


async def test_a_dead_gateways_sockets_are_forgotten(
    redis: Redis, limiter_with: MakeLimiter
) -> None:
    limiter = limiter_with(connections=1)
    await redis.zadd(f"{NAME}:con", {"con_dead": 1.0})
    async with limiter.connections.hold(ACME):
        assert await redis.zcard(f"{NAME}:con") == 1
        assert 0 < await redis.pttl(f"{NAME}:con") <= 61_000


async def test_the_answers_of_a_dead_gateway_give_their_places_back(
    redis: Redis, limiter_with: MakeLimiter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "LEASE_WAIT_S", 0.0)
    monkeypatch.setattr(orphans, "LOOK_EVERY_S", 0.0)
    limiter = limiter_with(concurrent_responses=2, tokens_per_min=10_000)
    for name in ("runs", "ended"):
        await limiter.take(ACME, name, 100)
    await redis.hset(lease("runs"), "w", "w1")
    await redis.hset(lease("ended"), "w", "w1")
    await until(lambda: redis.exists(charge_key("ended")))
    await refusal(limiter.take(ACME, "r3", 100))
    await redis.delete(lease("ended"))
    await limiter.take(ACME, "r3", 100)
    assert set(await redis.zrange(f"{NAME}:run", 0, -1)) == {"runs", "r3"}
    # One of which not even the charge is known gives its place back too.
    await redis.hset(lease("r3"), "w", "w1")
    await redis.delete(lease("runs"), charge_key("runs"))
    await limiter.take(ACME, "r4", 100)
    assert set(await redis.zrange(f"{NAME}:run", 0, -1)) == {"r3", "r4"}


async def test_an_answer_that_is_just_being_given_to_a_worker_keeps_its_place(
    redis: Redis, limiter_with: MakeLimiter
) -> None:
    limiter = limiter_with(concurrent_responses=1)
    await limiter.take(ACME, "young", 100)
    await refusal(limiter.take(ACME, "r2", 100))
    assert await redis.zrange(f"{NAME}:run", 0, -1) == ["young"]


async def test_a_cancelled_request_is_given_back(redis: Redis, limiter_with: MakeLimiter) -> None:
    limiter = limiter_with(tokens_per_min=1000, concurrent_responses=1)
    await limiter.take(ACME, "warm", 1)
    await redis.delete(f"{NAME}:run")
    await redis.client_pause(200)
    task = asyncio.create_task(limiter.take(ACME, "r0", 600))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    async def settled() -> bool:
        return await redis.zcard(f"{NAME}:run") == 0 and not limiter._tasks

    await until(settled)
    (tokens,) = (await limiter.count(ACME)).limits
    assert tokens.remaining >= 998


async def test_without_redis_everybody_passes(
    forgetful_redis: RedisServer,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scripts, "DOWN_S", 0.01)
    policy = LimitPolicy(NO_LIMITS, default=Allowance(1, 1, 1, 1))
    limiter = Limiter(forgetful_redis.url, lambda: policy, response_lease_s=60)
    forgetful_redis.kill()
    caplog.set_level(logging.WARNING, "app.limits")
    for number in range(3):
        charge = await limiter.take(ACME, f"r{number}", 100)
        assert charge.standing.limits == ()
        async with limiter.connections.hold(ACME):
            await limiter.settle(charge, 5)
    assert len([r for r in caplog.records if "not enforced" in r.message]) == 1
    forgetful_redis.start()
    await asyncio.sleep(0.02)
    await limiter.count(ACME)
    await refusal(limiter.count(ACME))
    await limiter.close()


async def test_without_limits_redis_is_not_asked(forgetful_redis: RedisServer) -> None:
    policy = LimitPolicy(NO_LIMITS)
    limiter = Limiter(forgetful_redis.url, lambda: policy, response_lease_s=60)
    with forgetful_redis.client() as client:
        before = client.info("stats")["total_commands_processed"]
        charge = await limiter.take(ACME, "r0", 5)
        await limiter.settle(charge, 5)
        async with limiter.connections.hold(ACME):
            await limiter.connections.renew()
        assert client.info("stats")["total_commands_processed"] == before + 1
    await limiter.close()
