"""Asking, streaming, stopping, starting anew."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from tests.web.chat_page import ChatPage
from tests.web.server import WEB

TEXT = "The quick brown fox\njumps over the lazy dog. 0 < 1 && 2 > 1.\n\nA second paragraph."


def test_answer_shows_exactly_what_was_streamed(chat: ChatPage) -> None:
    chat.server.script.chunks = [TEXT[i : i + 4] for i in range(0, len(TEXT), 4)]
    chat.server.script.gap_s = 0.005
    chat.ask_and_wait("Tell me")
    assert chat.answer.inner_text() == TEXT
    assert chat.users.inner_text() == "Tell me"


def test_answer_types_itself_and_trails_by_a_bounded_lag(chat: ChatPage) -> None:
    chat.server.script.chunks = ["word " * 40, "end"]
    chat.server.script.hold_before = 1
    chat.page.evaluate(
        """() => {
          window.lengths = []
          new MutationObserver(() => {
            const body = document.querySelector(".assistant .body")
            if (body) window.lengths.push(body.textContent.length)
          }).observe(document.getElementById("log"),
            {subtree: true, childList: true, characterData: true})
        }"""
    )
    chat.ask()
    expect(chat.answer).to_have_text(("word " * 40).strip())
    lengths = chat.page.evaluate("window.lengths")
    seen = sorted(set(lengths))
    assert len(seen) > 10
    # All 200 characters came at once; the first frame shows all but the allowed lag
    # (and a blank at its end).
    assert next(length for length in seen if length > 0) >= 200 - 121
    chat.server.release()
    expect(chat.answer).to_have_text("word " * 40 + "end")
    chat.idle()


def test_stop_keeps_what_was_said(chat: ChatPage) -> None:
    chat.server.script.chunks = ["one ", "two ", "three"]
    chat.server.script.hold_before = 2
    chat.ask()
    expect(chat.answer).to_have_text("one two")
    chat.stop_button.click()
    expect(chat.answers.last).to_contain_text("You stopped this answer.")
    expect(chat.answer).to_have_text("one two")
    assert len(chat.server.sent("response.cancel")) == 1
    expect(chat.input).to_be_focused()
    chat.server.script.hold_before = None
    chat.ask_and_wait("again")
    expect(chat.answer).to_have_text("one two three")


def test_stop_before_the_first_word(chat: ChatPage) -> None:
    chat.server.script.hold_before = 0
    chat.ask()
    chat.stop_button.click()
    expect(chat.answers.last).to_contain_text("You stopped this answer.")
    chat.idle()
    assert len(chat.server.sent("response.cancel")) == 1


def test_escape_stops(chat: ChatPage) -> None:
    chat.server.script.hold_before = 1
    chat.ask()
    expect(chat.answer).to_have_text("Hello")
    chat.page.keyboard.press("Escape")
    expect(chat.answers.last).to_contain_text("You stopped this answer.")


def test_new_chat_starts_empty_and_leaves_the_old_answer_running(chat: ChatPage) -> None:
    chat.server.script.hold_before = 1
    chat.ask("first")
    expect(chat.answer).to_have_text("Hello")
    old = chat.page.url
    chat.page.get_by_role("button", name="New chat").click()
    expect(chat.users).to_have_count(0)
    expect(chat.page.get_by_role("heading", name="What is on your mind?")).to_be_visible()
    expect(chat.input).to_be_focused()
    assert chat.server.sent("response.cancel") == []
    chat.until(lambda: len(chat.server.sessions) == 2)
    chat.server.script.hold_before = None
    chat.ask_and_wait("second")
    chat.server.release()
    chat.until(lambda: all(s.active is None for s in chat.server.sessions.values()))
    chat.page.goto("about:blank")
    chat.page.goto(old)
    expect(chat.users).to_have_text(["first"])
    expect(chat.answer).to_have_text("Hello there.")


def test_context_goes_on_in_one_session(chat: ChatPage) -> None:
    chat.ask_and_wait("one")
    chat.ask_and_wait("two")
    assert len(chat.server.sessions) == 1
    expect(chat.users).to_have_text(["one", "two"])
    expect(chat.answers).to_have_count(2)


def test_try_again_replaces_the_answer(chat: ChatPage) -> None:
    chat.ask_and_wait("one")
    chat.server.script.chunks = ["Another."]
    chat.page.get_by_role("button", name="Try again").click()
    expect(chat.answer).to_have_text("Another.")
    expect(chat.answers).to_have_count(1)
    chat.idle()
    (session,) = chat.server.sessions.values()
    assert [item["role"] for item in session.items] == ["user", "assistant"]
    chat.page.reload()
    expect(chat.answers).to_have_count(1)
    expect(chat.answer).to_have_text("Another.")


def test_copy_gives_the_source_text(chat: ChatPage) -> None:
    chat.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    chat.server.script.chunks = ["**bold**\n\n```py\nx = 1\n```\n"]
    chat.ask_and_wait()
    chat.answers.get_by_role("button", name="Copy", exact=True).click()
    assert chat.page.evaluate("navigator.clipboard.readText()") == "**bold**\n\n```py\nx = 1\n```\n"
    chat.answers.get_by_role("button", name="Copy py code").click()
    assert chat.page.evaluate("navigator.clipboard.readText()") == "x = 1"


def test_the_page_is_small_and_local(chat: ChatPage) -> None:
    """All that a first visit loads; the panels beside the chat come when they are wanted."""
    sizes = chat.page.evaluate(
        """() => ["resource", "navigation"]
              .flatMap((type) => performance.getEntriesByType(type))
              .map((entry) => [entry.name, entry.decodedBodySize])"""
    )
    assert all(name.startswith(chat.server.url) for name, _ in sizes)
    assert sum(size for name, size in sizes if "/v1/" not in name) <= 120_000


def test_all_modules_of_a_first_visit_are_fetched_at_once() -> None:
    """Else each import would wait for the one before, a round trip each time."""
    needed: set[str] = set()
    found = {"main.js"}
    while found:
        name = found.pop()
        needed.add(name)
        text = (WEB / name).read_text()
        found |= set(re.findall(r'^import .*"\./(\w+\.js)"', text, re.MULTILINE)) - needed
    page = (WEB / "index.html").read_text()
    assert set(re.findall(r'modulepreload" href="(.*?)"', page)) == needed - {"main.js"}


def test_all_panels_together_stay_small() -> None:
    files = [path for path in WEB.iterdir() if path.suffix in (".html", ".css", ".js", ".svg")]
    assert sum(path.stat().st_size for path in files) <= 139_500


def test_a_hidden_tab_gets_its_text_at_once(chat: ChatPage) -> None:
    chat.server.script.chunks = ["a" * 100, "b" * 100, "c"]
    chat.server.script.hold_before = 2
    chat.page.evaluate(
        """() => {
          // Nothing is drawn in a hidden tab, so no frame ever comes.
          window.requestAnimationFrame = () => 1
          Object.defineProperty(document, "hidden", {get: () => window.away})
          window.away = false
        }"""
    )
    chat.ask()
    expect(chat.answers).to_have_count(1)
    chat.until(lambda: len(chat.server.sent("response.create")) == 1)
    expect(chat.answer).to_have_text("")
    chat.page.evaluate("window.away = true; document.dispatchEvent(new Event('visibilitychange'))")
    expect(chat.answer).to_have_text("a" * 100 + "b" * 100)
    chat.server.release()
    expect(chat.answer).to_have_text("a" * 100 + "b" * 100 + "c")
    chat.idle()
