"""Changing what was said: edit and resend, answer again, copy, leave out the oldest."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Locator, expect

from tests.web.chat_page import ChatPage

FULL = {"type": "invalid_request_error", "code": "context_length_exceeded"}
LOST = ["WebSocket connection to", "Failed to load resource"]


def editor(chat: ChatPage) -> Locator:
    return chat.page.get_by_role("textbox", name="Edit your message")


def edit(chat: ChatPage, index: int) -> Locator:
    article = chat.page.get_by_role("article", name="You").nth(index)
    article.hover()
    article.get_by_role("button", name="Edit").click()
    expect(editor(chat)).to_be_focused()
    return editor(chat)


def stored(chat: ChatPage) -> list[str]:
    (session,) = chat.server.sessions.values()
    return ["".join(part["text"] for part in item["content"]) for item in session.items]


def test_an_edited_turn_replaces_all_that_followed(chat: ChatPage) -> None:
    chat.ask_and_wait("one")
    chat.ask_and_wait("two")
    chat.server.script.chunks = ["Changed."]
    box = edit(chat, 0)
    expect(box).to_have_value("one")
    box.fill("three\nlines")
    box.press("Enter")
    expect(chat.users).to_have_text(["three\nlines"])
    expect(chat.answer).to_have_text("Changed.")
    chat.idle()
    assert stored(chat) == ["three\nlines", "Changed."]
    (cut,) = chat.server.sent("repartee.conversation.truncate")
    assert cut["item_id"] == "root"
    chat.page.reload()
    expect(chat.users).to_have_text(["three\nlines"])


def test_an_edit_is_given_up_or_refused_when_blank(chat: ChatPage) -> None:
    chat.ask_and_wait("one")
    box = edit(chat, 0)
    box.fill("   ")
    box.press("Enter")
    expect(box).to_be_visible()
    box.press("Escape")
    expect(editor(chat)).to_have_count(0)
    expect(chat.users).to_have_text(["one"])
    expect(chat.input).to_be_focused()
    edit(chat, 0)
    chat.page.get_by_role("button", name="Cancel").click()
    expect(chat.users).to_have_text(["one"])
    assert chat.server.sent("repartee.conversation.truncate") == []


def test_enter_of_an_input_method_does_not_send_an_edit(chat: ChatPage) -> None:
    chat.ask_and_wait("one")
    box = edit(chat, 0)
    box.evaluate(
        """(box) => box.dispatchEvent(new KeyboardEvent("keydown",
             {key: "Enter", bubbles: true, cancelable: true, keyCode: 229}))"""
    )
    expect(box).to_be_visible()
    assert len(chat.server.sent("response.create")) == 1


def test_arrow_up_edits_the_last_message(chat: ChatPage) -> None:
    chat.ask_and_wait("one")
    chat.ask_and_wait("two")
    chat.input.fill("x")
    chat.input.press("ArrowUp")
    expect(editor(chat)).to_have_count(0)
    chat.input.fill("")
    chat.input.press("ArrowUp")
    expect(editor(chat)).to_have_value("two")


def test_an_edit_while_the_line_is_down_is_made_once(chat: ChatPage) -> None:
    chat.allowed = LOST
    chat.ask_and_wait("one")
    chat.ask_and_wait("two")
    # Its code is loaded before the line goes.
    edit(chat, 1)
    chat.server.refuse_sockets = True
    chat.server.drop()
    expect(chat.banner).to_contain_text("Connection lost")
    editor(chat).fill("other")
    editor(chat).press("Enter")
    expect(chat.users).to_have_text(["one", "other"])
    chat.server.refuse_sockets = False
    chat.page.get_by_role("button", name="Reconnect now").click()
    chat.idle()
    expect(chat.users).to_have_text(["one", "other"])
    expect(chat.answers).to_have_count(2)
    assert stored(chat) == ["one", "Hello there.", "other", "Hello there."]


def test_nothing_is_changed_while_an_answer_runs(chat: ChatPage) -> None:
    chat.server.script.hold_before = 1
    chat.ask("one")
    expect(chat.answer).to_have_text("Hello")
    chat.page.get_by_role("article", name="You").hover()
    expect(chat.page.get_by_role("button", name="Edit", exact=True)).to_be_hidden()
    chat.server.release()
    chat.idle()
    expect(chat.page.get_by_role("button", name="Edit", exact=True)).to_be_visible()


def test_copy_a_message(chat: ChatPage) -> None:
    chat.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    chat.ask_and_wait("my *words*")
    chat.page.get_by_role("article", name="You").hover()
    chat.page.get_by_role("button", name="Copy").first.click()
    assert chat.page.evaluate("navigator.clipboard.readText()") == "my *words*"
    chat.page.keyboard.press("Control+;")
    expect(chat.page.locator("#announcer")).to_have_text("Copied")
    assert chat.page.evaluate("navigator.clipboard.readText()") == "Hello there."


def test_a_full_chat_can_go_on_without_its_older_half(chat: ChatPage) -> None:
    for text in ("one", "two", "three"):
        chat.ask_and_wait(text)
    chat.server.script.refuse = FULL
    chat.ask("four")
    button = chat.page.get_by_role("button", name="Remove the older half and retry")
    expect(button).to_be_visible()
    chat.server.script.refuse = None
    button.click()
    expect(chat.users).to_have_text(["three", "four"])
    chat.idle()
    expect(chat.answer).to_have_text("Hello there.")
    assert stored(chat) == ["three", "Hello there.", "four", "Hello there."]


def test_a_message_too_long_alone_offers_no_older_half(chat: ChatPage) -> None:
    chat.server.script.refuse = FULL
    chat.ask("one")
    expect(chat.page.get_by_role("button", name="Start a new chat")).to_be_visible()
    expect(chat.page.get_by_role("button", name="Remove the older half")).to_have_count(0)


def test_a_long_message_is_folded(chat: ChatPage) -> None:
    text = "\n".join(f"line {i}" for i in range(60))
    chat.ask_and_wait(text)
    body = chat.page.locator(".user .body")
    height: Any = body.evaluate("node => node.clientHeight")
    fold = chat.page.get_by_role("button", name="Show all")
    expect(fold).to_have_attribute("aria-expanded", "false")
    fold.click()
    assert body.evaluate("node => node.clientHeight") > 3 * height
    expect(chat.page.get_by_role("button", name="Show less")).to_have_attribute(
        "aria-expanded", "true"
    )
    assert body.inner_text() == text


def test_an_edit_waits_in_its_box_while_an_answer_runs(chat: ChatPage) -> None:
    chat.ask_and_wait("one")
    box = edit(chat, 0)
    box.fill("other words")
    chat.server.script.hold_before = 1
    chat.ask("two")
    expect(chat.answer).to_have_text("Hello")
    box.press("Enter")
    expect(chat.page.get_by_role("alert").filter(has_text="has ended")).to_be_visible()
    expect(box).to_have_value("other words")
    chat.server.release()
    chat.idle()
    box.press("Enter")
    expect(chat.users).to_have_text(["other words"])
    expect(editor(chat)).to_have_count(0)
    chat.idle()


def test_too_long_an_edit_is_warned_of_and_kept(chat: ChatPage) -> None:
    chat.ask_and_wait("one")
    box = edit(chat, 0)
    # Six bytes of JSON for each character, in lines: short to lay out.
    box.evaluate("(box) => (box.value = ('\\u0001'.repeat(99) + '\\n').repeat(1800))")
    box.press("Enter")
    expect(chat.page.get_by_role("alert").filter(has_text="too long to send")).to_be_visible()
    expect(box).to_be_visible()
    assert chat.server.sent("repartee.conversation.truncate") == []
    assert len(chat.server.handshakes) == 1
