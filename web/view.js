/**
 * The page: shows the chat's state, and turns keys and clicks into its actions.
 */

import { AnswerBubble, UserBubble } from "./bubble.js"
import { Composer } from "./composer.js"
import { activeAnswer, isRunning } from "./conversation.js"
import { announce, byId, setText } from "./dom.js"
import { estimate } from "./estimate.js"
import { Panels } from "./panels.js"
import { Follower } from "./scroll.js"

/** A longer answer is not read out in full, in characters. */
const READ_OUT_MAX = 600

/** So long a text is worth an estimate. */
const LONG_TOKENS = 200

export class View {
	#chat
	#contextWindow
	#bubbles = new Map()
	#panels
	/** Tokens that the model reads and writes at most; null while unknown. */
	#window = null
	#visits = 0
	#follower = new Follower(byId("scroller"), byId("new-text"))
	#composer
	#keyDialog = byId("key-dialog")
	#keyInput = byId("key")
	#reducedMotion = matchMedia("(prefers-reduced-motion: reduce)")
	#countdown = 0
	/** Key of the answer that runs, to notice its end. */
	#runningKey = null

	/**
	 * @param {(model: string) => Promise<number|null>} contextWindow
	 * @param {() => string|null} key  The API key.
	 */
	constructor(chat, contextWindow, key) {
		this.#chat = chat
		this.#contextWindow = contextWindow
		this.#panels = new Panels(chat, key, {
			newChat: () => this.#newChat(),
			copyAnswer: () => this.#copyLast(),
		})
		this.#composer = new Composer({
			onSend: (text) => this.#send(text),
			onDraft: (text) => chat.draft(text),
			onStop: () => chat.stop(),
			onEditLast: () => this.#editLast(),
			isBusy: () => chat.isBusy,
			place: () => chat.place ?? "",
			estimate: (text) => this.#estimate(text),
		})
		byId("new-chat").addEventListener("click", () => this.#newChat())
		byId("reconnect").addEventListener("click", () => chat.open())
		byId("log").addEventListener("click", (event) => this.#onLogClick(event))
		byId("key-form").addEventListener("submit", (event) => this.#onKey(event))
		document.addEventListener("click", (/** @type {any} */ { target }) => {
			if (target.closest?.("[data-close]")) target.closest("dialog").close()
		})
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
		this.#renderModel(state.conversation.model)
		this.#renderTitle(state.conversation.title)
		this.#panels.update(state)
		if (this.#visits !== state.visits) {
			this.#visits = state.visits
			this.#composer.load()
			this.#panels.refreshChats()
		}
		this.#composer.setBusy(activeAnswer(state.conversation) !== null)
		this.#composer.setReady(!!state.drafted && state.drafted === this.#composer.text)
		this.#composer.showEstimate()
		this.#noticeEnd(state.conversation)
	}

	#renderModel(model) {
		if (byId("model").textContent === (model ?? "")) return
		byId("model").textContent = model ?? ""
		const learn = async () => {
			this.#window = model && (await this.#contextWindow(model))
			this.#composer.showEstimate()
		}
		// Without it there is only no limit to tell.
		learn().catch(() => (this.#window = null))
	}

	#renderTitle(title) {
		const shown = title ? `${title} - Repartee` : "Repartee"
		if (document.title === shown) return
		document.title = shown
		this.#panels.refreshChats()
	}

	/** What the composer says of a long text, or of a chat that is nearly full. */
	#estimate(text) {
		const tokens = estimate(this.#chat.store.get().conversation, text)
		const limit = this.#window
		const near = limit !== null && tokens.all > limit * 0.75
		if (tokens.text < LONG_TOKENS && !near) return ""
		const count = (number) => number.toLocaleString("en")
		const all = `about ${count(tokens.all)} tokens with the whole chat`
		if (limit !== null && tokens.all > limit)
			return `Too long, probably: ${all}; the model reads ${count(limit)} at most.`
		return `About ${count(tokens.text)} tokens, ${all}${limit === null ? "." : ` of ${count(limit)}.`}`
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
			const isLast = i === messages.length - 1
			if (bubble.shown !== message || bubble.wasLast !== isLast) bubble.update(message, isLast)
			Object.assign(bubble, { shown: message, wasLast: isLast })
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
			// What it held was refused.
			setText(byId("key-problem"), this.#keyInput.value && "The server refuses this key.")
			this.#keyInput.value = ""
			dialog.showModal()
		} else if (!needsKey && dialog.open) dialog.close()
	}

	/** One polite message when an answer has ended; none while it grows. */
	#noticeEnd(conversation) {
		const answer = activeAnswer(conversation)
		const key = answer?.key ?? null
		if (key === this.#runningKey) return
		const ended = conversation.messages.find((entry) => entry.key === this.#runningKey)
		this.#runningKey = key
		if (key !== null) announce("")
		else if (ended && !isRunning(ended)) announce(this.#summary(ended))
		this.#panels.refreshChats()
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
		if (this.#panels.hasDrawer) this.#panels.toggleChats()
		this.#chat.show(null)
		this.#composer.focus()
	}

	#editLast() {
		const last = [...this.#bubbles.values()].findLast((bubble) => bubble instanceof UserBubble)
		if (last) this.#edit(last)
	}

	#edit(bubble) {
		const { key, text } = this.#messageOf(bubble.element)
		this.#panels.edit(bubble, text, (changed) => {
			this.#chat.edit(key, changed)
			this.#follower.toFoot()
		})
	}

	#copyLast() {
		const { messages } = this.#chat.store.get().conversation
		const answer = messages.findLast(({ role, text }) => role === "assistant" && text !== "")
		if (answer) copyText(answer.text).then(announce)
	}

	#flush() {
		for (const bubble of this.#bubbles.values()) if (bubble instanceof AnswerBubble) bubble.flush()
	}

	#onKeydown(event) {
		if (event.key !== "Escape" || event.isComposing || event.defaultPrevented) return
		if (document.querySelector("dialog:modal, :popover-open")) return
		if (this.#panels.hasDrawer) this.#panels.toggleChats()
		else if (this.#chat.isBusy) {
			this.#chat.stop()
			this.#composer.focus()
		} else return
		event.preventDefault()
	}

	#onLogClick(event) {
		const button = event.target.closest("button")
		if (!button?.dataset.copy && !button?.dataset.action) return
		if (button.dataset.copy === "code")
			return copy(button, button.closest(".codeblock").querySelector("code").textContent)
		const { key, text } = this.#messageOf(button.closest(".bubble"))
		const bubble = this.#bubbles.get(key)
		switch (button.dataset.action) {
			case "copy":
				return copy(button, text)
			case "fold":
				return bubble.fold()
			case "edit":
				return this.#edit(bubble)
			case "new-chat":
				return this.#newChat()
			case "retry":
				return this.#again(() => this.#chat.retry())
			case "drop-oldest":
				return this.#again(() => this.#chat.retryWithoutOldest())
		}
	}

	#again(ask) {
		ask()
		this.#follower.toFoot()
		this.#composer.focus()
	}

	#messageOf(element) {
		const [key] = [...this.#bubbles].find(([, bubble]) => bubble.element === element)
		return this.#chat.store.get().conversation.messages.find((entry) => entry.key === key)
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

/** What the banner says of the line now; null when all is well. */
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
	button.textContent = await copyText(text)
	setTimeout(() => (button.textContent = label), 1500)
}

/** @returns {Promise<string>} What came of it. */
async function copyText(text) {
	try {
		await navigator.clipboard.writeText(text)
		return "Copied"
	} catch {
		// Plain http on another host has no clipboard.
		return "Copy is not allowed here"
	}
}
