/**
 * A conversation as this side knows it, and how server events change it.
 *
 * No DOM, no sockets, no clock. Nothing here changes its arguments.
 *
 * @typedef {import("./problems.js").Problem} Problem
 * @typedef {import("./protocol.js").Pending} Pending
 *
 * @typedef {object} Message
 * @property {string} key             Local and stable, for the view.
 * @property {string|null} itemId     The server's (or our proposed) item id.
 * @property {string|null} responseId For answers.
 * @property {"user"|"assistant"} role
 * @property {string} text
 * @property {"sending"|"waiting"|"streaming"|"done"|"stopped"|"cut"|"failed"} status
 * @property {import("./protocol.js").Cursor|null} cursor     Of the last delta applied.
 * @property {Problem|null} problem
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

import { cutProblem, problemFromError } from "./problems.js"
import { isAfter, isQuiet, newId } from "./protocol.js"

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
    status: /** @type {Message["status"]} */ (pending.itemStored ? "done" : "sending"),
  }
  const answer = {
    ...message("assistant", pending.responseEventId, ""),
    status: /** @type {const} */ ("waiting"),
  }
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
    return entry.status === "sending"
      ? { ...entry, status: /** @type {const} */ ("failed") }
      : entry
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
  return {
    key,
    itemId: null,
    responseId: null,
    role,
    text,
    status: "done",
    cursor: null,
    problem: null,
  }
}

function storeItem(conversation, item) {
  if (item?.type !== "message" || item.role !== "user") return conversation
  const known = conversation.messages.some((entry) => entry.itemId === item.id)
  const messages = known
    ? conversation.messages.map((entry) =>
        entry.itemId === item.id ? { ...entry, status: /** @type {const} */ ("done") } : entry,
      )
    : [...conversation.messages, messageFromItem(item, null)]
  const pending =
    conversation.pending?.itemId === item.id
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
      return {
        status: /** @type {const} */ ("failed"),
        problem: problemFromError(details.error ?? {}),
      }
  }
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
  // The create that went out with a refused item fails after it; its answer has ended already.
  if (conversation.messages.some((entry) => entry.key === id)) return conversation
  return { ...conversation, problem }
}

function openSession(conversation, event) {
  const { id, model } = event.session
  const next = {
    ...conversation,
    sessionId: id,
    model: model ?? conversation.model,
    arriving: [],
    problem: null,
  }
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
  const reason = item["repartee.reason"]
  if (reason === "client_cancelled") return { status: /** @type {const} */ ("stopped"), problem: null }
  const problem =
    reason === "max_output_tokens" ? cutProblem() : cutProblem("This answer was not finished.")
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
    return answered
      ? { ...next, pending: null }
      : withTurn(next, { ...pending, itemStored: true }, before)
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
function resumeAnswer(
  conversation,
  { response, item_id: itemId, text, "repartee.cursor": cursor },
) {
  const known =
    conversation.messages.find((entry) => entry.responseId === response.id) ??
    conversation.messages.findLast((entry) => entry.role === "assistant" && entry.itemId === null)
  const ahead = known?.cursor && !isAfter(cursor, known.cursor)
  const change = typeof text !== "string" || ahead ? {} : { text, cursor }
  const answer = {
    ...(known ?? message("assistant", response.id, "")),
    itemId,
    responseId: response.id,
    problem: null,
    ...change,
  }
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
