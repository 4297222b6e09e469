"""Nothing that an answer or a person says can run, load, or leave the page."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.web.chat_page import ChatPage
from tests.web.xss_bank import PAYLOADS, RUN

WATCH = """() => {
  window.violations = []
  addEventListener("securitypolicyviolation", (event) => window.violations.push(event.blockedURI))
}"""

# Elements and attributes that may be in the log, and where a link may go.
FOREIGN_NODES = """() => {
  const tags = new Set((
    "article div p h1 h2 h3 h4 h5 h6 ul ol li blockquote hr br em strong s code a " +
    "span table thead tbody tr th td pre button").split(" "))
  const attributes = new Set((
    "class dir href rel target start tabindex role aria-label aria-busy aria-expanded type " +
    "data-copy data-action").split(" "))
  const bad = []
  for (const node of document.querySelectorAll("#log *")) {
    if (!tags.has(node.localName)) bad.push(node.outerHTML)
    for (const { name } of node.attributes) if (!attributes.has(name)) bad.push(node.outerHTML)
    if (node.localName !== "a") continue
    if (!/^(https?|mailto):/.test(node.href)) bad.push(node.outerHTML)
    if (node.rel !== "noopener noreferrer nofollow") bad.push(node.outerHTML)
  }
  return bad
}"""


def check_harmless(chat: ChatPage) -> None:
    for link in chat.page.locator("#log a").all():
        link.hover()
    assert chat.page.evaluate(FOREIGN_NODES) == []
    assert chat.page.evaluate("window.pwned") is None
    assert chat.page.evaluate("window.violations ?? []") == []
    assert chat.foreign == []


def test_the_bank_is_large() -> None:
    assert len(set(PAYLOADS)) >= 60


def test_payloads_in_answers_and_questions_stay_text(chat: ChatPage) -> None:
    chat.page.evaluate(WATCH)
    text = "\n\n".join(PAYLOADS)
    chat.server.script.chunks = [text[i : i + 7] for i in range(0, len(text), 7)]
    chat.ask_and_wait(text)
    check_harmless(chat)
    assert chat.users.inner_text() == text
    shown = chat.answer.inner_text()
    for readable in (f"<script>{RUN}</script>", f"<svg onload={RUN}>", f"[x](javascript:{RUN})"):
        assert readable in shown
    chat.page.reload()
    expect(chat.users).to_have_count(1)
    chat.idle()
    check_harmless(chat)
    assert chat.answer.inner_text() == shown


def test_each_payload_alone_and_cut_anywhere(chat: ChatPage) -> None:
    """Alone in a fresh renderer, at every length, as a stream would show it."""
    chat.page.evaluate(WATCH)
    shown = chat.page.evaluate(
        """async (payloads) => {
          const { MarkdownView } = await import("./render.js")
          const log = document.getElementById("log")
          return payloads.map((payload) => {
            const root = log.appendChild(document.createElement("div"))
            const view = new MarkdownView(root)
            for (let end = 1; end < payload.length; end++) view.update(payload.slice(0, end), true)
            view.update(payload, false)
            const streamed = root.textContent
            const again = log.appendChild(document.createElement("div"))
            new MarkdownView(again).update(payload, false)
            return [streamed, again.textContent]
          })
        }""",
        PAYLOADS,
    )
    check_harmless(chat)
    for payload, (streamed, at_once) in zip(PAYLOADS, shown, strict=True):
        assert streamed == at_once, payload
        if RUN in payload and not payload.startswith(("```html", '```">', "[x](http", "![")):
            assert RUN in streamed, payload


@pytest.mark.parametrize("payload", PAYLOADS[:3])
def test_errors_are_text_too(chat: ChatPage, payload: str) -> None:
    chat.page.evaluate(WATCH)
    chat.server.script.refuse = {
        "type": "invalid_request_error",
        "code": "invalid_value",
        "message": payload,
    }
    chat.ask()
    expect(chat.answers.last).to_contain_text(payload)
    check_harmless(chat)


def test_a_link_opens_apart_and_tells_nothing(chat: ChatPage) -> None:
    chat.server.script.chunks = ["[there](https://example.org/a?b=c&d) ![pic](https://e.org/p.png)"]
    chat.ask_and_wait()
    link = chat.answer.get_by_role("link", name="there")
    assert link.get_attribute("href") == "https://example.org/a?b=c&d"
    assert link.get_attribute("rel") == "noopener noreferrer nofollow"
    assert link.get_attribute("target") == "_blank"
    # An image is a link; nothing was loaded for it.
    expect(chat.answer.get_by_role("link", name="pic")).to_have_attribute(
        "href", "https://e.org/p.png"
    )
    assert chat.answer.locator("img").count() == 0


@pytest.mark.parametrize("payload", PAYLOADS[:4])
def test_titles_and_finds_in_the_list_are_text(chat: ChatPage, payload: str) -> None:
    chat.page.evaluate(WATCH)
    entry = {"id": 'sess_"><b>', "title": payload, "updated_at": 1, "match": {"excerpt": payload}}
    chat.page.route(
        "**/v1/sessions?*", lambda route: route.fulfill(json={"data": [entry], "next_after": None})
    )
    chat.page.keyboard.press("Control+k")
    row = chat.page.locator("#chats-list a")
    expect(row.locator("span")).to_have_text(payload)
    expect(row.locator("small")).to_have_text(payload)
    chat.page.get_by_role("button", name="More for").click()
    chat.page.locator("#chat-menu").get_by_role("button", name="Delete").click()
    expect(chat.page.get_by_role("dialog")).to_contain_text(payload)
    check_harmless(chat)
