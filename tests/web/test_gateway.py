"""The page against the real gateway, Redis and worker; only the engine is a fake."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from app.auth import parse_api_keys
from tests.spine import worker_process
from tests.web.chat_page import ChatPage
from tests.web.gateway_thread import GatewayThread

WORDS = [f"word{i} " for i in range(80)]
TEXT = "".join(WORDS).strip()
LOST = ["WebSocket connection to", "Failed to load resource"]
KEY = "sk-page-test-key-0123456789abcdef"


def say(text: str) -> str:
    """A message that is answered with exactly `text`."""
    return "!text " + base64.b64encode(text.encode()).decode()


def script(**fields: Any) -> str:
    """A message that is answered as the fields of the fake engine's `Script` say."""
    return "!json " + json.dumps(fields)


@pytest.fixture
def worker_url(redis_url: str) -> Iterator[str]:
    """The URL of a Redis where a worker waits."""
    with worker_process(redis_url):
        yield redis_url


@pytest.fixture
def gateway(worker_url: str) -> Iterator[GatewayThread]:
    gateway = GatewayThread(worker_url)
    yield gateway
    gateway.close()


@pytest.fixture
def live(page: Page, gateway: GatewayThread) -> Iterator[ChatPage]:
    """The page of the real gateway."""
    chat = ChatPage(page, gateway)
    chat.page.goto(gateway.url)
    expect(page.locator("#model")).to_have_text("repartee-fake")
    yield chat
    chat.check_clean()


def test_answers_stops_and_goes_on(live: ChatPage) -> None:
    text = "Mañana 日本語 🐕 **bold**, `code` and <b>no html</b>."
    live.ask_and_wait(say(text))
    assert live.answer.inner_text() == "Mañana 日本語 🐕 bold, code and <b>no html</b>."
    live.ask(script(tokens=WORDS, rate=20))
    expect(live.answer).to_contain_text("word1")
    live.stop_button.click()
    expect(live.answers.last).to_contain_text("You stopped this answer.")
    live.ask(script(tokens=WORDS, delay_ms=60_000))
    live.stop_button.click()
    expect(live.answers.last).to_contain_text("You stopped this answer.")
    live.idle()
    live.ask_and_wait(say("And on."))
    expect(live.answer).to_have_text("And on.")
    live.page.get_by_role("button", name="Try again").click()
    expect(live.answer).to_have_text("And on.")
    live.idle()
    expect(live.answers).to_have_count(4)
    live.page.reload()
    expect(live.answer).to_have_text("And on.")
    expect(live.users).to_have_count(4)
    live.page.get_by_role("button", name="New chat").click()
    expect(live.users).to_have_count(0)
    live.ask_and_wait(say("Fresh."))
    expect(live.answer).to_have_text("Fresh.")


def test_reload_in_mid_answer(live: ChatPage) -> None:
    live.ask(script(tokens=WORDS, rate=40))
    expect(live.answer).to_contain_text("word5")
    live.page.reload()
    expect(live.answer).to_contain_text("word5")
    expect(live.answer).to_have_text(TEXT)
    live.idle()
    expect(live.answers).to_have_count(1)


def test_the_gateway_restarts_in_mid_answer(live: ChatPage, gateway: GatewayThread) -> None:
    live.allowed = LOST
    live.ask(script(tokens=WORDS, rate=40))
    expect(live.answer).to_contain_text("word5")
    gateway.stop()
    expect(live.banner).to_contain_text("Connection lost")
    gateway.start()
    expect(live.answer).to_have_text(TEXT, timeout=20_000)
    live.idle()
    expect(live.banner).to_be_hidden()
    expect(live.answers).to_have_count(1)
    live.ask_and_wait(say("Still here."))
    expect(live.answer).to_have_text("Still here.")


def test_failures_are_told(live: ChatPage) -> None:
    live.ask(script(tokens=WORDS, rate=0, fail_after=10))
    expect(live.answers.last).to_contain_text("Something went wrong on the server.")
    expect(live.answer).to_contain_text("word5")
    live.idle()
    error = {"class": "Overloaded", "message": "full", "code": "overloaded", "param": None}
    live.ask(script(refuse={**error, "retry_after_ms": 2000}))
    expect(live.answers.last).to_contain_text("The server is busy.")
    live.idle()
    for code, told in (
        ("redis_unavailable", "What is stored there is safe. Try again in 2 seconds."),
        ("draining", "This page reconnects by itself; then try again."),
        ("worker_died", "Have it written anew."),
    ):
        error |= {"class": "Unavailable", "message": "no", "code": code}
        live.ask(script(refuse={**error, "retry_after_ms": 2000}))
        expect(live.answers.last).to_contain_text(told)
        live.idle()
    live.ask("word " * 40_000)
    # Laying out so long a message takes a busy machine seconds.
    expect(live.answers.last).to_contain_text("no longer fits", timeout=30_000)
    live.idle()


def test_a_forgotten_session(live: ChatPage, gateway: GatewayThread) -> None:
    live.page.goto("about:blank")
    live.page.goto(gateway.url + "#sess_that_never_was")
    expect(live.banner).to_contain_text("no longer kept on the server")
    live.ask_and_wait(say("New."))
    expect(live.answer).to_have_text("New.")


def test_the_key_is_asked_for(page: Page, worker_url: str) -> None:
    gateway = GatewayThread(worker_url, api_keys=parse_api_keys(KEY))
    chat = ChatPage(page, gateway)
    chat.allowed = LOST
    page.goto(gateway.url)
    field = page.get_by_label("API key", exact=True)
    field.fill("sk-wrong")
    field.press("Enter")
    expect(field).to_have_value("")
    field.fill(KEY)
    field.press("Enter")
    expect(field).to_be_hidden()
    chat.ask_and_wait(say("In."))
    expect(chat.answer).to_have_text("In.")
    gateway.close()
    chat.check_clean()
