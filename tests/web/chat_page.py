"""What a person does on the page, for tests."""

from __future__ import annotations

import time
from collections.abc import Callable

from playwright.sync_api import Locator, Page, expect

from tests.web.server import PageServer


class ChatPage:
    """The page in a browser tab.

    Attributes:
        complaints: Console errors and uncaught exceptions.
        allowed: Substrings of complaints that the test expects.
    """

    def __init__(self, page: Page, server: PageServer) -> None:
        self.page = page
        self.server = server
        self.complaints: list[str] = []
        self.allowed: list[str] = []
        self.foreign: list[str] = []
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self._on_request(request.url))
        page.on("dialog", lambda dialog: self._on_dialog(dialog))

    def _on_console(self, message) -> None:  # type: ignore[no-untyped-def]
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _on_dialog(self, dialog) -> None:  # type: ignore[no-untyped-def]
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _on_request(self, url: str) -> None:
        if not url.startswith(self.server.url):
            self.foreign.append(url)

    def open(self, fragment: str = "") -> None:
        self.page.goto(self.server.url + fragment)
        self.connected()

    def connected(self) -> None:
        self.until(lambda: self.server.sockets > 0)
        expect(self.banner).to_be_hidden()

    def until(self, true: Callable[[], bool], timeout_ms: int = 10_000) -> None:
        """Wait, with the browser's events running."""
        deadline = time.monotonic() + timeout_ms / 1000
        while not true():
            assert time.monotonic() < deadline, f"it did not come true; {self.complaints}"
            self.page.wait_for_timeout(10)

    def check_clean(self) -> None:
        left = [c for c in self.complaints if not any(part in c for part in self.allowed)]
        assert not left, left
        assert self.foreign == []

    @property
    def input(self) -> Locator:
        return self.page.get_by_role("textbox", name="Message", exact=True)

    @property
    def send_button(self) -> Locator:
        return self.page.get_by_role("button", name="Send message")

    @property
    def stop_button(self) -> Locator:
        return self.page.get_by_role("button", name="Stop the answer")

    @property
    def retry_button(self) -> Locator:
        return self.page.get_by_role("button", name="Retry", exact=True)

    @property
    def banner(self) -> Locator:
        return self.page.locator("#banner")

    @property
    def users(self) -> Locator:
        """The texts of the person's messages."""
        return self.page.get_by_role("article", name="You").locator(".body")

    @property
    def answers(self) -> Locator:
        return self.page.get_by_role("article", name="Repartee")

    @property
    def answer(self) -> Locator:
        """The last answer's text."""
        return self.answers.last.locator(".body")

    def ask(self, text: str = "Hi") -> None:
        self.input.fill(text)
        self.input.press("Enter")

    def idle(self) -> None:
        """Wait until no answer runs."""
        expect(self.stop_button).to_be_hidden()
        expect(self.page.locator("[aria-busy=true]")).to_have_count(0)

    def ask_and_wait(self, text: str = "Hi") -> None:
        count = self.answers.count()
        self.ask(text)
        expect(self.answers).to_have_count(count + 1)
        self.idle()
