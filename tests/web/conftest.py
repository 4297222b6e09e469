"""One browser and one scripted server for all page tests; a fresh context for each test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.redis_server import RedisServer
from tests.spine import worker_process
from tests.web.chat_page import ChatPage
from tests.web.real import RealPages
from tests.web.server import PageServer

# The distribution's browser if there is one, else the one that Playwright installs.
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    # Closed with the package: while it is open, no other event loop runs in this thread.
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def running_server() -> Iterator[PageServer]:
    server = PageServer()
    yield server
    server.stop()


@pytest.fixture
def server(running_server: PageServer) -> PageServer:
    running_server.reset()
    return running_server


@pytest.fixture
def context_options() -> dict[str, Any]:
    """Overridden by tests that need another screen, motion or colour scheme."""
    return {}


@pytest.fixture
def context(browser: Browser, context_options: dict[str, Any]) -> Iterator[BrowserContext]:
    context = browser.new_context(**context_options)
    context.set_default_timeout(10_000)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Page:
    return context.new_page()


@pytest.fixture
def chat(page: Page, server: PageServer) -> Iterator[ChatPage]:
    """The page, opened and connected; fails the test on any console error or foreign request."""
    chat = ChatPage(page, server)
    chat.open()
    yield chat
    chat.check_clean()


@pytest.fixture(scope="package")
def shared_worker(redis_server: RedisServer) -> Iterator[str]:
    """The URL of a Redis where one worker waits for all tests that bring their own tenant."""
    with worker_process(redis_server.url):
        yield redis_server.url


@pytest.fixture
def real(shared_worker: str, context: BrowserContext) -> Iterator[RealPages]:
    """Pages of a gateway, and a tenant, of the test's own."""
    pages = RealPages(shared_worker, context)
    yield pages
    pages.close()
