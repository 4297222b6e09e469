/**
 * The wire, as pure functions: client events out, server events reduced to a conversation.
 *
 * Speaks the text subset of OpenAI's Realtime API, with Repartee's private fields:
 *
 * - `repartee.cursor {epoch, seq}` on deltas. A delta at or before the last cursor is a repeat.
 * - `repartee.items` in `session.created`, when a stored session is opened again: what the server
 *   holds. `repartee.items_remaining` counts those that follow in events of their own.
 * - `repartee.response.resumed {response, item_id, text, repartee.cursor}`: the answer that is
 *   still running, up to the cursor; a null text means that ours is right. Deltas go on from there.
 *
 * No DOM, no sockets, no clock. `reduce(conversation, event)` never changes its arguments.
 *
 * @typedef {{epoch: number, seq: number}} Cursor
 *
 * @typedef {object} Problem  What to tell the person.
 * @property {string} kind     Stable name: busy, context, cut, key, lost, refused, server, unanswered.
 * @property {string} text     One or two sentences, in plain words.
 * @property {boolean} retry   Whether sending again may help.
 * @property {number} [waitMs] How long the server asks to wait first.
 *
 * @typedef {object} Message
 * @property {string} key             Local and stable, for the view.
 * @property {string|null} itemId     The server's (or our proposed) item id.
 * @property {string|null} responseId For answers.
 * @property {"user"|"assistant"} role
 * @property {string} text
 * @property {"sending"|"waiting"|"streaming"|"done"|"stopped"|"cut"|"failed"} status
 * @property {Cursor|null} cursor     Of the last delta applied.
 * @property {Problem|null} problem
 *
 * @typedef {object} Pending  A turn sent and not yet acknowledged in full. Its ids never change,
 *   so that sending it again is harmless.
 * @property {string} itemId
 * @property {string} text
 * @property {string} itemEventId
 * @property {string} responseEventId
 * @property {boolean} itemStored
 *
 * @typedef {object} Conversation
 * @property {string|null} sessionId
 * @property {string|null} model
 * @property {Message[]} messages
 * @property {Pending|null} pending
 * @property {Problem|null} problem  Of the conversation as a whole.
 * @property {any[]|null} arriving   Stored items of which more pages are to come.
 * @property {string|null} doubtful  Key of an answer that ran when the line was lost, until the
 *   server says that it still does.
 */

/** Largest client event the server reads, in bytes of UTF-8. */
export const MAX_EVENT_BYTES = 1024 * 1024

// Marks ids of client events whose failure nobody needs to hear of.
const QUIET = "quiet_"

/** @returns {Conversation} */
export function emptyConversation() {
  return {
    sessionId: null,
    model: null,
    messages: [],
    pending: null,
    problem: null,
    arriving: null,
    doubtful: null,
  }
}

/**
 * A random id that needs no secure context.
 * @param {string} prefix
 */
export function newId(prefix) {
  const bytes = crypto.getRandomValues(new Uint8Array(12))
  return prefix + Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")
}

/** @param {Pending} pending */
export function itemCreate({ itemId, text, itemEventId }) {
  const item = { id: itemId, type: "message", role: "user", content: [{ type: "input_text", text }] }
  return { type: "conversation.item.create", event_id: itemEventId, item }
}

/** @param {Pending} pending */
export function responseCreate({ responseEventId }) {
  return { type: "response.create", event_id: responseEventId }
}

/** @param {string|null} responseId  Null cancels whatever runs. */
export function responseCancel(responseId) {
  const event = { type: "response.cancel", event_id: newId(QUIET) }
  return responseId ? { ...event, response_id: responseId } : event
}

/** @param {string} itemId */
export function itemDelete(itemId) {
  return { type: "conversation.item.delete", event_id: newId(QUIET), item_id: itemId }
}

/** Any frame in reply proves that the line is alive. */
export function ping() {
  return { type: "repartee.ping", event_id: newId(QUIET) }
}

/**
 * Whether a server event answers a ping, or an event whose failure is of no interest.
 * @param {any} event
 */
export function isReplyToQuiet(event) {
  return event.type === "repartee.pong" || (event.type === "error" && isQuiet(event.error))
}

function isQuiet(error) {
  return error?.event_id?.startsWith(QUIET) ?? false
}

/**
 * Size of a message as the event that would carry it, in bytes.
 * @param {string} text
 */
export function eventBytes(text) {
  const event = itemCreate({ itemId: newId("item_"), text, itemEventId: newId("evt_") })
  return new TextEncoder().encode(JSON.stringify(event)).length
}

