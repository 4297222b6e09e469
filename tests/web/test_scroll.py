"""The page follows at the foot, and leaves a reader alone anywhere else."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.web.chat_page import ChatPage

DISTANCE = """() => {
  const s = document.getElementById("scroller")
  return s.scrollHeight - s.scrollTop - s.clientHeight
}"""
TOP = "document.getElementById('scroller').scrollTop"
LINES = [f"line {i}\n\n" for i in range(300)]


def start(chat: ChatPage, held_at: int = 150) -> None:
    chat.server.script.chunks = LINES
    chat.server.script.hold_before = held_at
    chat.ask()
    expect(chat.answer).to_contain_text(f"line {held_at - 1}")


def test_follows_at_the_foot(chat: ChatPage) -> None:
    start(chat)
    assert chat.page.evaluate(DISTANCE) <= 32
    chat.server.release()
    expect(chat.answer).to_contain_text("line 299")
    chat.idle()
    assert chat.page.evaluate(DISTANCE) <= 32
    expect(chat.page.get_by_role("button", name="New text")).to_be_hidden()


def test_a_reader_who_scrolls_up_is_left_alone(chat: ChatPage) -> None:
    start(chat)
    chat.page.mouse.move(600, 300)
    chat.page.mouse.wheel(0, -600)
    chat.until(lambda: chat.page.evaluate(DISTANCE) > 100)
    top = chat.page.evaluate(TOP)
    chat.server.release()
    expect(chat.answer).to_contain_text("line 299")
    chat.idle()
    assert chat.page.evaluate(TOP) == top
    new_text = chat.page.get_by_role("button", name="New text")
    expect(new_text).to_be_visible()
    new_text.click()
    expect(new_text).to_be_hidden()
    assert chat.page.evaluate(DISTANCE) <= 32


def test_a_slow_pull_upwards_is_never_undone(chat: ChatPage) -> None:
    start(chat, held_at=60)
    chat.page.mouse.move(600, 300)
    # Less at a time than still counts as the foot, as fingers and touchpads do it.
    for _ in range(3):
        chat.page.mouse.wheel(0, -6)
        chat.page.wait_for_timeout(40)
    chat.until(lambda: 0 < chat.page.evaluate(DISTANCE) <= 32)
    top = chat.page.evaluate(TOP)
    chat.server.release()
    expect(chat.answer).to_contain_text("line 299")
    chat.idle()
    assert chat.page.evaluate(TOP) == top
    chat.page.mouse.wheel(0, 100_000)
    chat.until(lambda: chat.page.evaluate(DISTANCE) <= 32)
    expect(chat.page.get_by_role("button", name="New text")).to_be_hidden()


def test_keys_scroll_up_as_the_wheel_does(chat: ChatPage) -> None:
    start(chat)
    chat.page.locator("#scroller").focus()
    chat.page.keyboard.press("Home")
    chat.until(lambda: chat.page.evaluate(TOP) == 0)
    top = chat.page.evaluate(TOP)
    chat.server.release()
    expect(chat.answer).to_contain_text("line 299")
    chat.idle()
    assert chat.page.evaluate(TOP) == top
    expect(chat.page.get_by_role("button", name="New text")).to_be_visible()


def test_going_back_to_the_foot_follows_again(chat: ChatPage) -> None:
    start(chat)
    chat.page.locator("#scroller").focus()
    chat.page.keyboard.press("Home")
    chat.until(lambda: chat.page.evaluate(TOP) == 0)
    chat.page.keyboard.press("End")
    chat.until(lambda: chat.page.evaluate(TOP) > 1000)
    chat.server.release()
    expect(chat.answer).to_contain_text("line 299")
    chat.idle()
    # The key's smooth scroll may still be on its way when the answer ends.
    chat.until(lambda: chat.page.evaluate(DISTANCE) <= 32)


def test_a_selection_survives_the_stream(chat: ChatPage) -> None:
    start(chat)
    chat.page.evaluate(
        """() => {
          const paragraphs = document.querySelectorAll(".assistant p")
          const range = document.createRange()
          range.setStart(paragraphs[10].firstChild, 0)
          range.setEnd(paragraphs[paragraphs.length - 1].firstChild, 4)
          getSelection().removeAllRanges()
          getSelection().addRange(range)
        }"""
    )
    before = chat.page.evaluate("getSelection().toString()")
    chat.server.release()
    expect(chat.answer).to_contain_text("line 299")
    assert chat.page.evaluate("getSelection().toString()") == before
    assert before.startswith("line 10")
    chat.idle()
    assert chat.page.evaluate("getSelection().toString()") == before


def test_sending_goes_to_the_foot(chat: ChatPage) -> None:
    chat.server.script.chunks = LINES
    chat.ask_and_wait()
    chat.page.evaluate(f"{TOP} = 0")
    chat.server.script.chunks = ["Short."]
    chat.ask_and_wait("next")
    assert chat.page.evaluate(DISTANCE) <= 32
