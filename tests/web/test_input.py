"""The message box: keys, input methods, sending once, limits, drafts."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.web.chat_page import ChatPage

LIMIT_BYTES = 1024 * 1024


def sent_texts(chat: ChatPage) -> list[str]:
    creates = chat.server.sent("conversation.item.create")
    return [event["item"]["content"][0]["text"] for event in creates]


def paste(chat: ChatPage, text: str) -> None:
    """Replace the box's text as a paste does, without the automation's cost per character."""
    chat.page.evaluate(
        """(text) => {
          const input = document.getElementById("input")
          const data = new DataTransfer()
          data.setData("text/plain", text)
          const init = {inputType: "insertFromPaste", dataTransfer: data, bubbles: true}
          input.dispatchEvent(new InputEvent("beforeinput", init))
          input.value = text
          input.dispatchEvent(new InputEvent("input", init))
          input.focus()
        }""",
        text,
    )


def test_enter_sends_and_shift_enter_breaks_the_line(chat: ChatPage) -> None:
    chat.input.press_sequentially("one")
    chat.input.press("Shift+Enter")
    chat.input.press_sequentially("two")
    expect(chat.input).to_have_value("one\ntwo")
    chat.input.press("Enter")
    chat.idle()
    expect(chat.input).to_have_value("")
    assert sent_texts(chat) == ["one\ntwo"]
    assert chat.users.inner_text() == "one\ntwo"


def test_blank_is_not_sent(chat: ChatPage) -> None:
    for blank in ("", "   ", "\n\n"):
        chat.input.fill(blank)
        expect(chat.send_button).to_be_disabled()
        chat.input.press("Enter")
    expect(chat.users).to_have_count(0)
    assert sent_texts(chat) == []


def test_enter_that_confirms_an_input_method_does_not_send(chat: ChatPage) -> None:
    chat.input.fill("日本")
    chat.page.evaluate(
        """() => {
          const input = document.getElementById("input")
          const key = (init) => input.dispatchEvent(
            new KeyboardEvent("keydown", {key: "Enter", bubbles: true, cancelable: true, ...init}))
          input.dispatchEvent(new CompositionEvent("compositionstart"))
          key({isComposing: true})
          input.dispatchEvent(new CompositionEvent("compositionend"))
          key({keyCode: 229})
        }"""
    )
    expect(chat.users).to_have_count(0)
    chat.input.press("Enter")
    chat.idle()
    assert sent_texts(chat) == ["日本"]


def test_a_real_composition_is_not_sent_by_its_enter(chat: ChatPage) -> None:
    session = chat.page.context.new_cdp_session(chat.page)
    chat.input.focus()
    session.send(
        "Input.imeSetComposition", {"text": "にほ", "selectionStart": 2, "selectionEnd": 2}
    )
    session.send(
        "Input.dispatchKeyEvent",
        {"type": "keyDown", "key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 229},
    )
    expect(chat.users).to_have_count(0)
    session.send("Input.insertText", {"text": "日本"})
    expect(chat.input).to_have_value("日本")
    chat.input.press("Enter")
    chat.idle()
    assert sent_texts(chat) == ["日本"]


def test_two_enters_in_one_frame_send_once(chat: ChatPage) -> None:
    chat.input.fill("once")
    chat.page.evaluate(
        """() => {
          const input = document.getElementById("input")
          for (let i = 0; i < 2; i++) input.dispatchEvent(
            new KeyboardEvent("keydown", {key: "Enter", bubbles: true, cancelable: true}))
        }"""
    )
    chat.idle()
    expect(chat.users).to_have_count(1)
    assert sent_texts(chat) == ["once"]
    assert len(chat.server.sent("response.create")) == 1


def test_a_double_click_sends_once(chat: ChatPage) -> None:
    chat.server.script.hold_before = 0
    chat.input.fill("once")
    chat.send_button.dblclick()
    chat.until(lambda: len(chat.server.sent("response.create")) >= 1)
    chat.page.wait_for_timeout(100)
    assert sent_texts(chat) == ["once"]
    assert len(chat.server.sent("response.create")) == 1


def test_a_held_enter_sends_once(chat: ChatPage) -> None:
    chat.input.fill("once")
    chat.page.keyboard.down("Enter")
    chat.page.keyboard.down("Enter")
    chat.page.keyboard.up("Enter")
    chat.idle()
    assert sent_texts(chat) == ["once"]


def test_while_an_answer_runs_the_next_message_waits_in_the_box(chat: ChatPage) -> None:
    chat.server.script.hold_before = 1
    chat.ask("first")
    expect(chat.answer).to_have_text("Hello")
    chat.input.fill("second")
    chat.input.press("Enter")
    expect(chat.input).to_have_value("second")
    chat.server.release()
    chat.idle()
    chat.input.press("Enter")
    expect(chat.users).to_have_text(["first", "second"])
    chat.idle()


def test_too_long_a_message_is_warned_of_and_kept(chat: ChatPage) -> None:
    paste(chat, "x " * 1_500_000)
    warning = chat.page.get_by_text("This message is too long to send")
    expect(warning).to_be_visible()
    expect(warning).to_contain_text("1,024 KiB")
    expect(chat.input).to_have_attribute("aria-invalid", "true")
    chat.input.press("Enter")
    expect(chat.users).to_have_count(0)
    assert chat.page.evaluate("document.getElementById('input').value.length") == 3_000_000
    chat.input.fill("short")
    expect(warning).to_be_hidden()


def test_the_limit_counts_bytes_of_the_event(chat: ChatPage) -> None:
    # Each of these is one character, two units and four bytes.
    paste(chat, "🐕" * (LIMIT_BYTES // 4))
    expect(chat.page.get_by_text("This message is too long to send")).to_be_visible()
    paste(chat, "🐕" * (LIMIT_BYTES // 4 - 100))
    expect(chat.page.get_by_text("This message is too long to send")).to_be_hidden()
    chat.input.press("Enter")
    chat.idle()
    assert len(sent_texts(chat)[0]) == LIMIT_BYTES // 4 - 100


def test_a_draft_survives_a_reload(chat: ChatPage) -> None:
    chat.input.fill("half a thought")
    chat.page.reload()
    expect(chat.input).to_have_value("half a thought")


def test_the_box_grows_with_its_text_up_to_a_bound(chat: ChatPage) -> None:
    height = "document.getElementById('input').offsetHeight"
    one = chat.page.evaluate(height)
    chat.input.fill("a\nb\nc")
    three = chat.page.evaluate(height)
    chat.input.fill("a\n" * 200)
    many = chat.page.evaluate(height)
    assert one < three < many <= 300
    chat.input.fill("")
    assert chat.page.evaluate(height) == one


def drafts(chat: ChatPage) -> list[str]:
    return [event["text"] for event in chat.server.sent("repartee.input_draft")]


def test_a_draft_is_sent_when_typing_pauses(chat: ChatPage) -> None:
    chat.input.press_sequentially("tell me")
    chat.until(lambda: drafts(chat)[-1:] == ["tell me"])
    chat.input.fill("")
    chat.until(lambda: drafts(chat)[-1] == "")


def test_no_draft_is_sent_while_an_input_method_composes(chat: ChatPage) -> None:
    chat.page.evaluate(
        """() => {
          const input = document.getElementById("input")
          input.value = "にほ"
          input.dispatchEvent(new InputEvent("input", {isComposing: true, bubbles: true}))
          setTimeout(() => {
            input.value = "日本"
            input.dispatchEvent(new CompositionEvent("compositionend"))
          }, 250)
        }"""
    )
    chat.until(lambda: bool(drafts(chat)))
    assert drafts(chat) == ["日本"]


def estimate(chat: ChatPage) -> str:
    return chat.page.locator("#estimate").inner_text()


def test_a_long_text_has_an_estimate_and_a_limit(chat: ChatPage) -> None:
    chat.input.fill("short")
    assert estimate(chat) == ""
    paste(chat, "x" * 4000)
    chat.until(lambda: "8,192" in estimate(chat))
    assert estimate(chat) == "About 1,000 tokens, about 1,000 tokens with the whole chat of 8,192."
    paste(chat, "x" * 36000)
    assert estimate(chat).startswith("Too long, probably: about 9,000 tokens")
    chat.input.fill("")
    assert estimate(chat) == ""


def test_an_estimate_learns_from_what_the_server_counted(chat: ChatPage) -> None:
    chat.server.script.chunks = ["y" * 4000]
    chat.server.script.usage = {"total_tokens": 4000, "output_tokens": 4000, "input_tokens": 1}
    chat.ask_and_wait()
    # Close to one token a character now; before it was one for four.
    paste(chat, "x" * 1000)
    assert "About 786 tokens" in estimate(chat)


def test_a_draft_belongs_to_its_chat(chat: ChatPage) -> None:
    chat.ask_and_wait("one")
    chat.input.fill("for the first chat")
    chat.page.get_by_role("button", name="New chat").click()
    expect(chat.input).to_have_value("")
    chat.input.fill("for a new one")
    chat.page.go_back()
    expect(chat.users).to_have_text(["one"])
    expect(chat.input).to_have_value("for the first chat")
    chat.page.go_forward()
    expect(chat.input).to_have_value("for a new one")
    chat.input.press("Enter")
    chat.idle()
    chat.page.reload()
    expect(chat.users).to_have_text(["for a new one"])
    expect(chat.input).to_have_value("")
    chat.page.get_by_role("button", name="New chat").click()
    expect(chat.users).to_have_count(0)
    expect(chat.input).to_have_value("")


def test_a_quiet_sign_says_that_the_server_has_begun(chat: ChatPage) -> None:
    chat.input.press_sequentially("tell me")
    expect(chat.send_button).to_have_class("round ready")
    expect(chat.send_button).to_have_attribute("title", "Send (Enter). The server has read along.")
    chat.input.press_sequentially(" more")
    chat.until(lambda: drafts(chat)[-1] == "tell me more")
    expect(chat.send_button).to_have_class("round ready")
    chat.input.fill("")
    expect(chat.send_button).to_have_class("round")