/** @param {Conversation} conversation */
export function activeAnswer(conversation) {
  return conversation.messages.find((message) => isRunning(message)) ?? null
}

/** @param {Message} message */
export function isRunning(message) {
  return message.status === "waiting" || message.status === "streaming"
}

/**
 * The person's turn, before the server knows of it: their message and an answer to wait for.
 * @param {Conversation} conversation
 * @param {string} text
 * @returns {Conversation}
 */
export function ask(conversation, text) {
  const pending = {
    itemId: newId("item_"),
    text,
    itemEventId: newId("evt_"),
    responseEventId: newId("evt_"),
    itemStored: false,
  }
  return { ...appendPending(conversation, pending), problem: null }
}

/**
 * Ask again for the answer to the last message of the person.
 * @param {Conversation} conversation
 * @returns {Conversation}
 */
export function askAgain(conversation) {
  const index = conversation.messages.findLastIndex((message) => message.role === "user")
  if (index < 0) return conversation
  const user = conversation.messages[index]
  const pending = {
    itemId: user.itemId ?? newId("item_"),
    text: user.text,
    itemEventId: newId("evt_"),
    responseEventId: newId("evt_"),
    itemStored: user.status === "done",
  }
  const messages = conversation.messages.slice(0, index)
  return { ...appendPending({ ...conversation, messages }, pending, user.key), problem: null }
}

/**
 * Put an unacknowledged turn at the end, as after a reload.
 * @param {Conversation} conversation
 * @param {Pending} pending
 * @param {string} [userKey]
 * @returns {Conversation}
 */
export function appendPending(conversation, pending, userKey = pending.itemId) {
  const messages = conversation.messages.filter((message) => message.itemId !== pending.itemId)
  const user = {
    ...message("user", userKey, pending.text),
    itemId: pending.itemId,
    status: /** @type {const} */ (pending.itemStored ? "done" : "sending"),
  }
  const answer = { ...message("assistant", pending.responseEventId, ""), status: /** @type {const} */ ("waiting") }
  return { ...conversation, messages: [...messages, user, answer], pending }
}

/**
 * End the running answer here, without the server's word.
 * @param {Conversation} conversation
 * @param {"stopped"|"failed"} status
 * @param {Problem|null} problem
 * @returns {Conversation}
 */
export function endAnswer(conversation, status, problem = null) {
  const messages = conversation.messages.map((entry) => {
    if (isRunning(entry)) return { ...entry, status, problem }
    return entry.status === "sending" ? { ...entry, status: /** @type {const} */ ("failed") } : entry
  })
  return { ...conversation, messages, pending: null }
}

/**
 * Apply one server event.
 * @param {Conversation} conversation
 * @param {any} event
 * @returns {Conversation}
 */
export function reduce(conversation, event) {
  switch (event.type) {
    case "session.created":
      return openSession(conversation, event)
    case "repartee.items":
      return receiveItems(conversation, event)
    case "repartee.response.resumed":
      return resumeAnswer(conversation, event)
    case "session.updated":
      return { ...conversation, model: event.session.model ?? conversation.model }
    case "conversation.item.added":
    case "conversation.item.done":
      return storeItem(conversation, event.item)
    case "conversation.item.deleted":
      return {
        ...conversation,
        messages: conversation.messages.filter((entry) => entry.itemId !== event.item_id),
      }
    case "response.created":
      return acknowledgeResponse(conversation, event.response)
    case "response.output_item.added":
      return updateAnswer(conversation, event.response_id, () => ({ itemId: event.item.id }))
    case "response.output_text.delta":
      return applyDelta(conversation, event)
    case "response.output_text.done":
      return updateAnswer(conversation, event.response_id, () => ({ text: event.text }))
    case "response.done":
      return finishAnswer(conversation, event.response)
    case "error":
      return applyError(conversation, event.error ?? {})
    default:
      return conversation
  }
}

/** @returns {Message} */
function message(role, key, text) {
  return { key, itemId: null, responseId: null, role, text, status: "done", cursor: null, problem: null }
}

function storeItem(conversation, item) {
  if (item?.type !== "message" || item.role !== "user") return conversation
  const known = conversation.messages.some((entry) => entry.itemId === item.id)
  const messages = known
    ? conversation.messages.map((entry) =>
        entry.itemId === item.id ? { ...entry, status: /** @type {const} */ ("done") } : entry,
      )
    : [...conversation.messages, messageFromItem(item, null)]
  const pending = conversation.pending?.itemId === item.id
    ? { ...conversation.pending, itemStored: true }
    : conversation.pending
  return { ...conversation, messages, pending }
}

