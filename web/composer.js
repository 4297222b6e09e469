/**
 * The message box: Enter, IME, growing height, length limit, draft, and the Send or Stop button.
 *
 * @typedef {object} ComposerOptions
 * @property {(text: string) => void} onSend
 * @property {(text: string) => void} onDraft  Called when typing pauses.
 * @property {() => void} onStop
 * @property {() => boolean} isBusy
 */

import { eventBytes, MAX_EVENT_BYTES } from "./protocol.js"

const DRAFT = "repartee.draft"
// Below this no text can be too long (six bytes per unit is the most that JSON makes of one),
// and counting bytes at each key is not worth it.
const SURELY_SHORT = MAX_EVENT_BYTES / 8

// A pause in typing as long as this sends the draft.
const DRAFT_PAUSE_MS = 150

// A browser lays out a long text in a box of automatic direction in time that grows with its square.
const LONG_TEXT = 20_000

const byId = (id) => document.getElementById(id)

export class Composer {
  #options
  #input = /** @type {HTMLTextAreaElement} */ (byId("input"))
  #send = /** @type {HTMLButtonElement} */ (byId("send"))
  #stop = /** @type {HTMLButtonElement} */ (byId("stop"))
  #busy = false
  #draftTimer = 0

  /** @param {ComposerOptions} options */
  constructor(options) {
    this.#options = options
    this.#input.value = sessionStorage.getItem(DRAFT) ?? ""
    this.#input.addEventListener("beforeinput", (event) => this.#setDirection(event))
    this.#input.addEventListener("input", (event) => {
      this.#changed()
      this.#scheduleDraft(event.isComposing)
    })
    this.#input.addEventListener("compositionend", () => this.#scheduleDraft(false))
    this.#input.addEventListener("keydown", (event) => this.#onKeydown(event))
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault()
      this.#submit()
    })
    this.#stop.addEventListener("click", () => {
      this.#options.onStop()
      this.focus()
    })
    this.#changed()
  }

  focus() {
    this.#input.focus({ preventScroll: true })
  }

  /** @param {boolean} busy Whether an answer runs. */
  setBusy(busy) {
    if (busy === this.#busy) return
    // A button that is about to go must not take the focus with it.
    const focused = document.activeElement === this.#stop || document.activeElement === this.#send
    this.#busy = busy
    this.#send.hidden = busy
    this.#stop.hidden = !busy
    byId("hint").textContent = busy
      ? "Esc stops the answer."
      : "Enter sends, Shift+Enter starts a new line."
    if (focused) this.focus()
  }

  #onKeydown(event) {
    if (event.key !== "Enter" || event.shiftKey) return
    // While an input method composes, Enter confirms its choice. Safari ends the composition
    // before the keydown, and only the old key code 229 tells.
    if (event.isComposing || event.keyCode === 229) return
    event.preventDefault()
    if (!event.repeat) this.#submit()
  }

  #submit() {
    const text = this.#input.value
    if (text.trim() === "" || this.#options.isBusy()) return
    if (this.#warnIfTooLong(text)) return
    clearTimeout(this.#draftTimer)
    this.#options.onSend(text)
    this.#input.value = ""
    this.#changed()
    this.focus()
  }

  #changed() {
    const text = this.#input.value
    this.#input.dir = directionOf(text)
    this.#input.style.height = "auto"
    this.#input.style.height = `${this.#input.scrollHeight}px`
    this.#send.disabled = text.trim() === ""
    this.#warnIfTooLong(text)
    this.#keepDraft(text)
  }

  /** @param {boolean} composing Whether an input method still chooses the text. */
  #scheduleDraft(composing) {
    clearTimeout(this.#draftTimer)
    if (composing) return
    this.#draftTimer = setTimeout(() => {
      const text = this.#input.value
      if (text.length <= SURELY_SHORT) this.#options.onDraft(text)
    }, DRAFT_PAUSE_MS)
  }

  /** Before a large paste is laid out for the first time. */
  #setDirection(event) {
    const pasted = event.data ?? event.dataTransfer?.getData("text/plain") ?? ""
    if (pasted.length > LONG_TEXT)
      this.#input.dir = directionOf(this.#input.value.slice(0, LONG_TEXT) + pasted)
  }

  #warnIfTooLong(text) {
    const bytes = text.length > SURELY_SHORT ? eventBytes(text) : 0
    const tooLong = bytes > MAX_EVENT_BYTES
    const warning = tooLong ? tooLongText(bytes) : ""
    const element = byId("input-problem")
    if (element.textContent !== warning) element.textContent = warning
    this.#input.setAttribute("aria-invalid", String(tooLong))
    return tooLong
  }

  #keepDraft(text) {
    // A huge paste is not worth the storage's limit, and its loss is no surprise.
    if (text.length < SURELY_SHORT) sessionStorage.setItem(DRAFT, text)
    else sessionStorage.removeItem(DRAFT)
  }
}

/** @param {number} bytes Size of the event that would carry the message. */
function tooLongText(bytes) {
  const kib = (size) => Math.ceil(size / 1024).toLocaleString("en")
  return `This message is too long to send: ${kib(bytes)} KiB of at most ${kib(MAX_EVENT_BYTES)} KiB. Shorten it, or send it in parts.`
}

/** Left to the browser, except for a long text: then that of its first letter. */
function directionOf(text) {
  if (text.length <= LONG_TEXT) return "auto"
  const [letter] = /\p{L}/u.exec(text) ?? [""]
  return /[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u.test(
    letter,
  )
    ? "rtl"
    : "ltr"
}
