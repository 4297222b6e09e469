/**
 * Keys that work anywhere on the page.
 */

import { isComposing } from "./dom.js"

export const IS_APPLE = /Mac|iPhone|iPad/.test(navigator.platform)

/**
 * With Ctrl or ⌘: the key, whether with Shift (null: either way, as some keyboards need it), the
 * action's name, and what is said of it.
 * @type {[string, boolean|null, string, string][]}
 */
export const KEYS = [
	["k", false, "chats", "Open or close the list of chats"],
	["o", true, "newChat", "Start a new chat"],
	[",", null, "settings", "Settings of this chat"],
	[".", null, "figures", "Show or hide the figures"],
	[";", null, "copyAnswer", "Copy the last answer"],
	["/", null, "keys", "Show these keys"],
]

/** @param {Record<string, () => void>} actions  By the names in `KEYS`. */
export function listenToKeys(actions) {
	document.addEventListener("keydown", (event) => {
		if (!(IS_APPLE ? event.metaKey : event.ctrlKey) || event.altKey || isComposing(event)) return
		const found = KEYS.find(
			([key, shift]) =>
				event.key.toLowerCase() === key && (shift === null || shift === event.shiftKey),
		)
		if (!found || document.querySelector("dialog:modal")) return
		event.preventDefault()
		actions[found[2]]()
	})
}
