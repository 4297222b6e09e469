/**
 * A conversation as this side knows it, and how server events change it.
 *
 * No DOM, no sockets, no clock. Nothing here changes its arguments.
 */

import { cutProblem, problemFromError } from "./problems.js"
import { isAfter, isQuiet, newMessage } from "./protocol.js"

export function emptyConversation() {
	return {
		sessionId: null,
		model: null,
		title: null,
		settings: null,
		spent: null,
		messages: [],
		pending: null,
		problem: null,
		arriving: null,
		doubtful: null,
	}
}

export function activeAnswer(conversation) {
	return conversation.messages.find((message) => isRunning(message)) ?? null
}

export function isRunning(message) {
	return message.status === "waiting" || message.status === "streaming"
}

/**
 * The person's turn, before the server knows of it: their message and an answer to wait for.
 * @param {string[]} [removes] Items that it takes the place of.
 */
export function ask(conversation, text, removes = []) {
	const removesAfter = removes.length > 0 ? lastStored(conversation.messages) : null
	const pending = { ...newMessage(text), itemStored: false, removes, removesAfter }
	return { ...appendPending(conversation, pending), problem: null }
}

/**
 * Ask with other words; the message and all that came after it go.
 * @param {string} key  Of a message of the person.
 */
export function askInstead(conversation, key, text) {
	const index = conversation.messages.findIndex((message) => message.key === key)
	if (index < 0) return conversation
	const messages = conversation.messages.slice(0, index)
	return ask({ ...conversation, messages }, text, itemIds(conversation.messages.slice(index)))
}

/** Ask for the last answer again without the older half of the turns. */
export function askWithoutOldest(conversation) {
	const { messages } = conversation
	const turns = messages.flatMap(({ role }, i) => (role === "user" && i > 0 ? [i] : []))
	const half = charsIn(messages) / 2
	const cut = turns.find((i) => charsIn(messages.slice(0, i)) >= half) ?? turns.at(-1)
	if (cut === undefined) return conversation
	const left = { ...conversation, messages: messages.slice(cut) }
	return askAgain(left, itemIds(messages.slice(0, cut)))
}

export function charsIn(messages) {
	return messages.reduce((sum, { text }) => sum + text.length, 0)
}

/** The last of these that the server has; "root" if it has none. */
function lastStored(messages) {
	const isStored = ({ itemId, role, status }) => itemId && (role === "assistant" || status === "done")
	return messages.findLast(isStored)?.itemId ?? "root"
}

function itemIds(messages) {
	return messages.flatMap(({ itemId }) => itemId ?? [])
}

/**
 * Ask again for the answer to the last message of the person.
 * @param {string[]} [removes] Items that go besides the answers that are asked for again.
 */
export function askAgain(conversation, removes = []) {
	const index = conversation.messages.findLastIndex((message) => message.role === "user")
	if (index < 0) return conversation
	const user = conversation.messages[index]
	const answers = itemIds(conversation.messages.slice(index + 1))
	const atEnd = removes.length === 0 && answers.length > 0
	const pending = {
		...newMessage(user.text),
		...(user.itemId ? { itemId: user.itemId } : {}),
		itemStored: user.status === "done",
		removes: [...removes, ...answers],
		removesAfter: atEnd ? lastStored(conversation.messages.slice(0, index + 1)) : null,
	}
	const messages = conversation.messages.slice(0, index)
	return { ...appendPending({ ...conversation, messages }, pending, user.key), problem: null }
}

/** Put an unacknowledged turn at the end, as after a reload. */
export function appendPending(conversation, pending, userKey = pending.itemId) {
	const messages = conversation.messages.filter((message) => message.itemId !== pending.itemId)
	const user = {
		...message("user", userKey, pending.text),
		itemId: pending.itemId,
		status: pending.itemStored ? "done" : "sending",
	}
	const answer = { ...message("assistant", pending.responseEventId, ""), status: "waiting" }
	return { ...conversation, messages: [...messages, user, answer], pending }
}

/** End the running answer here, without the server's word. */
export function endAnswer(conversation, status, problem = null) {
	const messages = conversation.messages.map((entry) => {
		if (isRunning(entry)) return { ...entry, status, problem }
		return entry.status === "sending" ? { ...entry, status: "failed" } : entry
	})
	return { ...conversation, messages, pending: null }
}

