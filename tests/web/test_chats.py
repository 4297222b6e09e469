"""The list of chats: open, search, rename, delete, export, on wide and narrow screens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Route, expect

from tests.web.chat_page import ChatPage
from tests.web.real import RealPages, say, script

ROWS = "#chats-list li"


def open_list(chat: ChatPage) -> None:
    chat.page.get_by_role("button", name="Chats", exact=True).click()
    expect(chat.page.get_by_role("navigation", name="Chats")).to_be_visible()


def rows(chat: ChatPage) -> Locator:
    return chat.page.locator(f"{ROWS} a span")


def menu(chat: ChatPage, title: str, item: str) -> None:
    chat.page.get_by_role("button", name=f"More for {title}").click()
    chat.page.locator("#chat-menu").get_by_role("button", name=item).click()


def begin(chat: ChatPage, *texts: str) -> None:
    """A chat for each text, the last one shown."""
    for i, text in enumerate(texts):
        if i:
            chat.page.get_by_role("button", name="New chat", exact=True).click()
            expect(chat.users).to_have_count(0)
        chat.ask_and_wait(text)


def test_chats_are_listed_opened_and_gone_back_from(real: RealPages) -> None:
    chat = real.open()
    begin(chat, "Alpha", "Beta")
    open_list(chat)
    expect(rows(chat)).to_have_text(["Beta", "Alpha"])
    expect(chat.page.locator("[aria-current=page]")).to_contain_text("Beta")
    beta = chat.page.url
    rows(chat).nth(1).click()
    expect(chat.users).to_have_text(["Alpha"])
    expect(chat.page.locator("[aria-current=page]")).to_contain_text("Alpha")
    expect(chat.input).to_be_focused()
    expect(chat.page).to_have_title("Alpha - Repartee")
    alpha = chat.page.url
    assert alpha != beta
    chat.page.go_back()
    expect(chat.users).to_have_text(["Beta"])
    assert chat.page.url == beta
    chat.page.go_forward()
    expect(chat.users).to_have_text(["Alpha"])
    chat.ask_and_wait("More")
    expect(rows(chat)).to_have_text(["Alpha", "Beta"])
    # The list is open again after a reload, on the same chat.
    chat.page.reload()
    expect(rows(chat)).to_have_text(["Alpha", "Beta"])
    expect(chat.users).to_have_text(["Alpha", "More"])
    expect(chat.page.locator("[aria-current=page]")).to_contain_text("Alpha")


def test_a_search_finds_titles_and_words(real: RealPages) -> None:
    chat = real.open()
    begin(chat, say("The cat sleeps."), "Weather")
    open_list(chat)
    search = chat.page.get_by_role("searchbox", name="Search chats")
    search.fill("weath")
    expect(rows(chat)).to_have_text(["Weather"])
    search.fill("SLEEPS")
    expect(rows(chat)).to_have_count(1)
    expect(chat.page.locator(f"{ROWS} small")).to_contain_text("The cat sleeps.")
    search.fill("no such words")
    expect(chat.page.get_by_text("Nothing found.")).to_be_visible()
    chat.ask(script(rate=0, stall_after=5))
    expect(chat.stop_button).to_be_visible()
    search.press("Escape")
    expect(search).to_have_value("")
    expect(rows(chat)).to_have_count(2)
    expect(chat.stop_button).to_be_visible()
    chat.stop_button.click()
    chat.idle()


def test_a_chat_is_renamed(real: RealPages) -> None:
    chat = real.open()
    begin(chat, "Alpha")
    open_list(chat)
    menu(chat, "Alpha", "Rename")
    name = chat.page.get_by_role("textbox", name="Name")
    expect(name).to_be_focused()
    name.press("Escape")
    expect(rows(chat)).to_have_text(["Alpha"])
    menu(chat, "Alpha", "Rename")
    name.fill("   ")
    name.press("Enter")
    expect(name).to_be_visible()
    name.fill("  A better name ")
    name.press("Enter")
    expect(rows(chat)).to_have_text(["A better name"])
    expect(chat.page).to_have_title("A better name - Repartee")
    expect(chat.page.locator("#announcer")).to_have_text("Chat renamed.")


def test_a_chat_is_deleted_after_a_question(real: RealPages) -> None:
    chat = real.open()
    begin(chat, "Alpha", "Beta")
    open_list(chat)
    dialog = chat.page.get_by_role("dialog")
    menu(chat, "Alpha", "Delete")
    expect(dialog).to_contain_text("“Alpha” and all its messages will be gone for good.")
    dialog.get_by_role("button", name="Cancel").click()
    expect(rows(chat)).to_have_count(2)
    menu(chat, "Alpha", "Delete")
    dialog.get_by_role("button", name="Delete").click()
    expect(rows(chat)).to_have_text(["Beta"])
    expect(chat.users).to_have_text(["Beta"])
    menu(chat, "Beta", "Delete")
    dialog.get_by_role("button", name="Delete").click()
    expect(chat.page.get_by_text("No chats yet.")).to_be_visible()
    expect(chat.users).to_have_count(0)
    assert chat.page.url == real.gateway.url
    begin(chat, "Gamma")
    expect(rows(chat)).to_have_text(["Gamma"])


def test_a_chat_is_exported(real: RealPages, tmp_path: Path) -> None:
    chat = real.open()
    begin(chat, say("**Bold** answer"))
    open_list(chat)
    title = rows(chat).inner_text()
    files = {}
    for item in ("Export as Markdown", "Export as JSON"):
        with chat.page.expect_download() as download:
            menu(chat, title, item)
        path = tmp_path / download.value.suggested_filename
        download.value.save_as(path)
        files[path.suffix] = path.read_text()
    assert "**Bold** answer" in files[".md"]
    assert "**Bold** answer" in json.dumps(json.loads(files[".json"]))


def test_what_fails_is_told(real: RealPages) -> None:
    chat = real.open()
    chat.allowed = ["Failed to load resource"]
    begin(chat, "Alpha")
    open_list(chat)
    expect(rows(chat)).to_have_count(1)
    error = {"error": {"message": "Redis is away.", "type": "server_error"}}
    chat.page.route("**/v1/sessions/*", lambda route: route.fulfill(status=503, json=error))
    menu(chat, "Alpha", "Delete")
    chat.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(chat.page.locator("#chats-problem")).to_have_text("That did not work. Redis is away.")
    expect(chat.page.locator("#announcer")).to_contain_text("Redis is away.")
    expect(rows(chat)).to_have_count(1)


def test_a_long_list_comes_in_pages(real: RealPages) -> None:
    def page_of(route: Route) -> None:
        second = "after=p2" in route.request.url
        names = ["third"] if second else ["first", "second"]
        data = [{"id": f"sess_{n}", "title": n, "updated_at": 1_700_000_000} for n in names]
        route.fulfill(json={"data": data, "next_after": None if second else "p2"})

    real.context.route("**/v1/sessions?*", page_of)
    chat = real.open()
    open_list(chat)
    expect(rows(chat)).to_have_text(["first", "second"])
    more = chat.page.get_by_role("button", name="Show more")
    more.click()
    expect(rows(chat)).to_have_text(["first", "second", "third"])
    expect(more).to_be_hidden()


class TestPhone:
    @pytest.fixture
    def context_options(self) -> dict[str, Any]:
        return {"viewport": {"width": 390, "height": 844}}

    def test_the_list_is_a_drawer(self, real: RealPages) -> None:
        chat = real.open()
        begin(chat, "Alpha", "Beta")
        toggle = chat.page.get_by_role("button", name="Chats", exact=True)
        toggle.focus()
        chat.page.keyboard.press("Enter")
        panel = chat.page.get_by_role("navigation", name="Chats")
        expect(panel).to_be_visible()
        expect(chat.page.get_by_role("searchbox")).to_be_focused()
        # What is behind it can neither be reached by Tab nor read.
        expect(chat.page.locator("#room")).to_have_js_property("inert", True)
        chat.page.keyboard.press("Escape")
        expect(panel).to_be_hidden()
        expect(toggle).to_be_focused()
        toggle.click()
        rows(chat).nth(1).click()
        expect(panel).to_be_hidden()
        expect(chat.users).to_have_text(["Alpha"])
        toggle.click()
        chat.page.mouse.click(380, 400)
        expect(panel).to_be_hidden()
        # A drawer does not come back by itself.
        chat.page.reload()
        expect(chat.users).to_have_text(["Alpha"])
        expect(panel).to_be_hidden()
