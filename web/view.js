/**
 * The page: shows the chat's state, and turns keys and clicks into its actions.
 */

import { AnswerBubble, UserBubble } from "./bubble.js"
import { Composer } from "./composer.js"
import { Follower } from "./scroll.js"
import { activeAnswer, isRunning } from "./conversation.js"

/** Longest answer that is read out in full when it is complete, in characters. */
const READ_OUT_MAX = 600

const byId = (id) => document.getElementById(id)

export class View {
  #chat
  #bubbles = new Map()
  #follower = new Follower(byId("scroller"), byId("new-text"))
  #composer
  #keyDialog = /** @type {HTMLDialogElement} */ (byId("key-dialog"))
  #keyInput = /** @type {HTMLInputElement} */ (byId("key"))
  #reducedMotion = matchMedia("(prefers-reduced-motion: reduce)")
  #countdown = 0
  /** Key of the answer that runs, to notice its end. */
  #runningKey = null

  /** @param {import("./chat.js").Chat} chat */
  constructor(chat) {
    this.#chat = chat
    this.#composer = new Composer({
      onSend: (text) => this.#send(text),
      onDraft: (text) => chat.draft(text),
      onStop: () => chat.stop(),
      isBusy: () => chat.isBusy,
    })
    byId("new-chat").addEventListener("click", () => this.#newChat())
    byId("reconnect").addEventListener("click", () => chat.open())
    byId("log").addEventListener("click", (event) => this.#onLogClick(event))
    byId("key-form").addEventListener("submit", (event) => this.#onKey(event))
    this.#keyDialog.addEventListener("cancel", (event) => event.preventDefault())
    document.addEventListener("keydown", (event) => this.#onKeydown(event))
    document.addEventListener("visibilitychange", () => document.hidden && this.#flush())
    chat.store.subscribe((state) => this.#render(state))
    this.#render(chat.store.get())
  }

  #render(state) {
    this.#renderMessages(state.conversation.messages)
    this.#renderBanner(state)
    this.#renderKeyDialog(state)
    byId("model").textContent = state.conversation.model ?? ""
    this.#composer.setBusy(activeAnswer(state.conversation) !== null)
    this.#announceEnd(state.conversation)
  }

  #renderMessages(messages) {
    const log = byId("log")
    byId("welcome").hidden = messages.length > 0
    const wanted = new Set(messages.map(({ key }) => key))
    for (const [key, bubble] of this.#bubbles) {
      if (wanted.has(key)) continue
      bubble.dispose()
      this.#bubbles.delete(key)
    }
    messages.forEach((message, i) => {
      const bubble = this.#bubbleFor(message)
      if (log.children[i] !== bubble.element)
        log.insertBefore(bubble.element, log.children[i] ?? null)
      bubble.update(message, i === messages.length - 1)
    })
    this.#follower.grown()
  }

  #bubbleFor(message) {
    let bubble = this.#bubbles.get(message.key)
    if (!bubble) {
      bubble =
        message.role === "user"
          ? new UserBubble(message)
          : new AnswerBubble(message, {
              instant: () => document.hidden || this.#reducedMotion.matches,
              onGrown: () => this.#follower.grown(),
            })
      this.#bubbles.set(message.key, bubble)
    }
    return bubble
  }

  #renderBanner({ connection, conversation, notice, needsKey }) {
    clearInterval(this.#countdown)
    const line = connectionLine(connection, needsKey)
    const text = () => line?.() ?? conversation.problem?.text ?? notice ?? ""
    byId("banner").hidden = text() === ""
    byId("banner").classList.toggle("offline", line !== null)
    byId("reconnect").hidden = !["waiting", "closed"].includes(connection.phase) || needsKey
    setText(byId("banner-text"), text())
    if (connection.phase === "waiting") {
      this.#countdown = setInterval(() => setText(byId("banner-text"), text()), 1000)
    }
  }

  #renderKeyDialog({ needsKey }) {
    const dialog = this.#keyDialog
    if (needsKey && !dialog.open) {
      this.#keyInput.value = ""
      dialog.showModal()
    } else if (!needsKey && dialog.open) dialog.close()
  }

  /** One polite message when an answer has ended; none while it grows. */
  #announceEnd(conversation) {
    const answer = activeAnswer(conversation)
    const key = answer?.key ?? null
    if (key === this.#runningKey) return
    const ended = conversation.messages.find((entry) => entry.key === this.#runningKey)
    this.#runningKey = key
    if (key !== null) byId("announcer").textContent = ""
    else if (ended && !isRunning(ended)) byId("announcer").textContent = this.#summary(ended)
  }

  #summary(message) {
    if (message.problem) return message.problem.text
    if (message.status === "stopped") return "Answer stopped."
    const text = this.#bubbles.get(message.key).body.innerText.trim()
    return text.length <= READ_OUT_MAX ? `Answer complete. ${text}` : "Answer complete."
  }

  #send(text) {
    this.#chat.ask(text)
    this.#follower.toFoot()
  }

  #newChat() {
    this.#chat.newChat()
    this.#composer.focus()
  }

  #flush() {
    for (const bubble of this.#bubbles.values()) if (bubble instanceof AnswerBubble) bubble.flush()
  }

  #onKeydown(event) {
    if (event.key !== "Escape" || event.isComposing || event.defaultPrevented) return
    if (this.#keyDialog.open || !this.#chat.isBusy) return
    event.preventDefault()
    this.#chat.stop()
    this.#composer.focus()
  }

  #onLogClick(event) {
    const button = event.target.closest("button")
    if (!button) return
    const bubble = button.closest(".bubble")
    if (button.dataset.copy === "code")
      copy(button, button.closest(".codeblock").querySelector("code").textContent)
    else if (button.dataset.action === "copy-answer") copy(button, this.#textOf(bubble))
    else if (button.dataset.action === "new-chat") this.#newChat()
    else if (button.dataset.action === "retry") {
      this.#chat.retry()
      this.#follower.toFoot()
      this.#composer.focus()
    }
  }

  #textOf(element) {
    const [key] = [...this.#bubbles].find(([, bubble]) => bubble.element === element)
    return this.#chat.store.get().conversation.messages.find((entry) => entry.key === key).text
  }

  #onKey(event) {
    event.preventDefault()
    const key = this.#keyInput.value.trim()
    // The characters that a WebSocket subprotocol may hold (RFC 9110 token).
    const valid = /^[!#$%&'*+\-.^_`|~\w]+$/.test(key)
    setText(
      byId("key-problem"),
      valid
        ? ""
        : "This key has characters that a browser cannot send. Check that it was copied whole.",
    )
    if (!valid) return
    this.#chat.useKey(key)
    this.#composer.focus()
  }
}

/** What the banner says of the line, as a function of the time; null when all is well. */
function connectionLine({ phase, retryAt, reason }, needsKey) {
  if (needsKey) return null
  if (phase === "closed")
    return () => `The server closed the connection${reason ? `: ${reason}` : "."}`
  if (phase !== "waiting") return null
  if (!navigator.onLine) return () => "You are offline. The chat goes on when you are back."
  return () => {
    const seconds = Math.ceil((retryAt - Date.now()) / 1000)
    return seconds > 1
      ? `Connection lost. Trying again in ${seconds} seconds.`
      : "Connection lost. Reconnecting…"
  }
}

async function copy(button, text) {
  const label = button.textContent
  try {
    await navigator.clipboard.writeText(text)
    button.textContent = "Copied"
  } catch {
    // Plain http on another host has no clipboard.
    button.textContent = "Copy is not allowed here"
  }
  setTimeout(() => (button.textContent = label), 1500)
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text
}