/** Apply one server event. */
export function reduce(conversation, event) {
	switch (event.type) {
		case "session.created":
		case "repartee.resynced":
			return openSession(conversation, event)
		case "repartee.items":
			return receiveItems(conversation, event)
		case "repartee.response.resumed":
			return resumeAnswer(conversation, event)
		case "session.updated":
			return { ...conversation, ...shownSession(event.session) }
		case "repartee.session.title":
			return { ...conversation, title: event.title }
		case "conversation.item.added":
		case "conversation.item.done":
			return storeItem(
				{ ...conversation, title: event["repartee.title"] ?? conversation.title },
				event.item,
			)
		case "repartee.conversation.truncated":
			return cutAfter(conversation, event.item_id)
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
				entry.itemId === item.id ? { ...entry, status: "done" } : entry,
			)
		: [...conversation.messages, messageFromItem(item, null)]
	const pending =
		conversation.pending?.itemId === item.id
			? { ...conversation.pending, itemStored: true }
			: conversation.pending
	return { ...conversation, messages, pending }
}

/** Nothing is left after this item but the turn in its place. */
function cutAfter(conversation, itemId) {
	const { messages, pending } = conversation
	const last = messages.findIndex((entry) => entry.itemId === itemId)
	if (last < 0 && itemId !== "root") return conversation
	const left = messages.filter(
		({ itemId: id, key }, i) =>
			i <= last || (pending && (id === pending.itemId || key === pending.responseEventId)),
	)
	return { ...conversation, messages: left }
}

function acknowledgeResponse(conversation, response) {
	// Given up for lost, and heard of again.
	const known = conversation.messages.find((entry) => entry.responseId === response.id)
	if (known) {
		const change = { status: known.text ? "streaming" : "waiting", problem: null }
		return { ...conversation, messages: replace(conversation.messages, known, change), pending: null }
	}
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
	const next = updateAnswer(conversation, response.id, (answer) => ({
		status,
		problem,
		itemId: item?.id ?? answer.itemId,
		text: text || answer.text,
	}))
	const tokens = response.usage?.total_tokens
	if (!tokens) return next
	const chars = charsIn(next.messages) + (next.settings?.instructions.length ?? 0)
	return { ...next, spent: { tokens, chars } }
}

function outcome(response) {
	const details = response.status_details ?? {}
	switch (response.status) {
		case "completed":
			return { status: "done", problem: null }
		case "cancelled":
			return { status: "stopped", problem: null }
		case "incomplete":
			return { status: "cut", problem: cutProblem() }
		default:
			return { status: "failed", problem: problemFromError(details.error ?? {}) }
	}
}

/**
 * An `error` event ends the turn it names, or else is the conversation's.
 */
function applyError(conversation, error) {
	if (isQuiet(error)) return conversation
	const id = error.event_id
	const problem = problemFromError(error)
	const { pending } = conversation
	if (pending && (id === pending.itemEventId || id === pending.responseEventId)) {
		return endAnswer(conversation, "failed", problem)
	}
	// The create sent with a refused item fails after it; its answer has ended.
	if (conversation.messages.some((entry) => entry.key === id)) return conversation
	return { ...conversation, problem }
}

function shownSession({ model, instructions = "", max_output_tokens = "inf", repartee = {} }) {
	return { model, settings: { instructions, max_output_tokens, repartee } }
}

function openSession(conversation, event) {
	const next = {
		...conversation,
		...shownSession(event.session),
		sessionId: event.session.id,
		title: event["repartee.title"] ?? conversation.title,
		arriving: [],
		problem: null,
	}
	return receiveItems(next, event)
}

/** A page of stored items; the last one shows them. */
function receiveItems(conversation, event) {
	const removes = conversation.pending?.removes ?? []
	const items = [...(conversation.arriving ?? []), ...(event["repartee.items"] ?? [])].filter(
		({ id }) => !removes.includes(id),
	)
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
	if (reason === "client_cancelled") return { status: "stopped", problem: null }
	const problem =
		reason === "max_output_tokens" ? cutProblem() : cutProblem("This answer was not finished.")
	return { status: "cut", problem }
}

/** What items do not show: a running answer, an unsent turn, a failure. */
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
