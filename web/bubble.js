/**
 * One message on the page: the person's words as text, an answer as markdown that types itself.
 */

import { isRunning } from "./conversation.js"
import { MarkdownView } from "./render.js"
import { Typewriter } from "./typewriter.js"

/**
 * @typedef {object} BubbleOptions
 * @property {() => boolean} instant   See `TypewriterOptions`.
 * @property {() => void} onGrown      The bubble's height may have changed.
 */

/** What a bubble has in common, whoever speaks. */
class Bubble {
  /** @param {import("./conversation.js").Message} message */
  constructor(message, label) {
    this.element = document.createElement("article")
    this.element.className = `bubble ${message.role}`
    this.element.setAttribute("aria-label", label)
    this.body = document.createElement("div")
    this.body.className = "body"
    this.element.append(this.body)
  }

  dispose() {
    this.element.remove()
  }
}

export class UserBubble extends Bubble {
  /** @param {import("./conversation.js").Message} message */
  constructor(message) {
    super(message, "You")
    this.body.dir = "auto"
    this.body.textContent = message.text
  }

  /** @param {import("./conversation.js").Message} message */
  update(message) {
    this.element.classList.toggle("sending", message.status === "sending")
  }
}

export class AnswerBubble extends Bubble {
  #options
  #typewriter
  #markdown
  #message
  #foot

  /**
   * @param {import("./conversation.js").Message} message
   * @param {BubbleOptions} options
   */
  constructor(message, options) {
    super(message, "Repartee")
    this.#options = options
    this.#markdown = new MarkdownView(this.body)
    this.#typewriter = new Typewriter({
      show: (text) => this.#show(text),
      instant: options.instant,
    })
    this.#foot = document.createElement("div")
    this.#foot.className = "foot"
    this.element.append(this.#foot)
  }

  /**
   * @param {import("./conversation.js").Message} message
   * @param {boolean} isLast Only the last answer can be asked for again.
   */
  update(message, isLast) {
    const before = this.#message
    this.#message = message
    const running = isRunning(message)
    this.element.setAttribute("aria-busy", String(running))
    this.element.classList.toggle("waiting", message.status === "waiting")
    this.element.classList.toggle("streaming", message.status === "streaming")
    if (before === undefined || before.text !== message.text || isRunning(before) !== running) {
      if (running) this.#typewriter.receive(message.text)
      else this.#typewriter.finish(message.text)
    }
    this.#updateFoot(message, isLast && !running)
  }

  /** Show now all that has arrived. */
  flush() {
    if (this.#message && isRunning(this.#message)) this.#typewriter.flush()
  }

  dispose() {
    this.#typewriter.stop()
    super.dispose()
  }

  #show(text) {
    this.#markdown.update(text, isRunning(this.#message))
    this.#options.onGrown()
  }

  #updateFoot(message, canRetry) {
    const parts = []
    if (message.status === "stopped") parts.push(note("You stopped this answer.", "note"))
    if (message.problem) parts.push(note(message.problem.text, "note problem"))
    if (!isRunning(message) && message.text !== "") parts.push(button("Copy", "copy-answer"))
    const urgent = message.problem?.retry === true
    if (canRetry && message.problem?.kind === "context")
      parts.push(button("Start a new chat", "new-chat", true))
    else if (canRetry) parts.push(button(urgent ? "Retry" : "Try again", "retry", urgent))
    const same =
      parts.length === this.#foot.childNodes.length &&
      parts.every((part, i) => part.isEqualNode(this.#foot.childNodes[i]))
    // Untouched while nothing changes, so that focus stays on its buttons.
    if (!same) this.#foot.replaceChildren(...parts)
  }
}

function note(text, className) {
  const element = document.createElement("span")
  element.className = className
  element.textContent = text
  return element
}

function button(text, action, urgent = false) {
  const element = document.createElement("button")
  element.type = "button"
  element.className = urgent ? "primary" : "quiet"
  element.textContent = text
  element.dataset.action = action
  return element
}
