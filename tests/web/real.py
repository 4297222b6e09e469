"""The page of a real gateway, with a list of chats that is a test's own."""

from __future__ import annotations

import base64
import json
import uuid
from typing import Any

from playwright.sync_api import BrowserContext, expect

from app.auth import parse_api_keys
from tests.web.chat_page import ChatPage
from tests.web.gateway_thread import GatewayThread

# A browser reports a lost or refused socket on its console, whatever the page does.
LOST = ["WebSocket connection to", "Failed to load resource"]


def say(text: str) -> str:
    """A message that is answered with exactly `text`."""
    return "!text " + base64.b64encode(text.encode()).decode()


def script(**fields: Any) -> str:
    """A message that is answered as the fields of the fake engine's `Script` say."""
    return "!json " + json.dumps(fields)


class RealPages:
    """Pages of one gateway and one tenant.

    Args:
        redis_url: Where a worker is.
        context: The browser's; it is given the tenant's key.
    """

    def __init__(self, redis_url: str, context: BrowserContext) -> None:
        self.key = f"sk-page-{uuid.uuid4().hex}"
        keys = parse_api_keys(f"{self.key}:tenant-{self.key[-12:]}:vip")
        self.gateway = GatewayThread(redis_url, api_keys=keys)
        self.context = context
        self.pages: list[ChatPage] = []
        self.prepare(context)

    def prepare(self, context: BrowserContext) -> None:
        """Let the pages of a context have the key."""
        context.add_init_script(f"sessionStorage.setItem('repartee.key', '{self.key}')")

    def open(self, fragment: str = "", context: BrowserContext | None = None) -> ChatPage:
        """One more tab."""
        chat = ChatPage((context or self.context).new_page(), self.gateway)  # type: ignore[arg-type]
        chat.page.goto(self.gateway.url + fragment)
        expect(chat.page.locator("#model")).to_have_text("repartee-fake")
        self.pages.append(chat)
        return chat

    def close(self) -> None:
        """End the gateway, and fail the test on any console error or foreign request."""
        for chat in self.pages:
            chat.check_clean()
        self.context.close()
        self.gateway.close()
