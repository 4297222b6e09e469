"""The operator's view: who may see it, what it holds, and the drain of a worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from app.auth import parse_api_keys
from app.gateway.ops import parse_ops_token
from app.watched_file import WatchedFile
from tests.gateway.live import LiveGateway, running_gateway, say
from tests.spine import until

KEY = "sk-0123456789abcdef"
TOKEN = "ops-0123456789abcdef"


def bearer(value: str) -> dict[str, str]:
    return {"authorization": f"Bearer {value}"}


async def state(gateway: LiveGateway, **headers: str) -> dict[str, Any]:
    answer = await gateway.http.get("/ops/state", headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.json()  # type: ignore[no-any-return]


async def test_it_counts_what_every_gateway_and_worker_did(redis_url: str) -> None:
    async with running_gateway(redis_url) as one, running_gateway(redis_url, worker=False) as two:
        await until(two.gateway.responses.engine.ready)
        assert (await one.chat(say("one two three"))).status_code == 200
        assert (await two.chat(say("four"))).status_code == 200
        for gateway in (one, two):
            await gateway.gateway.board.tell()

        async def has_beaten() -> bool:
            [worker] = (await state(one))["workers"]
            return bool(worker["metrics"]["repartee_submits_total"] == 2)

        await until(has_beaten)
        seen = await state(one)
        assert seen == {**await state(two), "now": seen["now"], "workers": seen["workers"]}
        ids = {gateway["id"] for gateway in seen["gateways"]}
        assert ids == {
            one.gateway.responses.engine.gateway_id,
            two.gateway.responses.engine.gateway_id,
        }
        assert [gateway["outcomes"] for gateway in seen["gateways"]] == [{"completed": 1.0}] * 2
        for gateway in seen["gateways"]:
            counts = gateway["first_token"]["standard"]
            assert counts["+Inf"] == 1.0
            assert list(counts.values()) == sorted(counts.values())
        [worker] = seen["workers"]
        assert worker["status"] == "live"
    async with running_gateway(redis_url, worker=False) as three:
        await three.gateway.board.tell()
        assert len((await state(three))["gateways"]) == 1


async def test_a_drained_worker_leaves(redis_url: str) -> None:
    async with running_gateway(redis_url) as gateway:
        assert gateway.worker is not None
        path = f"/ops/workers/{gateway.worker.worker_id}/drain"
        assert (await gateway.http.get(path)).status_code == 405
        unknown = await gateway.http.post("/ops/workers/w_nobody/drain")
        assert unknown.status_code == 404
        assert unknown.json()["error"]["code"] == "worker_not_found"
        foreign = await gateway.http.post(path, headers={"origin": "https://evil.example"})
        assert foreign.status_code == 403
        assert gateway.gateway.responses.engine.ready()
        assert (await gateway.http.post(path)).json()["status"] == "draining"
        await until(lambda: not gateway.gateway.responses.engine.workers())


@pytest.mark.parametrize("shown", ["", KEY, TOKEN + "x", "é"])
async def test_only_the_operators_token_opens_it(
    redis_url: str, tmp_path: Path, shown: str
) -> None:
    file = tmp_path / "token"
    file.write_text(f"# the operator's\n{TOKEN}\n")
    watched = WatchedFile(file, parse_ops_token, "--ops-token-file")
    keys = parse_api_keys(f"{KEY}:acme:vip\n")
    async with running_gateway(
        redis_url, worker=False, api_keys=keys, ops_token_file=watched
    ) as gateway:
        headers = httpx.Headers({"authorization": f"Bearer {shown}"}, encoding="utf-8")
        refused = await gateway.http.get("/ops/state", headers=headers if shown else {})
        assert refused.status_code == 401
        drain = await gateway.http.post("/ops/workers/w/drain", headers=headers if shown else {})
        assert drain.status_code == 401
        assert (await gateway.http.get("/ops/state", headers=bearer(TOKEN))).status_code == 200
        assert (await gateway.http.get("/metrics", headers=bearer(TOKEN))).status_code == 200
        # It is no key: it asks for no answers.
        models = await gateway.http.get("/v1/models", headers=bearer(TOKEN))
        assert models.status_code == 401
        file.write_text("ops-fedcba9876543210\n")
        assert await watched.refresh()
        assert (await gateway.http.get("/ops/state", headers=bearer(TOKEN))).status_code == 401


async def test_with_keys_and_without_a_token_nobody_sees_it(redis_url: str) -> None:
    keys = parse_api_keys(f"{KEY}\n")
    async with running_gateway(redis_url, worker=False, api_keys=keys) as gateway:
        refused = await gateway.http.get("/ops/state", headers=bearer(KEY))
        assert refused.status_code == 403
        assert refused.json()["error"]["code"] == "ops_not_set_up"
        assert (await gateway.http.get("/metrics", headers=bearer(KEY))).status_code == 200


@pytest.mark.parametrize("text", ["", "# none\n", "short\n", f"{TOKEN}\n{TOKEN}\n", "a b" * 9])
def test_a_file_that_holds_no_single_token_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"must|may"):
        parse_ops_token(text)
