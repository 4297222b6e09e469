/**
 * One message on the page: the person's words as text, an answer as markdown that types itself.
 */

import { isRunning } from "./conversation.js"
import { element } from "./dom.js"
import { MarkdownView } from "./render.js"
import { Typewriter } from "./typewriter.js"

// A longer message of the person is folded.
const FOLD_CHARS = 1500
const FOLD_LINES = 14

/** What a bubble has in common, whoever speaks. */
class Bubble {
	constructor(message, label) {
		this.body = element("div", { className: "body" })
		this.foot = element("div", { className: "foot" })
		const properties = { className: `bubble ${message.role}`, ariaLabel: label }
		this.element = element("article", properties, this.body, this.foot)
	}

	dispose() {
		this.element.remove()
	}
}

export class UserBubble extends Bubble {
	constructor(message) {
		super(message, "You")
		this.body.dir = "auto"
		this.body.textContent = message.text
		if (message.text.length > FOLD_CHARS || message.text.split("\n").length > FOLD_LINES) {
			const fold = button("", "fold")
			fold.classList.add("fold")
			this.foot.append(fold)
			this.fold(true)
		}
		this.foot.append(button("Copy", "copy"), button("Edit", "edit"))
	}

	fold(folded = !this.body.classList.contains("folded")) {
		const fold = this.foot.firstElementChild
		this.body.classList.toggle("folded", folded)
		fold.textContent = folded ? "Show all" : "Show less"
		fold.ariaExpanded = String(!folded)
	}

	update(message) {
		this.element.classList.toggle("sending", message.status === "sending")
	}
}

export class AnswerBubble extends Bubble {
	#options
	#typewriter
	#markdown
	#message

	constructor(message, options) {
		super(message, "Repartee")
		this.#options = options
		this.#markdown = new MarkdownView(this.body)
		this.#typewriter = new Typewriter({
			show: (text) => this.#show(text),
			instant: options.instant,
		})
	}

	/** @param {boolean} isLast Only the last answer can be asked for again. */
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
		if (!isRunning(message) && message.text !== "") parts.push(button("Copy", "copy"))
		const urgent = message.problem?.retry === true
		if (canRetry && message.problem?.kind === "context") {
			parts.push(button("Start a new chat", "new-chat", true))
			// The question and its answer alone can't be made shorter.
			if (this.element.previousElementSibling?.previousElementSibling)
				parts.push(button("Remove the older half and retry", "drop-oldest"))
		} else if (canRetry) parts.push(button(urgent ? "Retry" : "Try again", "retry", urgent))
		const same =
			parts.length === this.foot.childNodes.length &&
			parts.every((part, i) => part.isEqualNode(this.foot.childNodes[i]))
		// Untouched while nothing changes, so that focus stays on its buttons.
		if (!same) this.foot.replaceChildren(...parts)
	}
}

function note(text, className) {
	return element("span", { className }, text)
}

function button(text, action, urgent = false) {
	const className = urgent ? "primary" : "quiet"
	return element("button", { className, dataset: { action } }, text)
}
