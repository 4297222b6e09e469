/**
 * The message box: Enter, IME, growing height, length limit, draft, and the Send or Stop button.
 */

import { byId, isComposing, setText } from "./dom.js"
import { draftOf, keepDraft } from "./drafts.js"
import { eventBytes, MAX_EVENT_BYTES } from "./protocol.js"

// Below this no text can be too long: JSON makes at most six bytes of a unit.
const SURELY_SHORT = MAX_EVENT_BYTES / 8

// A pause in typing that sends the draft.
const DRAFT_PAUSE_MS = 150

// Layout of a long text in a box of automatic direction takes quadratic time.
const LONG_TEXT = 20_000

export class Composer {
	#options
	#input = byId("input")
	#send = byId("send")
	#stop = byId("stop")
	#busy = false
	/** Where the draft in the box is kept. */
	#place = ""
	#draftTimer = 0

	constructor(options) {
		this.#options = options
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
		this.load()
	}

	/** Another chat is shown: take up its draft. */
	load() {
		clearTimeout(this.#draftTimer)
		this.#place = this.#options.place()
		this.#input.value = draftOf(this.#place)
		this.#changed()
	}

	get text() {
		return this.#input.value
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

	/** @param {boolean} ready  Whether the server has begun with what is typed. */
	setReady(ready) {
		this.#send.classList.toggle("ready", ready)
		this.#send.title = ready ? "Send (Enter). The server has read along." : "Send (Enter)"
	}

	/** The chat or what is known of tokens may have changed. */
	showEstimate() {
		setText(byId("estimate"), this.#options.estimate(this.#input.value))
	}

	#onKeydown(event) {
		if (event.key === "ArrowUp" && this.#input.value === "" && !this.#busy) {
			event.preventDefault()
			this.#options.onEditLast()
		}
		if (event.key !== "Enter" || event.shiftKey || isComposing(event)) return
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
		this.showEstimate()
		this.setReady(false)
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
		const warning = tooLong(text)
		setText(byId("input-problem"), warning)
		this.#input.setAttribute("aria-invalid", String(warning !== ""))
		return warning !== ""
	}

	#keepDraft(text) {
		const place = this.#options.place()
		// A new chat has a name once it is begun.
		if (place !== this.#place) keepDraft(this.#place, "")
		this.#place = place
		keepDraft(place, text)
	}
}

/** Why a message cannot be sent; "" if it can. */
export function tooLong(text) {
	const bytes = text.length > SURELY_SHORT ? eventBytes(text) : 0
	if (bytes <= MAX_EVENT_BYTES) return ""
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
