"""Writing systems, direction, markdown in the page, long answers."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.web.chat_page import ChatPage

ARABIC = "شغّل الأمر `run.sh -v` ثم انتظر."
HEBREW = "שלום עולם."
ENGLISH = "Then wait a little."


def direction(chat: ChatPage, selector: str) -> str:
    return str(chat.page.eval_on_selector(selector, "node => getComputedStyle(node).direction"))


def test_direction_is_that_of_each_block(chat: ChatPage) -> None:
    code = "```sh\nrun.sh -v\n```"
    text = f"{ARABIC}\n\n{ENGLISH}\n\n{HEBREW}\n\n- {ARABIC}\n- {ENGLISH}\n\n{code}"
    chat.server.script.chunks = [text[i : i + 5] for i in range(0, len(text), 5)]
    chat.ask_and_wait("كيف أشغّله؟")
    body = ".assistant .body"
    assert direction(chat, f"{body} > p:nth-of-type(1)") == "rtl"
    assert direction(chat, f"{body} > p:nth-of-type(1) code") == "ltr"
    assert direction(chat, f"{body} > p:nth-of-type(2)") == "ltr"
    assert direction(chat, f"{body} > p:nth-of-type(3)") == "rtl"
    assert direction(chat, f"{body} li:nth-child(1)") == "rtl"
    assert direction(chat, f"{body} li:nth-child(2)") == "ltr"
    assert direction(chat, f"{body} pre") == "ltr"
    assert direction(chat, ".user .body") == "rtl"
    assert chat.input.get_attribute("dir") == "auto"
    first = chat.page.locator(f"{body} > p").first.evaluate("node => node.textContent")
    assert first == ARABIC.replace("`", "")


def test_every_writing_system_arrives_whole(chat: ChatPage) -> None:
    text = "Mañana 日本語 🐕 👩‍👩‍👧‍👦 🏳️‍🌈 🇨🇿 नमस्ते สวัสดี e\u0301 Příliš žluťoučký kůň"
    chat.server.script.chunks = list(text)
    chat.ask_and_wait(text)
    assert chat.answer.evaluate("node => node.textContent") == text
    assert chat.users.inner_text() == text


def test_graphemes_appear_whole(chat: ChatPage) -> None:
    family = "👩‍👩‍👧‍👦"
    chat.server.script.chunks = [family[:3], family[3:], f" {family * 10} end"]
    chat.server.script.gap_s = 0.05
    chat.page.evaluate(
        """() => {
          window.seen = []
          new MutationObserver(() => {
            const body = document.querySelector(".assistant .body")
            if (body) window.seen.push(body.textContent)
          }).observe(document.getElementById("log"),
            {subtree: true, childList: true, characterData: true})
        }"""
    )
    chat.ask_and_wait()
    for text in chat.page.evaluate("window.seen"):
        assert text.replace(family, "").strip(" end") == ""


def test_markdown_is_shown(chat: ChatPage) -> None:
    chat.server.script.chunks = [
        "# Title\n\nSome **bold** and `code`.\n\n1. one\n2. two\n",
        "\n| a | b |\n|---|---|\n| 1 | 2 |\n",
        "\n```python\nprint(1)  # one\n```\n\n> quoted\n",
    ]
    chat.ask_and_wait()
    answer = chat.answer
    expect(answer.get_by_role("heading", name="Title")).to_be_visible()
    expect(answer.locator("strong")).to_have_text("bold")
    expect(answer.locator("ol > li")).to_have_text(["one", "two"])
    expect(answer.get_by_role("cell")).to_have_text(["1", "2"])
    expect(answer.locator("pre")).to_have_text("print(1)  # one")
    expect(answer.locator(".hl-comment")).to_have_text("# one")
    expect(answer.get_by_role("button", name="Copy python code")).to_be_visible()
    expect(answer.locator("blockquote")).to_have_text("quoted")


def test_long_code_is_selected_as_it_is_written(chat: ChatPage) -> None:
    """It is laid out in pieces, which are not to be seen."""
    code = "\n".join(f"line{i} = {i}  # {'x' * (i % 7)}" + "\n" * (i % 3 == 0) for i in range(90))
    text = f"```python\n{code}\n```"
    chat.server.script.chunks = [text[i : i + 9] for i in range(0, len(text), 9)]
    chat.ask_and_wait()
    pre = chat.answer.locator("pre")
    expect(pre.locator(".piece")).not_to_have_count(1)
    assert pre.evaluate("node => node.textContent") == code
    selected = pre.evaluate(
        """(node) => {
          getSelection().selectAllChildren(node)
          return getSelection().toString()
        }"""
    )
    assert selected.strip("\n") == code.strip("\n")
    lines = pre.evaluate(
        "node => node.clientHeight / parseFloat(getComputedStyle(node).lineHeight)"
    )
    assert abs(lines - len(code.split("\n"))) < 2


def test_a_long_fast_answer_keeps_its_text_and_its_frames(chat: ChatPage) -> None:
    """3,000 tokens; the frame budget leaves room for a machine that is shared."""
    words = [f"word{i}. " if i % 20 else f"word{i}.\n\n" for i in range(3000)]
    chat.server.script.chunks = ["".join(words[i : i + 5]) for i in range(0, 3000, 5)]
    chat.server.script.gap_s = 0.002
    chat.page.evaluate(
        """() => {
          window.tasks = []
          new PerformanceObserver((list) => {
            for (const { duration } of list.getEntries()) window.tasks.push(duration)
          }).observe({type: "longtask"})
        }"""
    )
    chat.ask_and_wait()
    shown = chat.answer.evaluate("node => [...node.children].map(p => p.textContent).join(' ')")
    assert shown.split() == [word.strip() for word in words]
    # Nothing grows with the answer: no stretch of work is anywhere near a second.
    assert max(chat.page.evaluate("window.tasks"), default=0) < 1000
