"""Settings, figures and keys: what they do, and that focus comes back."""

from __future__ import annotations

from playwright.sync_api import Locator, expect

from tests.web.chat_page import ChatPage

USAGE = {
    "total_tokens": 150,
    "input_tokens": 90,
    "output_tokens": 60,
    "input_token_details": {"cached_tokens": 40},
}


def open_settings(chat: ChatPage) -> Locator:
    chat.page.get_by_role("button", name="Settings").click()
    dialog = chat.page.get_by_role("dialog", name="Settings of this chat")
    expect(dialog).to_be_visible()
    return dialog


def test_settings_are_kept_with_the_chat(chat: ChatPage) -> None:
    chat.ask_and_wait()
    dialog = open_settings(chat)
    dialog.get_by_label("System prompt").fill("Be brief.")
    dialog.get_by_label("Temperature").fill("0.5")
    dialog.get_by_label("Longest answer").fill("64")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_be_hidden()
    expect(chat.page.get_by_role("button", name="Settings")).to_be_focused()
    chat.until(lambda: len(chat.server.sent("session.update")) == 1)
    (update,) = chat.server.sent("session.update")
    assert update["session"] == {
        "type": "realtime",
        "instructions": "Be brief.",
        "max_output_tokens": 64,
        "repartee": {"temperature": 0.5, "top_p": None, "seed": None},
    }
    chat.page.reload()
    expect(chat.users).to_have_count(1)
    dialog = open_settings(chat)
    expect(dialog.get_by_label("System prompt")).to_have_value("Be brief.")
    expect(dialog.get_by_label("Temperature")).to_have_value("0.5")
    expect(dialog.get_by_label("Longest answer")).to_have_value("64")
    expect(dialog.get_by_label("Seed")).to_have_value("")
    dialog.get_by_role("button", name="Reset").click()
    expect(dialog.get_by_label("System prompt")).to_have_value("")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_be_hidden()
    chat.until(lambda: len(chat.server.sent("session.update")) == 2)
    (session,) = chat.server.sessions.values()
    chat.until(lambda: session.settings["repartee"] == {})
    assert session.settings["max_output_tokens"] == "inf"


def test_wrong_settings_are_not_sent(chat: ChatPage) -> None:
    dialog = open_settings(chat)
    for label, wrong in (("Temperature", "3"), ("Top p", "-1"), ("Longest answer", "0")):
        dialog.get_by_label(label).fill(wrong)
        dialog.get_by_role("button", name="Save").click()
        expect(dialog).to_be_visible()
        dialog.get_by_label(label).fill("")
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_be_hidden()
    assert chat.server.sent("session.update") == []


def test_settings_say_that_there_is_no_connection(chat: ChatPage) -> None:
    chat.allowed = ["WebSocket connection to", "Failed to load resource"]
    dialog = open_settings(chat)
    chat.server.refuse_sockets = True
    chat.server.drop()
    expect(chat.banner).to_contain_text("Connection lost")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog).to_contain_text("There is no connection right now.")
    expect(dialog).to_be_visible()


def test_a_panel_that_cannot_be_loaded_can_be_later(chat: ChatPage) -> None:
    chat.allowed = ["Failed to load resource"]
    chat.page.route("**/keys.js*", lambda route: route.abort())
    chat.page.keyboard.press("Control+/")
    expect(chat.banner).to_contain_text("The server cannot be reached to open that.")
    chat.page.unroute("**/keys.js*")
    chat.page.keyboard.press("Control+/")
    expect(chat.page.get_by_role("dialog", name="Keys")).to_be_visible()


def figure(chat: ChatPage, name: str) -> Locator:
    return chat.page.locator("#hud div").filter(has_text=name).locator("dd")


def test_figures_are_shown_when_wanted_and_remembered(chat: ChatPage) -> None:
    chat.server.script.usage = USAGE
    chat.server.script.queued_ms = 250
    hud = chat.page.locator("#hud")
    button = chat.page.get_by_role("button", name="Figures")
    expect(hud).to_be_hidden()
    chat.page.keyboard.press("Control+.")
    expect(hud).to_be_visible()
    expect(button).to_have_attribute("aria-pressed", "true")
    expect(figure(chat, "first word")).to_have_text("\u2013")
    chat.ask_and_wait()
    expect(figure(chat, "prompt")).to_have_text("90 (40 cached)")
    expect(figure(chat, "answer")).to_have_text("60")
    expect(figure(chat, "waited")).to_have_text("0.25 s")
    expect(figure(chat, "first word")).to_contain_text(" s")
    expect(figure(chat, "reconnects")).to_have_text("0")
    chat.page.reload()
    expect(hud).to_be_visible()
    button.click()
    expect(hud).to_be_hidden()
    expect(button).to_have_attribute("aria-pressed", "false")
    chat.page.reload()
    chat.connected()
    expect(hud).to_be_hidden()


def test_figures_know_the_tier_and_count_reconnects(chat: ChatPage) -> None:
    chat.allowed = ["WebSocket connection to"]
    chat.server.script.tier = "vip"
    chat.page.keyboard.press("Control+.")
    chat.server.drop()
    expect(figure(chat, "reconnects")).to_have_text("1")
    chat.until(lambda: chat.server.sockets == 1)
    expect(figure(chat, "tier")).to_have_text("vip")


def test_every_key_of_the_list_works(chat: ChatPage) -> None:
    keyboard = chat.page.keyboard
    opener = chat.page.get_by_role("button", name="Keys")
    opener.focus()
    keyboard.press("Enter")
    dialog = chat.page.get_by_role("dialog", name="Keys")
    expect(dialog.locator("dt")).to_have_count(10)
    # Behind a dialog nothing listens.
    keyboard.press("Control+k")
    expect(chat.page.get_by_role("navigation")).to_be_hidden()
    keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(opener).to_be_focused()
    chat.ask_and_wait()
    keyboard.press("Control+Shift+O")
    expect(chat.users).to_have_count(0)
    keyboard.press("Control+k")
    expect(chat.page.get_by_role("searchbox")).to_be_focused()
    keyboard.press("Control+k")
    expect(chat.page.get_by_role("navigation")).to_be_hidden()
    keyboard.press("Control+,")
    expect(chat.page.get_by_label("System prompt")).to_be_focused()
