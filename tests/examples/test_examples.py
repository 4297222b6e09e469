"""The examples, run as a reader of the documentation would, against a real gateway."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.spine import worker_process
from tests.web.conftest import browser, context, context_options, page  # noqa: F401
from tests.web.gateway_thread import GatewayThread
from tests.web.real import say, script

ROOT = Path(__file__).parents[2]
WORDS = [f"word{i} " for i in range(80)]


@pytest.fixture
def gateway(redis_url: str) -> Iterator[GatewayThread]:
    with worker_process(redis_url):
        gateway = GatewayThread(redis_url)
        yield gateway
        gateway.close()


def start(name: str, gateway: GatewayThread, *arguments: str) -> subprocess.Popen[str]:
    environ = {
        **os.environ,
        "OPENAI_BASE_URL": f"{gateway.url}v1",
        "OPENAI_API_KEY": "any",
        "REPARTEE_URL": f"{gateway.url.replace('http', 'ws')}v1/realtime",
    }
    return subprocess.Popen(
        [sys.executable, str(ROOT / "examples" / name), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    )


def finish(process: subprocess.Popen[str]) -> str:
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    return out


def test_the_sdk_example(gateway: GatewayThread) -> None:
    process = start("openai_realtime.py", gateway, say("Grey 🐦."), say("White."))
    assert finish(process) == "Grey 🐦.\nWhite.\n"


def test_the_websockets_example(gateway: GatewayThread) -> None:
    assert finish(start("websockets_chat.py", gateway, say("Grey 🐦."))) == "Grey 🐦.\n"


def test_the_websockets_example_outlives_the_gateway(gateway: GatewayThread) -> None:
    # Not by `communicate`, which knows nothing of what is buffered here.
    with start("websockets_chat.py", gateway, script(tokens=WORDS, rate=40)) as process:
        assert process.stdout is not None
        first = process.stdout.read(20)
        gateway.stop()
        gateway.start()
        assert first + process.stdout.read() == "".join(WORDS) + "\n"
        assert process.wait(10) == 0


def test_the_browser_example(gateway: GatewayThread, page) -> None:  # type: ignore[no-untyped-def] # noqa: F811
    text = (ROOT / "docs" / "clients.md").read_text()
    match = re.search(r"```js\n(.*?)```", text, re.DOTALL)
    assert match is not None
    example = match[1].replace("ws://127.0.0.1:8080", gateway.url.replace("http", "ws").strip("/"))
    assert 'newMessage("' in example
    example = re.sub(r'newMessage\(".*?"\)', f"newMessage({say('Grey.')!r})", example)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    # In the place of the page's own start: a document that is not from the server may not
    # open sockets to this machine.
    page.route(
        "**/main.js", lambda route: route.fulfill(body=example, content_type="text/javascript")
    )
    page.goto(gateway.url)
    expect(page.locator("body")).to_contain_text("Grey.")
    assert complaints == []
