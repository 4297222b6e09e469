/**
 * The wire: the events that this side sends, and what the other side's private fields mean.
 *
 * Speaks the text subset of OpenAI's Realtime API, and what Repartee adds (`docs/wire.md`).
 * No DOM, no sockets, no clock; `conversation.js` applies server events.
 */

/** Largest client event the server reads, in bytes of UTF-8. */
export const MAX_EVENT_BYTES = 1024 * 1024

// Marks ids of client events whose failure nobody needs to hear of.
const QUIET = "quiet_"

/**
 * A random id that needs no secure context.
 * @param {string} prefix
 */
export function newId(prefix) {
	const bytes = crypto.getRandomValues(new Uint8Array(12))
	return prefix + Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")
}

/**
 * A person's message with ids of its own: it can be sent again without harm.
 * @param {string} text
 */
export function newMessage(text) {
	const [itemId, itemEventId, responseEventId] = ["item_", "evt_", "evt_"].map(newId)
	return { itemId, text, itemEventId, responseEventId }
}

/** @param {Pick<Pending, "itemId"|"text"|"itemEventId">} pending */
export function itemCreate({ itemId, text, itemEventId }) {
	const item = {
		id: itemId,
		type: "message",
		role: "user",
		content: [{ type: "input_text", text }],
	}
	return { type: "conversation.item.create", event_id: itemEventId, item }
}

/**
 * It goes out with its item: if that is refused, nothing older is answered again.
 * @param {Pick<Pending, "itemId" | "responseEventId">} pending
 */
export function responseCreate({ itemId, responseEventId }) {
	return { type: "response.create", event_id: responseEventId, "repartee.answers": itemId }
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

/** @param {string} itemId  The last item that stays; "root" if none does. */
export function truncate(itemId) {
	return { type: "repartee.conversation.truncate", event_id: newId(QUIET), item_id: itemId }
}

/** @param {string} text  Typed so far; the server computes it ahead, and never answers. */
export function inputDraft(text) {
	return { type: "repartee.input_draft", event_id: newId(QUIET), text }
}

/** @param {Settings} settings  Of the sampling fields, null puts one back to its default. */
export function sessionUpdate(settings) {
	return {
		type: "session.update",
		event_id: newId("evt_"),
		session: { type: "realtime", ...settings },
	}
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

export function isQuiet(error) {
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

/**
 * @param {Cursor} cursor
 * @param {Cursor|null} other
 */
export function isAfter(cursor, other) {
	if (other === null) return true
	return cursor.epoch > other.epoch || (cursor.epoch === other.epoch && cursor.seq > other.seq)
}
