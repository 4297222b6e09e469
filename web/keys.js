/**
 * The dialog that lists all keys.
 */

import { element } from "./dom.js"
import { IS_APPLE, KEYS } from "./shortcuts.js"

const OTHERS = [
	[["Enter"], "Send the message"],
	[["Shift", "Enter"], "Start a new line"],
	[["↑"], "Edit your last message, from an empty box"],
	[["Esc"], "Stop the answer, or close what is open"],
]

export function showKeys() {
	const ctrl = IS_APPLE ? "⌘" : "Ctrl"
	const ours = KEYS.map(([key, shift, , text]) => [
		[ctrl, ...(shift ? ["Shift"] : []), key.toUpperCase()],
		text,
	])
	const dialog = element(
		"dialog",
		{ onclose: () => dialog.remove() },
		element("h2", { id: "keys-title" }, "Keys"),
		element("dl", { className: "keys" }, ...[...OTHERS, ...ours].flatMap(line)),
		element(
			"div",
			{ className: "buttons" },
			element("button", { className: "primary", dataset: { close: "" } }, "Close"),
		),
	)
	dialog.setAttribute("aria-labelledby", "keys-title")
	dialog.setAttribute("closedby", "any")
	document.body.append(dialog)
	dialog.showModal()
}

function line([keys, text]) {
	const parts = keys.flatMap((key, i) => [...(i ? [" + "] : []), element("kbd", {}, key)])
	return [element("dt", {}, ...parts), element("dd", {}, text)]
}
