"""Names, announcements, focus, keyboard alone, contrast, zoom, motion."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, expect

from tests.web.chat_page import ChatPage
from tests.web.server import PageServer

RICH = (
    "## Heading\n\nText with `code`, [a link](https://example.org) and **bold**.\n\n"
    "- [x] done\n- item\n\n```python\nx = 1  # one\ny = 'two'\nreturn None\n```\n\n"
    "| a | b |\n|---|--:|\n| 1 | 2 |\n\n> quoted\n"
)
LIVE = """() => {
  window.spoken = []
  const live = (node) => {
    const regions = "[aria-live], [role=status], [role=alert], [role=log]"
    const region = node.parentElement?.closest(regions)
    return region && region.getAttribute("aria-live") !== "off" ? region : null
  }
  new MutationObserver((records) => {
    for (const { target } of records) {
      const node = target.nodeType === Node.TEXT_NODE ? target : target.firstChild ?? target
      const region = live(node)
      if (region && region.textContent.trim()) window.spoken.push(region.textContent.trim())
    }
  }).observe(document.body, {subtree: true, childList: true, characterData: true})
}"""


def check_axe(chat: ChatPage) -> None:
    results = Axe().run(chat.page)
    assert results.violations_count == 0, results.generate_report()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Browser, server: PageServer, scheme: Any) -> None:
    # Axe is put into the page as text, which the page's own policy rightly forbids.
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)
    chat = ChatPage(context.new_page(), server)
    chat.open()
    check_axe(chat)
    server.script.chunks = [RICH]
    chat.ask_and_wait()
    check_axe(chat)
    server.script.hold_before = 0
    chat.ask("more")
    expect(chat.stop_button).to_be_visible()
    check_axe(chat)
    server.script.hold_before = None
    chat.stop_button.click()
    chat.idle()
    server.script.refuse = {"type": "rate_limit_error", "code": "overloaded"}
    chat.ask("busy")
    expect(chat.retry_button).to_be_visible()
    check_axe(chat)
    chat.page.evaluate("sessionStorage.clear()")
    server.script.key = "k"
    chat.page.reload()
    expect(chat.page.get_by_role("dialog")).to_be_visible()
    check_axe(chat)
    chat.check_clean()
    context.close()


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1280), ("dark", 390)], ids=["wide light", "narrow dark"]
)
def test_axe_finds_nothing_in_any_panel(
    browser: Browser, server: PageServer, scheme: Any, width: int
) -> None:
    context = browser.new_context(
        color_scheme=scheme, bypass_csp=True, viewport={"width": width, "height": 800}
    )
    chat = ChatPage(context.new_page(), server)
    keyboard, page = chat.page.keyboard, chat.page
    chat.open()
    server.script.usage = {"total_tokens": 9, "input_tokens": 5, "output_tokens": 4}
    chat.ask_and_wait("a line\n" * 40)
    keyboard.press("Control+.")
    expect(page.locator("#hud")).to_be_visible()
    chat.input.fill("word " * 400)
    expect(page.locator("#estimate")).to_contain_text("About")
    check_axe(chat)
    chat.input.fill("")
    chat.input.press("ArrowUp")
    expect(page.get_by_role("textbox", name="Edit your message")).to_be_visible()
    check_axe(chat)
    keyboard.press("Escape")
    keyboard.press("Control+,")
    expect(page.get_by_role("dialog")).to_be_visible()
    check_axe(chat)
    keyboard.press("Escape")
    keyboard.press("Control+/")
    expect(page.get_by_role("dialog")).to_be_visible()
    check_axe(chat)
    keyboard.press("Escape")
    keyboard.press("Control+k")
    more = page.get_by_role("button", name="More for")
    expect(more).to_be_visible()
    check_axe(chat)
    for item in ("Rename", "Delete"):
        more.click()
        check_axe(chat)
        page.locator("#chat-menu").get_by_role("button", name=item).click()
        expect(page.get_by_role("dialog")).to_be_visible()
        check_axe(chat)
        keyboard.press("Escape")
    chat.check_clean()
    context.close()


def test_no_token_is_announced_and_the_end_is_once(chat: ChatPage) -> None:
    chat.server.script.chunks = [f"w{i} " for i in range(100)]
    chat.server.script.hold_before = 99
    chat.page.evaluate(LIVE)
    chat.ask()
    expect(chat.answer).to_contain_text("w98")
    assert chat.page.evaluate("window.spoken") == []
    assert chat.answers.last.get_attribute("aria-busy") == "true"
    chat.server.release()
    chat.idle()
    spoken = chat.page.evaluate("window.spoken")
    assert len(spoken) == 1
    assert spoken[0].startswith("Answer complete. w0 w1 ")
    assert chat.answers.last.get_attribute("aria-busy") == "false"


def test_a_failure_is_announced(chat: ChatPage) -> None:
    chat.server.script.refuse = {"type": "rate_limit_error", "code": "overloaded"}
    chat.page.evaluate(LIVE)
    chat.ask()
    expect(chat.retry_button).to_be_visible()
    assert chat.page.evaluate("window.spoken") == ["The server is busy. Try again in a moment."]


def test_everything_by_keyboard(chat: ChatPage) -> None:
    keyboard = chat.page.keyboard
    expect(chat.input).to_be_focused()
    chat.server.script.hold_before = 1
    keyboard.type("Hi")
    keyboard.press("Enter")
    expect(chat.answer).to_have_text("Hello")
    expect(chat.input).to_be_focused()
    keyboard.press("Tab")
    expect(chat.stop_button).to_be_focused()
    keyboard.press("Enter")
    expect(chat.answers.last).to_contain_text("You stopped this answer.")
    expect(chat.input).to_be_focused()
    chat.server.script.hold_before = None
    chat.server.script.refuse = {"type": "rate_limit_error", "code": "overloaded"}
    keyboard.type("again")
    keyboard.press("Enter")
    expect(chat.retry_button).to_be_visible()
    keyboard.press("Shift+Tab")
    expect(chat.retry_button).to_be_focused()
    chat.server.script.refuse = None
    keyboard.press("Enter")
    expect(chat.answer).to_have_text("Hello there.")
    expect(chat.input).to_be_focused()
    chat.idle()
    for _ in range(12):
        keyboard.press("Shift+Tab")
        if chat.page.evaluate("document.activeElement.id") == "new-chat":
            break
    keyboard.press("Enter")
    expect(chat.users).to_have_count(0)
    expect(chat.input).to_be_focused()


def test_focus_is_not_lost_when_stop_goes(chat: ChatPage) -> None:
    chat.server.script.hold_before = 1
    chat.ask()
    expect(chat.answer).to_have_text("Hello")
    chat.stop_button.focus()
    chat.server.release()
    chat.idle()
    expect(chat.input).to_be_focused()


def test_focus_is_visible(chat: ChatPage) -> None:
    chat.ask_and_wait()
    for name in ("New chat", "Try again", "Copy"):
        button = chat.page.get_by_role("button", name=name, exact=True).last
        button.focus()
        chat.page.keyboard.press("Shift+Tab")
        chat.page.keyboard.press("Tab")
        expect(button).to_be_focused()
        outline = button.evaluate("node => getComputedStyle(node).outlineStyle")
        assert outline == "solid", name
        expect(button).to_have_css("opacity", "1")


class TestReducedMotion:
    @pytest.fixture
    def context_options(self) -> dict[str, Any]:
        return {"reduced_motion": "reduce"}

    def test_text_is_shown_as_it_comes(self, chat: ChatPage) -> None:
        chat.server.script.chunks = ["x" * 100, "y"]
        chat.server.script.hold_before = 1
        chat.page.evaluate(
            """() => {
              window.seen = new Set()
              new MutationObserver(() => {
                const body = document.querySelector(".assistant .body")
                window.seen.add(body?.textContent.length ?? 0)
              }).observe(document.getElementById("log"),
                {subtree: true, childList: true, characterData: true})
            }"""
        )
        chat.ask()
        expect(chat.answer).to_have_text("x" * 100)
        assert sorted(chat.page.evaluate("[...window.seen]")) == [0, 100]
        chat.server.release()
        chat.idle()


def check_sideways(chat: ChatPage) -> None:
    for box in ("document.documentElement", "document.getElementById('scroller')"):
        assert chat.page.evaluate(f"{box}.scrollWidth - {box}.clientWidth") <= 0


def check_fits(chat: ChatPage) -> None:
    """Nothing is cut off or scrolls sideways, and the controls can be reached."""
    check_sideways(chat)
    main = "document.getElementById('scroller')"
    assert chat.page.evaluate(f"{main}.clientHeight") >= 60
    names = ("Chats", "New chat", "Settings", "Figures", "Keys")
    buttons = [chat.page.get_by_role("button", name=name, exact=True) for name in names]
    for control in (chat.input, *buttons):
        expect(control).to_be_in_viewport(ratio=1)


@pytest.mark.parametrize(
    ("width", "height"),
    [(390, 844), (320, 568), (640, 512), (320, 256)],
    ids=["phone", "small phone", "zoom 200 %", "zoom 400 %"],
)
class TestSmallScreens:
    @pytest.fixture
    def context_options(self, width: int, height: int) -> dict[str, Any]:
        # Browser zoom is fewer and larger CSS pixels.
        return {"viewport": {"width": width, "height": height}}

    def test_fits(self, chat: ChatPage, width: int, height: int) -> None:
        check_fits(chat)
        chat.server.script.chunks = [
            RICH,
            "\n\nAveryverylongwordwithoutanyblank" * 3 + " https://example.org/" + "a" * 120,
        ]
        chat.ask_and_wait("Please " + "x" * 100)
        check_fits(chat)
        chat.server.script.refuse = {"type": "rate_limit_error", "code": "overloaded"}
        chat.ask("more")
        expect(chat.retry_button).to_be_visible()
        check_fits(chat)

    def test_panels_fit(self, chat: ChatPage, width: int, height: int) -> None:
        """Each can be used to its last button, by scrolling if need be."""
        for key, last in ((",", "Save"), ("/", "Close")):
            chat.page.keyboard.press(f"Control+{key}")
            button = chat.page.get_by_role("dialog").get_by_role("button", name=last)
            button.scroll_into_view_if_needed()
            expect(button).to_be_in_viewport(ratio=1)
            dialog = "document.querySelector('dialog[open]')"
            assert chat.page.evaluate(f"{dialog}.scrollWidth - {dialog}.clientWidth") <= 0
            chat.page.keyboard.press("Escape")
        chat.page.keyboard.press("Control+.")
        expect(chat.page.locator("#hud")).to_be_visible()
        check_sideways(chat)
        chat.page.keyboard.press("Control+k")
        expect(chat.page.get_by_role("searchbox")).to_be_in_viewport(ratio=1)
        check_sideways(chat)
