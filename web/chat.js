/**
 * The conversation's life: what a person does and what the server says, joined in one store.
 *
 * No DOM. `Chat`'s public methods are the whole interface for a view.
 */

import { Connection } from "./connection.js"
import * as conversations from "./conversation.js"
import { loadTexts, problemFromError } from "./problems.js"
import * as protocol from "./protocol.js"
import { newTurn, noteEvent } from "./stats.js"
import { createStore } from "./store.js"

const DELETED = "This chat was deleted. You can start a new one."
const SESSION_GONE = "This chat is no longer kept on the server. You can start a new one."

export class Chat {
	#options
	#connection
	/**
	 * Of the open socket: opening until `session.created`, settling until a session opened again
	 * has been told, ready for turns.
	 * @type {"opening"|"settling"|"ready"}
	 */
	#stage = "opening"
	/** Whether a stored session is being looked for, from before this page was loaded. */
	#restoring
	#stopWhenBack = false
	/** The latest one sent. */
	#draft = { id: "", text: "" }

	/** @param {ChatOptions} options */
	constructor(options) {
		this.#options = { now: () => performance.now(), ...options }
		this.#restoring = options.memory.sessionId !== null
		const conversation = {
			...conversations.emptyConversation(),
			sessionId: options.memory.sessionId,
		}
		this.store = createStore(
			/** @type {ChatState} */ ({
				conversation: this.#withRemembered(conversation),
				connection: { phase: "idle" },
				needsKey: false,
				visits: 0,
				notice: null,
				turn: null,
				tier: null,
				reconnects: 0,
				drafted: null,
			}),
		)
		this.#connection = new Connection({
			url: () => this.#address(),
			protocols: () => this.#subprotocols(),
			onEvent: (event) => this.#onEvent(event),
			onState: (state) => this.#onConnection(state),
			ping: protocol.ping,
			unfinished: () => this.isBusy,
			WebSocket: options.WebSocket,
		})
	}

	/** Whether an answer is asked for and has not ended. */
	get isBusy() {
		return conversations.activeAnswer(this.#conversation) !== null
	}

	/** Something that the person should know. */
	tell(notice) {
		this.store.set({ notice })
	}

	/** Id of the conversation shown; null while it is new and empty. */
	get place() {
		return this.#options.memory.sessionId
	}

	open() {
		if (this.place) this.#retell()
		this.#connection.open()
	}

	/** The network or the tab is back. */
	wake() {
		this.#connection.wake()
	}

	/** Send a message; a blank one, or one while an answer runs, is not sent. */
	ask(text) {
		if (text.trim() === "" || this.isBusy) return
		this.#begin(conversations.ask(this.#conversation, text))
	}

	/** Send other words in place of a message of the person; what came after it goes. */
	edit(key, text) {
		if (text.trim() === "" || this.isBusy) return
		this.#begin(conversations.askInstead(this.#conversation, key, text))
	}

	/**
	 * What is being typed, for the server to begin with. A hint: nothing waits for it.
	 */
	draft(text) {
		if (this.#stage !== "ready" || this.isBusy) return
		const event = protocol.inputDraft(text)
		if (this.#connection.send(event)) this.#draft = { id: event.event_id, text }
	}

	/** Ask again for the last answer, in place of the one that failed. */
	retry() {
		if (!this.isBusy) this.#begin(conversations.askAgain(this.#conversation))
	}

	/** Ask again without the older half of the conversation, which is full. */
	retryWithoutOldest() {
		if (!this.isBusy) this.#begin(conversations.askWithoutOldest(this.#conversation))
	}

	/**
	 * Change the conversation's settings; the server keeps them.
	 * @returns {boolean} Whether there is a server to tell.
	 */
	configure(settings) {
		return this.#stage === "ready" && this.#connection.send(protocol.sessionUpdate(settings))
	}

	/** End the running answer; works before its first word, and while the line is down. */
	stop() {
		const answer = conversations.activeAnswer(this.#conversation)
		if (!answer) return
		if (
			this.#stage === "ready" &&
			this.#connection.send(protocol.responseCancel(answer.responseId))
		)
			return
		this.#stopWhenBack = true
		this.#setConversation(conversations.endAnswer(this.#conversation, "stopped"))
	}

	/**
	 * Go to another conversation; the one that is left goes on by itself.
	 * @param {string|null} sessionId  Null begins a new one.
	 */
	show(sessionId) {
		this.#stopWhenBack = false
		this.#restoring = sessionId !== null
		this.#options.memory.visit(sessionId)
		const conversation = { ...conversations.emptyConversation(), sessionId }
		const visits = this.store.get().visits + 1
		const clean = { notice: null, turn: null, drafted: null, visits }
		this.#setConversation(this.#withRemembered(conversation), clean)
		this.open()
	}

	useKey(key) {
		this.#options.memory.key = key
		this.store.set({ needsKey: false })
		this.open()
	}

	get #conversation() {
		return this.store.get().conversation
	}

	#withRemembered(conversation) {
		const pending = this.#options.memory.pending(conversation.sessionId)
		return pending ? conversations.appendPending(conversation, pending) : conversation
	}

	/** The person's turn begins. */
	#begin(conversation) {
		if (conversation === this.#conversation) return
		this.#retell()
		this.#setConversation(conversation, { turn: newTurn(this.#options.now()), drafted: null })
		this.#sendPending()
	}

	/** The words for errors may come after the first of them. */
	async #retell() {
		await loadTexts()
		const told = (entry) =>
			entry.problem?.error ? { ...entry, problem: problemFromError(entry.problem.error) } : entry
		const now = told(this.#conversation)
		this.#setConversation({ ...now, messages: now.messages.map(told) })
	}

	#setConversation(conversation, more) {
		const { memory } = this.#options
		const { sessionId, pending, messages } = conversation
		memory.keep(sessionId, pending)
		// An empty session is not worth coming back to.
		memory.sessionId = messages.length > 0 || this.#restoring ? sessionId : null
		this.store.set({ ...more, conversation })
	}

	#address() {
		const url = new URL(this.#options.endpoint)
		const { sessionId } = this.#conversation
		if (sessionId) {
			url.searchParams.set("session_id", sessionId)
			const cursor = conversations.activeAnswer(this.#conversation)?.cursor
			if (cursor) {
				url.searchParams.set("epoch", String(cursor.epoch))
				url.searchParams.set("starting_after", String(cursor.seq))
			}
		}
		return url.href
	}

	#subprotocols() {
		const { key } = this.#options.memory
		return key ? ["realtime", `openai-insecure-api-key.${key}`] : ["realtime"]
	}

	#onEvent(event) {
		if (event.type === "session.created") return this.#onSession(event)
		if (event.type === "repartee.session.deleted") return this.#onDeleted()
		if (event.type === "error" && this.#stage === "opening")
			return this.#onRefusal(event.error ?? {})
		if (event.type === "repartee.input_draft.taken" && event.draft_event_id === this.#draft.id)
			this.store.set({ drafted: this.#draft.text })
		const turn = noteEvent(this.store.get().turn, event, this.#options.now())
		this.#setConversation(conversations.reduce(this.#conversation, event), { turn })
		if (event.type === "repartee.resynced") this.#settle()
		if (this.#stage === "settling" && protocol.isReplyToQuiet(event)) this.#settled()
	}

	#onSession(event) {
		const { sessionId } = this.#conversation
		const reopened = sessionId === event.session.id
		if (sessionId !== null && !reopened) this.#forgetSession()
		this.#restoring = false
		this.#stage = "ready"
		// What was asked before the session had an id is kept under the id from here on.
		if (this.#conversation.sessionId === null) this.#options.memory.keep(null, null)
		const tier = event["repartee.tier"] ?? null
		this.#setConversation(conversations.reduce(this.#conversation, event), { tier })
		if (reopened) this.#settle()
		else this.#sendPending()
	}

	/** Wait until the server has said all that it holds. */
	#settle() {
		this.#stage = "settling"
		this.#connection.send(protocol.ping())
	}

	/** By another tab, or another device. */
	#onDeleted() {
		this.show(null)
		this.store.set({ notice: DELETED })
	}

	/** The server answers in order: what it holds came before the reply to our ping. */
	#settled() {
		this.#stage = "ready"
		this.#setConversation(conversations.settle(this.#conversation))
		if (this.#stopWhenBack) this.#stopLate()
		this.#sendPending()
	}

	/** The server no longer has the session. Only a turn that it never saw can go on. */
	#forgetSession() {
		const { pending, messages } = this.#conversation
		const goesOn = pending !== null && !pending.itemStored && messages.length === 2
		const fresh = conversations.emptyConversation()
		if (this.#restoring || (messages.length > 0 && !goesOn))
			this.store.set({ notice: SESSION_GONE })
		this.#restoring = false
		this.#options.memory.keep(this.#conversation.sessionId, null)
		this.#setConversation(goesOn ? conversations.appendPending(fresh, pending) : fresh)
	}

	/** Stopped while the line was down: the server still has to hear of it. */
	#stopLate() {
		this.#stopWhenBack = false
		const answer = conversations.activeAnswer(this.#conversation)
		if (answer?.responseId) this.#connection.send(protocol.responseCancel(answer.responseId))
	}

	/** An error before the session: the server is about to close, or forgot the session. */
	#onRefusal(error) {
		if (error.type === "authentication_error") return
		if (error.code === "not_found" || error.code === "session_not_found") {
			this.#forgetSession()
			this.open()
			return
		}
		const problem = problemFromError(error)
		if (problem.waitMs) this.#connection.holdOff(problem.waitMs)
		this.#setConversation({ ...this.#conversation, problem })
		this.#retell()
	}

	/** Sending twice is safe: the ids stay the same and the server knows them. */
	#sendPending() {
		const { pending } = this.#conversation
		if (!pending || this.#stage !== "ready") return
		const { removes, removesAfter } = pending
		if (removesAfter !== null) this.#connection.send(protocol.truncate(removesAfter))
		else for (const id of removes) this.#connection.send(protocol.itemDelete(id))
		if (!pending.itemStored) this.#connection.send(protocol.itemCreate(pending))
		this.#connection.send(protocol.responseCreate(pending))
	}

	#onConnection(state) {
		const before = this.store.get()
		this.#stage = state.phase === "open" ? this.#stage : "opening"
		const lost = before.connection.phase !== "waiting" && state.phase === "waiting" && state.opened
		this.store.set({ connection: state, reconnects: before.reconnects + Number(lost ?? false) })
		if (state.phase === "closed" && state.code === 4401) this.store.set({ needsKey: true })
		if (state.phase === "closed") this.#failOpenAnswer(state)
		if (state.phase === "waiting" && !state.opened) this.#askWhyRefused()
	}

	#failOpenAnswer({ code }) {
		if (!this.isBusy || code === 4401) return
		const text = "The server ended the connection before the answer was complete."
		const problem = { kind: "lost", text, retry: true }
		this.#setConversation(conversations.endAnswer(this.#conversation, "failed", problem))
	}

	async #askWhyRefused() {
		const { isKeyRefused, memory } = this.#options
		if (!isKeyRefused || !(await isKeyRefused(memory.key))) return
		if (this.#connection.state.phase === "open") return
		this.#connection.close()
		this.store.set({ needsKey: true })
	}
}
