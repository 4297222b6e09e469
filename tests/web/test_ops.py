"""The operator's page in a browser, over a real gateway and a real worker process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect

from app.auth import parse_api_keys
from app.gateway.ops import parse_ops_token
from app.watched_file import WatchedFile
from tests.redis_server import RedisServer
from tests.spine import worker_process
from tests.web.gateway_thread import GatewayThread

KEY = "sk-0123456789abcdef"
TOKEN = "ops-0123456789abcdef"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayThread]:
    folder = tmp_path_factory.mktemp("ops")
    (folder / "token").write_text(TOKEN)
    redis = RedisServer(folder)
    redis.start()
    with worker_process(redis.url):
        running = GatewayThread(
            redis.url,
            api_keys=parse_api_keys(f"{KEY}:acme:vip"),
            ops_token_file=WatchedFile(folder / "token", parse_ops_token, "--ops-token-file"),
        )
        yield running
        running.close()
    redis.stop()


# A pixel that is greener than red, as the first line of a plot is.
GREEN = """(node) => {
    const { data } = node.getContext("2d").getImageData(0, 0, node.width, node.height)
    for (let at = 0; at < data.length; at += 4)
        if (data[at + 1] > data[at] + 30 && data[at + 3] > 100) return true
    return false
}"""


def until(holds: Callable[[], bool]) -> None:
    """Wait for what the page's own policy lets no script wait for."""
    deadline = time.monotonic() + 15
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def opened(context: BrowserContext, gateway: GatewayThread) -> Page:
    """The page, unlocked."""
    page = context.new_page()
    page.goto(f"{gateway.url}ops/")
    page.get_by_label("Operator's token").fill(TOKEN)
    page.get_by_role("button", name="Open").click()
    expect(page.locator("#workers tr")).to_have_count(1)
    return page


def test_it_is_locked_until_the_token_is_shown(
    context: BrowserContext, gateway: GatewayThread
) -> None:
    page = context.new_page()
    page.goto(f"{gateway.url}ops/")
    expect(page.locator("#view")).to_be_hidden()
    page.get_by_label("Operator's token").fill(KEY)
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("That is not the token.")
    page.get_by_label("Operator's token").fill(TOKEN)
    page.keyboard.press("Enter")
    expect(page.locator("#state")).to_have_text("Gateways: 1. Workers live: 1 of 1.")
    page.reload()
    expect(page.locator("#view")).to_be_visible()


def test_it_draws_what_happens(context: BrowserContext, gateway: GatewayThread) -> None:
    foreign: list[str] = []
    errors: list[str] = []
    context.on("request", lambda sent: foreign.append(sent.url))
    page = opened(context, gateway)
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    body = {"messages": [{"role": "user", "content": "hi"}]}
    headers = {"authorization": f"Bearer {KEY}"}
    answer = httpx.post(f"{gateway.url}v1/chat/completions", json=body, headers=headers, timeout=30)
    assert answer.status_code == 200
    first = page.locator("figure", has_text="Time to first token, p99")
    expect(first).to_contain_text("ms", timeout=15_000)
    expect(page.locator("figure canvas")).to_have_count(15)
    # The line of a plot that has a value in every reading, green as its name is.
    plot = page.locator("figure", has_text="Sockets").locator("canvas")
    until(lambda: plot.evaluate(GREEN))
    page.emulate_media(color_scheme="dark")
    expect(page.locator("figure canvas")).to_have_count(15)
    page.set_viewport_size({"width": 390, "height": 844})
    expect(page.locator("figure").last).to_be_attached()
    wide = """() => [...document.querySelectorAll("body *:not(.wide *)")].filter(
        (node) => node.getBoundingClientRect().right > innerWidth
            && !node.closest("figure, .sr-only")).map((node) => node.outerHTML.slice(0, 80))"""
    assert page.evaluate(wide) == []
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert errors == []
    assert [url for url in foreign if not url.startswith(gateway.url)] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Browser, gateway: GatewayThread, scheme: Any) -> None:
    # Axe is put into the page as text, which the page's own policy rightly forbids.
    context = browser.new_context(bypass_csp=True, color_scheme=scheme)
    page = context.new_page()
    page.goto(f"{gateway.url}ops/")
    expect(page.get_by_label("Operator's token")).to_be_visible()
    locked = Axe().run(page)
    page.close()
    unlocked = Axe().run(opened(context, gateway))
    context.close()
    for results in (locked, unlocked):
        assert results.violations_count == 0, results.generate_report()


def test_a_worker_is_drained_after_a_question(
    context: BrowserContext, gateway: GatewayThread
) -> None:
    page = opened(context, gateway)
    button = page.get_by_role("button", name="Drain worker")
    button.click()
    expect(page.get_by_role("dialog")).to_contain_text("takes nothing new")
    page.keyboard.press("Escape")
    expect(page.locator("#workers")).to_contain_text("live")
    button.click()
    page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    expect(page.locator("#workers tr")).to_have_count(0, timeout=15_000)
    expect(page.locator("#state")).to_have_text("Gateways: 1. Workers live: 0 of 0.")


def test_every_file_of_the_page_says_its_licence_or_is_ours() -> None:
    vendor = Path(__file__).parents[2] / "web" / "ops" / "vendor"
    names = {path.stem.split(".")[0] for path in vendor.iterdir()}
    assert all((vendor / f"{name}.LICENSE.txt").exists() for name in names)