function acknowledgeResponse(conversation, response) {
  const waiting = activeAnswer(conversation)
  if (waiting && (waiting.responseId === null || waiting.responseId === response.id)) {
    const messages = replace(conversation.messages, waiting, { responseId: response.id })
    return { ...conversation, messages, pending: null }
  }
  const answer = { ...message("assistant", response.id, ""), responseId: response.id }
  return { ...conversation, messages: [...conversation.messages, { ...answer, status: "waiting" }] }
}

function applyDelta(conversation, event) {
  const cursor = event["repartee.cursor"] ?? null
  return updateAnswer(conversation, event.response_id, (answer) => {
    if (!isRunning(answer) || (cursor && !isAfter(cursor, answer.cursor))) return {}
    return { text: answer.text + event.delta, status: "streaming", cursor: cursor ?? answer.cursor }
  })
}

/**
 * @param {Cursor} cursor
 * @param {Cursor|null} other
 */
export function isAfter(cursor, other) {
  if (other === null) return true
  return cursor.epoch > other.epoch || (cursor.epoch === other.epoch && cursor.seq > other.seq)
}

function finishAnswer(conversation, response) {
  const { status, problem } = outcome(response)
  const item = response.output?.find((entry) => entry.type === "message")
  const text = item ? itemText(item) : ""
  return updateAnswer(conversation, response.id, (answer) => ({
    status,
    problem,
    itemId: item?.id ?? answer.itemId,
    text: text || answer.text,
  }))
}

function outcome(response) {
  const details = response.status_details ?? {}
  switch (response.status) {
    case "completed":
      return { status: /** @type {const} */ ("done"), problem: null }
    case "cancelled":
      return { status: /** @type {const} */ ("stopped"), problem: null }
    case "incomplete":
      return { status: /** @type {const} */ ("cut"), problem: cutProblem() }
    default:
      return { status: /** @type {const} */ ("failed"), problem: problemFromError(details.error ?? {}) }
  }
}

function cutProblem() {
  return { kind: "cut", text: "The answer was cut off: it reached the length limit.", retry: false }
}

/**
 * An `error` event ends the turn it names. One that names nothing of ours is the conversation's.
 */
function applyError(conversation, error) {
  if (isQuiet(error)) return conversation
  const id = error.event_id
  const problem = problemFromError(error)
  const { pending } = conversation
  if (pending && (id === pending.itemEventId || id === pending.responseEventId)) {
    return endAnswer(conversation, "failed", problem)
  }
  return { ...conversation, problem }
}

/**
 * The server's error in a person's words.
 * @param {any} error
 * @returns {Problem}
 */
export function problemFromError(error) {
  const waitMs = error.retry_after_ms ?? error["repartee.retry_after_ms"] ?? undefined
  switch (error.code) {
    case "context_length_exceeded":
      return {
        kind: "context",
        text: "This conversation no longer fits what the model can read at once. Start a new chat, or send a shorter message.",
        retry: false,
      }
    case "overloaded":
    case "rate_limit_exceeded":
      return { kind: "busy", text: `The server is busy. ${waitText(waitMs)}`, retry: true, waitMs }
    case "unavailable":
      return { kind: "busy", text: `No model is ready to answer right now. ${waitText(waitMs)}`, retry: true, waitMs }
    case "conversation_already_has_active_response":
      return {
        kind: "busy",
        text: "Another answer is still running in this chat. Try again when it has ended.",
        retry: true,
      }
    case "deadline_exceeded":
      return { kind: "server", text: "The answer took too long, and the server gave up.", retry: true }
  }
  if (error.type === "rate_limit_error") {
    return { kind: "busy", text: `The server is busy. ${waitText(waitMs)}`, retry: true, waitMs }
  }
  if (error.type === "invalid_request_error") {
    return { kind: "refused", text: `The server refused this: ${error.message ?? "no reason given"}`, retry: false }
  }
  return { kind: "server", text: "Something went wrong on the server.", retry: true }
}

function waitText(waitMs) {
  if (!waitMs) return "Try again in a moment."
  const seconds = Math.ceil(waitMs / 1000)
  return `Try again in ${seconds} ${seconds === 1 ? "second" : "seconds"}.`
}

