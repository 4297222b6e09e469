"""HTTP around the routes: errors, limits, origins, keys, pages, health."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from app.auth import parse_api_keys
from tests.gateway.live import MODEL, LiveGateway, running_gateway, say
from tests.spine import until, worker_process

KEY = "sk-0123456789abcdef"
EVIL = "https://evil.example"
USER = {"role": "user", "content": "Hi"}


async def post(gateway: LiveGateway, content: bytes, **headers: str) -> httpx.Response:
    return await gateway.http.post("/v1/chat/completions", content=content, headers=headers)


def error_of(response: httpx.Response) -> dict[str, object]:
    error = response.json()["error"]
    assert set(error) - {"repartee.retry_after_ms"} == {"message", "type", "param", "code"}
    assert ("repartee.retry_after_ms" in error) == ("retry-after" in response.headers)
    return error  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"", None),
        (b"null", None),
        (b"[]", None),
        (b"{", None),
        (b"\xff", None),
        (b'{"messages":[{"role":"user","content":"x\\ud83d"}]}', "messages.0.content"),
        (b'{"messages":[{"role":"user","\\ude00":"x"}]}', "messages.0"),
        (b'{"temperature":NaN}', "temperature"),
        (b'{"temperature":Infinity}', "temperature"),
        (b'{"temperature":1e999}', "temperature"),
        (b"[" * 20_000 + b"]" * 20_000, None),
        (b'{"x":' + b"[" * 20_000 + b"]" * 20_000 + b"}", None),
    ],
)
async def test_frm_06_07_smp_02_hostile_bodies(
    gateway: LiveGateway, body: bytes, param: str | None
) -> None:
    for stream in (b"", b'"stream":true,'):
        sent = body.replace(b"{", b"{" + stream, 1) if body.startswith(b'{"') else body
        response = await post(gateway, sent)
        assert response.status_code == 400
        assert error_of(response)["param"] == param
    assert (await gateway.chat(say("still here"))).status_code == 200


async def test_ctx_05_long_bodies_are_413(gateway: LiveGateway) -> None:
    content = json.dumps({"messages": [{"role": "user", "content": "x" * 5_000_000}]}).encode()
    response = await post(gateway, content)
    assert response.status_code == 413
    assert "2097152" in str(error_of(response)["message"])

    async def chunks():  # type: ignore[no-untyped-def]
        for _ in range(30):
            yield b" " * 100_000

    response = await gateway.http.post("/v1/chat/completions", content=chunks())
    assert response.status_code == 413


async def test_ctx_05_many_turns_are_refused_early(gateway: LiveGateway) -> None:
    turns = [{"role": "user", "content": "hi"}] * 8200
    response = await gateway.chat(turns)
    assert response.status_code == 400
    assert error_of(response)["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1", 404),
        ("GET", "/nothing.html", 404),
        ("GET", "/..%2f..%2fpyproject.toml", 404),
        ("GET", "/.git/config", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/livez", 405),
        ("POST", "/", 405),
        ("GET", "/v1/realtime", 426),
        ("GET", "/v1/models/none", 404),
        ("GET", "/v1/models/a%0Ab/c", 404),
    ],
)
async def test_what_is_not_served(
    gateway: LiveGateway, method: str, path: str, status: int
) -> None:
    response = await gateway.http.request(method, path)
    assert response.status_code == status
    assert error_of(response)["type"] == "invalid_request_error"
    assert response.headers["x-request-id"].startswith("req_")


async def test_models(gateway: LiveGateway) -> None:
    listed = (await gateway.http.get("/v1/models")).json()
    assert [model["id"] for model in listed["data"]] == [MODEL]
    one = (await gateway.http.get(f"/v1/models/{MODEL}")).json()
    assert one == listed["data"][0]


async def test_an_unknown_model_is_404(gateway: LiveGateway) -> None:
    response = await gateway.chat(model="gpt-9")
    assert response.status_code == 404
    assert error_of(response)["code"] == "model_not_found"


async def test_health_follows_the_worker(redis_url: str) -> None:
    async with running_gateway(redis_url, worker=False) as gateway:
        assert (await gateway.http.get("/livez")).status_code == 200
        response = await gateway.http.get("/readyz")
        assert response.status_code == 503
        assert response.json()["workers"] == []
        refused = await gateway.chat()
        assert refused.status_code == 503
        assert error_of(refused)["code"] == "no_worker"
        assert int(refused.headers["retry-after"]) >= 1


async def test_ready_with_a_worker(gateway: LiveGateway) -> None:
    response = await gateway.http.get("/readyz")
    assert response.status_code == 200
    assert response.json()["status"] == "ready"


async def test_the_page_is_served_with_its_policy(redis_url: str, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<!doctype html><title>x</title>")
    (tmp_path / "main.js").write_text("export {}")
    (tmp_path / "notes.md").write_text("not for you")
    (tmp_path / ".env").write_text("not for you")
    async with running_gateway(redis_url, worker=False, web_dir=tmp_path) as gateway:
        page = await gateway.http.get("/")
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        policy = page.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        script = await gateway.http.get("/main.js")
        assert script.headers["content-type"].startswith("text/javascript")
        again = await gateway.http.get(
            "/main.js", headers={"if-none-match": script.headers["etag"]}
        )
        assert again.status_code == 304
        for hidden in ("/notes.md", "/.env", "/main.py"):
            assert (await gateway.http.get(hidden)).status_code == 404
        assert (await gateway.http.head("/")).status_code == 200


async def test_org_03_evil_pages_are_refused(gateway: LiveGateway) -> None:
    for method, path in (
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("OPTIONS", "/v1/chat/completions"),
        ("GET", "/livez"),
    ):
        response = await gateway.http.request(
            method,
            path,
            headers={
                "origin": EVIL,
                "access-control-request-method": "POST",
                "cookie": "a=b",
                "authorization": "Bearer x",
            },
            content=b"{}",
        )
        assert response.status_code == 403
        assert "access-control-allow-origin" not in response.headers
        assert "origin" in response.headers["vary"].lower()


async def test_org_01_the_host_must_be_loopback_without_keys(gateway: LiveGateway) -> None:
    response = await gateway.http.get("/v1/models", headers={"host": "evil.example"})
    assert response.status_code == 403
    assert error_of(response)["code"] == "host_not_allowed"


async def test_org_04_every_status_carries_the_headers(redis_url: str) -> None:
    app = "https://app.example"
    async with running_gateway(
        redis_url,
        allowed_origins=(app,),
        api_keys=parse_api_keys(KEY),
        max_body_bytes=10_000,
    ) as gateway:
        headers = {"origin": app, "authorization": f"Bearer {KEY}"}
        body = {"messages": [USER]}
        refuse = {"refuse": {"class": "Overloaded", "message": "full", "retry_after_ms": 5}}
        fail = {"fail_after": 0}
        gone = {"refuse": {"class": "Unavailable", "message": "gone", "retry_after_ms": 5}}
        cases = [
            (200, {**body}, headers),
            (400, {"messages": []}, headers),
            (401, body, {"origin": app}),
            (413, {"messages": [{"role": "user", "content": "x" * 20_000}]}, headers),
            (
                429,
                {"messages": [{"role": "user", "content": "!json " + json.dumps(refuse)}]},
                headers,
            ),
            (
                500,
                {"messages": [{"role": "user", "content": "!json " + json.dumps(fail)}]},
                headers,
            ),
            (
                503,
                {"messages": [{"role": "user", "content": "!json " + json.dumps(gone)}]},
                headers,
            ),
        ]
        for status, content, sent in cases:
            response = await gateway.http.post("/v1/chat/completions", json=content, headers=sent)
            assert response.status_code == status, response.text
            assert response.headers["access-control-allow-origin"] == app
            assert "access-control-allow-credentials" not in response.headers
            assert "x-request-id" in response.headers["access-control-expose-headers"]
        page = await gateway.http.get(
            "/v1/models",
            headers={"origin": "http://localhost:3000", "authorization": f"Bearer {KEY}"},
        )
        assert page.headers["access-control-allow-origin"] == "http://localhost:3000"
        preflight = await gateway.http.options(
            "/v1/chat/completions",
            headers={
                "origin": app,
                "access-control-request-method": "POST",
                "access-control-request-headers": "authorization,content-type",
            },
        )
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-origin"] == app
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        assert "DELETE" in preflight.headers["access-control-allow-methods"]
        varies = {name.strip().lower() for name in preflight.headers["vary"].split(",")}
        assert varies >= {"origin", "access-control-request-headers"}
        listed = await gateway.http.get("/v1/models", headers=headers)
        assert listed.headers["access-control-allow-origin"] == app
        # Nothing of an earlier origin stays for a caller without one.
        plain = await gateway.http.get("/v1/models", headers={"authorization": f"Bearer {KEY}"})
        assert "access-control-allow-origin" not in plain.headers


async def test_aut_01_nothing_but_the_public_list_without_a_key(redis_url: str) -> None:
    async with running_gateway(redis_url, api_keys=parse_api_keys(KEY)) as gateway:
        paths = [
            *("/v1/models", f"/v1/models/{MODEL}", "/v1/chat/completions", "/metrics", "/v1/x"),
            *("/v1/sessions", "/v1/sessions/x", "/v1/sessions/x/export"),
            *("/v1/responses", "/v1/responses/x", "/v1/responses/x/cancel"),
            *("/v1/responses/x/input_items", "/v1/realtime"),
            *("/v1/realtime/client_secrets", "/v1/realtime/tickets"),
        ]
        bodies = set()
        for number, path in enumerate(paths):
            # One that is repeated too often is told to wait instead.
            wrong = {"authorization": f"Bearer wrong-{number}"}
            for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"):
                for headers in ({}, wrong, {"authorization": KEY}):
                    response = await gateway.http.request(method, path, headers=headers)
                    assert response.status_code == 401, (method, path)
                    assert response.headers["www-authenticate"] == "Bearer"
                    bodies.add(response.text)
        assert len(bodies - {""}) == 1
        for path in ("/v1/realtime", "/v1/responses"):
            with pytest.raises(InvalidStatus) as caught:
                async with connect(f"ws://127.0.0.1:{gateway.port}{path}"):
                    pass
            assert caught.value.response.status_code == 401
        # No key of a tenant's opens the operator's routes.
        for headers in ({}, {"authorization": f"Bearer {KEY}"}):
            for method, path in (("GET", "/ops/state"), ("POST", "/ops/workers/w/drain")):
                response = await gateway.http.request(method, path, headers=headers)
                assert response.status_code == 403, path
        for path in ("/livez", "/readyz"):
            assert (await gateway.http.get(path)).status_code in (200, 503)
        for method in ("query", "cookie"):
            response = await gateway.http.get(
                "/v1/models" + (f"?api_key={KEY}" if method == "query" else ""),
                headers={"cookie": f"key={KEY}"},
            )
            assert response.status_code == 401
        good = await gateway.http.get("/v1/models", headers={"authorization": f"Bearer {KEY}"})
        assert good.status_code == 200


async def test_frm_09_request_ids_are_ours(gateway: LiveGateway) -> None:
    ids = set()
    for _ in range(2):
        response = await gateway.http.get("/livez", headers={"x-request-id": "same"})
        ids.add(response.headers["x-request-id"])
    assert len(ids) == 2
    assert "same" not in ids


async def test_hlt_01_a_worker_that_is_killed_or_frozen_turns_readiness_off(
    redis_url: str,
) -> None:
    async with running_gateway(redis_url, worker=False) as gateway:

        async def is_ready() -> bool:
            return (await gateway.http.get("/readyz")).status_code == 200

        async def is_unready() -> bool:
            return (await gateway.http.get("/readyz")).status_code == 503

        for number in (signal.SIGKILL, signal.SIGSTOP):
            with worker_process(redis_url) as process:
                await until(is_ready, 20)
                process.send_signal(number)
                await until(is_unready, 5)
                if number == signal.SIGSTOP:
                    process.send_signal(signal.SIGCONT)
                    await until(is_ready, 20)


async def test_health_turns_when_the_worker_dies(redis_url: str) -> None:
    async with running_gateway(redis_url) as gateway:
        assert gateway.worker is not None
        gateway.worker.stop()
        gateway.worker.stop()

        async def unready() -> bool:
            return (await gateway.http.get("/readyz")).status_code == 503

        await until(unready)
