"""Other tabs and devices on the same chat follow live."""

from __future__ import annotations

from playwright.sync_api import Browser, expect

from tests.web.real import LOST, RealPages, say, script

WORDS = [f"word{i} " for i in range(60)]
TEXT = "".join(WORDS).strip()


def fragment(url: str) -> str:
    return "#" + url.split("#")[1]


def test_another_tab_follows_a_turn_as_it_goes(real: RealPages) -> None:
    one = real.open()
    one.ask_and_wait("first")
    two = real.open(fragment(one.page.url))
    expect(two.users).to_have_text(["first"])
    one.ask(script(tokens=WORDS, rate=60))
    expect(two.users).to_have_count(2)
    expect(two.answer).to_contain_text("word3")
    expect(two.stop_button).to_be_visible()
    for tab in (one, two):
        expect(tab.answer).to_have_text(TEXT)
        tab.idle()
    two.ask_and_wait(say("from two"))
    expect(one.answer).to_have_text("from two")
    one.idle()
    expect(one.answers).to_have_count(3)


def test_another_tab_can_stop_the_answer(real: RealPages) -> None:
    one = real.open()
    one.ask(script(tokens=WORDS, rate=0, stall_after=5))
    expect(one.answer).to_contain_text("word1")
    two = real.open(fragment(one.page.url))
    expect(two.answer).to_contain_text("word1")
    two.stop_button.click()
    for tab in (one, two):
        expect(tab.answers.last).to_contain_text("You stopped this answer.")
        tab.idle()


def test_edits_and_settings_are_seen_elsewhere(real: RealPages, browser: Browser) -> None:
    one = real.open()
    one.ask_and_wait("first")
    one.ask_and_wait("second")
    device = browser.new_context()
    real.prepare(device)
    two = real.open(fragment(one.page.url), device)
    expect(two.users).to_have_text(["first", "second"])
    one.users.first.hover()
    one.page.get_by_role("button", name="Edit", exact=True).first.click()
    box = one.page.get_by_role("textbox", name="Edit your message")
    box.fill("other")
    box.press("Enter")
    for tab in (one, two):
        expect(tab.users).to_have_text(["other"])
        tab.idle()
        expect(tab.answers).to_have_count(1)
    one.page.keyboard.press("Control+,")
    one.page.get_by_label("System prompt").fill("Be brief.")
    one.page.get_by_role("button", name="Save").click()
    expect(one.page.get_by_role("dialog")).to_be_hidden()
    two.page.keyboard.press("Control+,")
    expect(two.page.get_by_label("System prompt")).to_have_value("Be brief.")
    device.close()


def test_a_chat_deleted_elsewhere_says_so(real: RealPages) -> None:
    one = real.open()
    one.ask_and_wait("first")
    two = real.open(fragment(one.page.url))
    expect(two.users).to_have_text(["first"])
    two.page.keyboard.press("Control+k")
    two.page.get_by_role("button", name="More for first").click()
    two.page.locator("#chat-menu").get_by_role("button", name="Delete").click()
    two.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(one.banner).to_contain_text("This chat was deleted.")
    expect(one.users).to_have_count(0)
    one.ask_and_wait("new")
    expect(one.users).to_have_text(["new"])


def test_both_tabs_live_through_a_restart_of_the_gateway(real: RealPages) -> None:
    one = real.open()
    one.ask_and_wait("first")
    two = real.open(fragment(one.page.url))
    expect(two.users).to_have_text(["first"])
    for tab in (one, two):
        tab.allowed = LOST
    one.ask(script(tokens=WORDS, rate=30))
    expect(two.answer).to_contain_text("word3")
    real.gateway.stop()
    expect(two.banner).to_contain_text("Connection lost")
    real.gateway.start()
    for tab in (one, two):
        expect(tab.answer).to_have_text(TEXT, timeout=20_000)
        tab.idle()
        expect(tab.banner).to_be_hidden()