function openSession(conversation, event) {
  const { id, model } = event.session
  const next = { ...conversation, sessionId: id, model: model ?? conversation.model, arriving: [] }
  return receiveItems(next, event)
}

/** A page of stored items; with the last one they take the place of what was shown. */
function receiveItems(conversation, event) {
  const items = [...(conversation.arriving ?? []), ...(event["repartee.items"] ?? [])]
  if (event["repartee.items_remaining"] > 0) return { ...conversation, arriving: items }
  const known = new Map(conversation.messages.map((entry) => [entry.itemId ?? entry.key, entry]))
  const messages = items
    .filter((item) => item.type === "message" && item.role !== "system")
    .map((item) => messageFromItem(item, known.get(item.id) ?? null))
  return keepLocal({ ...conversation, messages, arriving: null }, conversation)
}

function messageFromItem(item, known) {
  const text = itemText(item)
  const entry = { ...message(item.role, known?.key ?? item.id, text), itemId: item.id }
  entry.responseId = known?.responseId ?? null
  if (item.role === "user") return entry
  if (item.status === "incomplete") {
    const { status, problem } = incompleteItem(item, known)
    return { ...entry, status, problem }
  }
  return entry
}

function incompleteItem(item, known) {
  if (known && !isRunning(known)) return { status: known.status, problem: known.problem }
  const problem = { kind: "cut", text: "This answer was not finished.", retry: false }
  return { status: /** @type {const} */ ("cut"), problem }
}

/** What the server's items do not show: a running answer, an unsent turn, why an answer failed. */
function keepLocal(next, before) {
  const { pending } = before
  const running = activeAnswer(before)
  const last = next.messages.at(-1)
  if (pending && !next.messages.some((entry) => entry.itemId === pending.itemId)) {
    return withTurn(next, { ...pending, itemStored: false }, before)
  }
  if (pending) {
    const answered = last.itemId !== pending.itemId
    return answered ? { ...next, pending: null } : withTurn(next, { ...pending, itemStored: true }, before)
  }
  if (last?.role !== "user") return next
  const ours = before.messages.at(-1)
  const kept = running ?? (ours?.role === "assistant" && ours.itemId === null ? ours : null)
  const messages = [...next.messages, kept ?? unanswered(last)]
  return { ...next, messages, doubtful: running?.key ?? null }
}

/**
 * The server has said all that it knows of a session opened again. An answer that it did not
 * mention runs no more.
 * @param {Conversation} conversation
 * @returns {Conversation}
 */
export function settle(conversation) {
  const answer = conversation.messages.find((entry) => entry.key === conversation.doubtful)
  const next = { ...conversation, doubtful: null }
  if (!answer) return next
  const problem = { kind: "lost", text: "This answer was lost on the server.", retry: true }
  return { ...next, messages: replace(next.messages, answer, { status: "failed", problem }) }
}

function withTurn(next, pending, before) {
  const userKey = before.messages.find((entry) => entry.itemId === pending.itemId)?.key
  return appendPending(next, pending, userKey)
}

/** @returns {Message} */
function unanswered(user) {
  const problem = { kind: "unanswered", text: "This message has no answer.", retry: true }
  return { ...message("assistant", `${user.key}-answer`, ""), status: "failed", problem }
}

/** The answer goes on, from the server's snapshot unless ours is further on. */
function resumeAnswer(conversation, { response, item_id: itemId, text, "repartee.cursor": cursor }) {
  const known = conversation.messages.find((entry) => entry.responseId === response.id)
    ?? conversation.messages.findLast((entry) => entry.role === "assistant" && entry.itemId === null)
  const ahead = known?.cursor && !isAfter(cursor, known.cursor)
  const change = typeof text !== "string" || ahead ? {} : { text, cursor }
  const answer = { ...(known ?? message("assistant", response.id, "")), itemId, responseId: response.id, problem: null, ...change }
  answer.status = answer.text ? "streaming" : "waiting"
  const messages = [...conversation.messages.filter((entry) => entry !== known), answer]
  return { ...conversation, messages, pending: null, doubtful: null }
}

function itemText(item) {
  return (item.content ?? []).map((part) => part.text ?? "").join("")
}

function updateAnswer(conversation, responseId, change) {
  const answer = conversation.messages.find((entry) => entry.responseId === responseId)
  if (!answer) return conversation
  return { ...conversation, messages: replace(conversation.messages, answer, change(answer)) }
}

function replace(messages, target, change) {
  return messages.map((entry) => (entry === target ? { ...entry, ...change } : entry))
}
