"""Redis that goes away, answers that never end, and who is served as whom."""

from __future__ import annotations

import json

import pytest

from app.auth import parse_api_keys
from engine.contract import GenerateRequest, Tier
from tests.fakes.engine import FakeEngine, FakeSequence
from tests.gateway.live import LiveGateway, receive, receive_until, running_gateway, say, script
from tests.gateway.test_realtime import ask, closed, done, send, user_item
from tests.redis_server import RedisServer
from tests.spine import until

KEY = "sk-0123456789abcdef"


async def test_without_redis_requests_are_refused_and_sockets_stay(own_redis: RedisServer) -> None:
    # The default may put a write off for seconds, and the kill comes sooner.
    with own_redis.client() as client:
        client.config_set("appendfsync", "always")
    async with running_gateway(own_redis.url) as gateway, gateway.socket() as socket:
        session_id = (await receive(socket))["session"]["id"]
        own_redis.kill()

        async def unready() -> bool:
            return (await gateway.http.get("/readyz")).status_code == 503

        await until(unready, 20)
        refused = await gateway.chat(say("x"))
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        await send(socket, {**user_item("x"), "event_id": "e"})
        error = (await receive(socket, 20))["error"]
        assert (error["type"], error["event_id"]) == ("server_error", "e")
        async with gateway.socket() as second:
            assert (await receive(second, 20))["type"] == "error"
            assert await closed(second) == 1013
        assert (await gateway.http.get("/livez")).status_code == 200
        own_redis.start()

        async def ready() -> bool:
            return (await gateway.http.get("/readyz")).status_code == 200

        await until(ready, 20)
        await ask(socket, say("back again"))
        assert (await done(socket))["output"][0]["content"][0]["text"] == "back again"
        assert (await gateway.chat(say("x"))).status_code == 200
        async with gateway.socket(f"?session_id={session_id}") as again:
            assert len((await receive(again))["repartee.items"]) == 2


async def test_an_answer_past_its_deadline_fails(redis_url: str) -> None:
    async with running_gateway(redis_url, answer_timeout_s=0.5) as gateway:
        stuck = script(num_tokens=10, stall_after=0)
        late = await gateway.chat(stuck)
        assert late.status_code == 504
        assert late.json()["error"]["code"] == "deadline_exceeded"
        async with gateway.socket() as socket:
            await receive(socket)
            await ask(socket, stuck)
            response = await done(socket)
            assert response["status"] == "failed"
            assert response["status_details"]["error"]["code"] == "deadline_exceeded"
            await ask(socket, say("and on"))
            assert (await done(socket))["status"] == "completed"


class NotingEngine(FakeEngine):
    """Remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[GenerateRequest] = []

    def prepare(self, request: GenerateRequest) -> FakeSequence:
        self.requests.append(request)
        return super().prepare(request)


async def test_keys_decide_tenant_and_tier(redis_url: str) -> None:
    engine = NotingEngine()
    keys = parse_api_keys(f"{KEY}:acme:vip")
    header = {"authorization": f"Bearer {KEY}"}
    async with running_gateway(redis_url, engine=engine, api_keys=keys) as gateway:
        gateway.http.headers.update(header)
        assert (await gateway.chat(say("x"), service_tier="flex")).status_code == 200
        async with gateway.socket(additional_headers=header) as socket:
            session_id = (await receive(socket))["session"]["id"]
            await send(
                socket,
                {
                    "type": "session.update",
                    "session": {"instructions": "be kind", "repartee": {"seed": 7}},
                },
            )
            await receive(socket)
            await ask(socket, say("x"))
            await done(socket)
        assert await gateway.metric("repartee_responses_total", tier="vip") == 2
    chat, turn = engine.requests
    for request in engine.requests:
        assert (request.tenant, request.tier) == ("acme", Tier.VIP)
    assert (chat.conversation_id, turn.conversation_id) == (None, session_id)
    assert chat.request_id.startswith("chatcmpl-")
    assert [message.role for message in turn.messages] == ["system", "user"]
    assert turn.sampling.seed == 7


async def test_events_sent_before_the_goodbye_are_carried_out(gateway: LiveGateway) -> None:
    async with gateway.socket() as socket:
        session_id = (await receive(socket))["session"]["id"]
        await send(socket, user_item(say("Said without listening")))
        await send(socket, {"type": "response.create"})
    await gateway.settled()
    await until(lambda: not gateway.gateway.realtime.sockets)
    async with gateway.socket(f"?session_id={session_id}") as again:
        items = (await receive_until(again, "session.created"))[-1]["repartee.items"]
        assert [item["role"] for item in items] == ["user", "assistant"]


@pytest.mark.parametrize("path", ["/v1/x%0Aforged line", "/%0d%0aSet-Cookie: a=b"])
async def test_frm_09_log_lines_are_not_forged(
    gateway: LiveGateway, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    response = await gateway.http.get(path)
    assert response.status_code == 404
    assert "set-cookie" not in response.headers
    assert "\nforged" not in caplog.text
    json.loads(response.text)
