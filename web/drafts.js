/**
 * What is typed and not sent, kept in this browser for each chat.
 */

const PREFIX = "repartee.draft."
// A huge paste is not worth the storage's limit, and its loss is no surprise.
const MAX_CHARS = 128 * 1024
const MAX_DRAFTS = 50

/** @param {string} place  Id of the chat; empty for a new one. */
export function draftOf(place) {
	return localStorage.getItem(PREFIX + place) ?? ""
}

export function keepDraft(place, text) {
	localStorage.removeItem(PREFIX + place)
	if (text === "" || text.length > MAX_CHARS) return
	const others = Object.keys(localStorage).filter((key) => key.startsWith(PREFIX))
	for (const key of others.slice(0, Math.max(0, others.length + 1 - MAX_DRAFTS)))
		localStorage.removeItem(key)
	try {
		localStorage.setItem(PREFIX + place, text)
	} catch {
		// The browser gives no more room; the text is still in the box.
	}
}
