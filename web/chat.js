/**
 * The conversation's life: what a person does and what the server says, joined in one store.
 *
 * No DOM. `ask`, `draft`, `stop`, `retry`, `newChat`, `useKey` are the whole interface for a view.
 *
 * @typedef {object} ChatState
 * @property {import("./conversation.js").Conversation} conversation
 * @property {import("./connection.js").ConnectionState} connection
 * @property {boolean} needsKey    The server wants an API key, or a better one.
 * @property {string|null} notice  Something to tell the person once.
 *
 * @typedef {object} ChatOptions
 * @property {string} endpoint                ws: or wss: address of `/v1/realtime`.
 * @property {Memory} memory                  What must outlive a reload.
 * @property {(key: string|null) => Promise<boolean>} [isKeyRefused]
 *   Asks the server over HTTP; a browser is not told why an upgrade was refused.
 * @property {typeof WebSocket} [WebSocket]
 *
 * @typedef {object} Memory
 * @property {string|null} sessionId
 * @property {import("./protocol.js").Pending|null} pending
 * @property {string|null} key
 */

import { Connection } from "./connection.js"
import * as conversations from "./conversation.js"
import { problemFromError } from "./problems.js"
import * as protocol from "./protocol.js"
import { createStore } from "./store.js"

const SESSION_GONE = "This chat is no longer kept on the server. You can start a new one."

export class Chat {
  #options
  #connection
  /**
   * Of the open socket: opening until `session.created`; settling until the server has said what
   * it holds of a session opened again; ready for turns.
   * @type {"opening"|"settling"|"ready"}
   */
  #stage = "opening"
  /** Whether a stored session is being looked for, from before this page was loaded. */
  #restoring
  #stopWhenBack = false

  /** @param {ChatOptions} options */
  constructor(options) {
    this.#options = options
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
        notice: null,
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

  open() {
    this.#connection.open()
  }

  /** The network or the tab is back. */
  wake() {
    this.#connection.wake()
  }

  /**
   * Send a message; a blank one, or one while an answer runs, is not sent.
   * @param {string} text
   */
  ask(text) {
    if (text.trim() === "" || this.isBusy) return
    this.#setConversation(conversations.ask(this.#conversation, text))
    this.#sendPending()
  }

  /**
   * What the person is typing, so that the server can begin with it. A hint: nothing waits for it.
   * @param {string} text
   */
  draft(text) {
    if (this.#stage === "ready" && !this.isBusy) this.#connection.send(protocol.inputDraft(text))
  }

  /** Ask again for the last answer, in place of the one that failed. */
  retry() {
    if (this.isBusy) return
    const old = this.#conversation.messages.at(-1)
    if (old?.role === "assistant" && old.itemId)
      this.#connection.send(protocol.itemDelete(old.itemId))
    this.#setConversation(conversations.askAgain(this.#conversation))
    this.#sendPending()
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

  newChat() {
    this.#stopWhenBack = false
    this.#setConversation(conversations.emptyConversation())
    this.store.set({ notice: null })
    this.open()
  }

  /** @param {string} key */
  useKey(key) {
    this.#options.memory.key = key
    this.store.set({ needsKey: false })
    this.open()
  }

  get #conversation() {
    return this.store.get().conversation
  }

  #withRemembered(conversation) {
    const { pending } = this.#options.memory
    return pending ? conversations.appendPending(conversation, pending) : conversation
  }

  #setConversation(conversation) {
    const { memory } = this.#options
    memory.pending = conversation.pending
    // An empty session is not worth coming back to.
    memory.sessionId = conversation.messages.length > 0 ? conversation.sessionId : null
    this.store.set({ conversation })
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
    if (event.type === "error" && this.#stage === "opening")
      return this.#onRefusal(event.error ?? {})
    this.#setConversation(conversations.reduce(this.#conversation, event))
    if (this.#stage === "settling" && protocol.isReplyToQuiet(event)) this.#settled()
  }

  #onSession(event) {
    const { sessionId } = this.#conversation
    const reopened = sessionId === event.session.id
    if (sessionId !== null && !reopened) this.#forgetSession()
    this.#restoring = false
    this.#stage = reopened ? "settling" : "ready"
    this.#setConversation(conversations.reduce(this.#conversation, event))
    if (reopened) this.#connection.send(protocol.ping())
    else this.#sendPending()
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
  }

  /** Sending twice is safe: the ids stay the same and the server knows them. */
  #sendPending() {
    const { pending } = this.#conversation
    if (!pending || this.#stage !== "ready") return
    if (!pending.itemStored) this.#connection.send(protocol.itemCreate(pending))
    this.#connection.send(protocol.responseCreate(pending))
  }

  #onConnection(state) {
    this.#stage = state.phase === "open" ? this.#stage : "opening"
    this.store.set({ connection: state })
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
