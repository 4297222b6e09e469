/**
 * One question in a dialog: a name, or something to confirm.
 */

import { element } from "./dom.js"

/**
 * @param {{title: string, text?: string, yes: string, name?: string}} question
 *   With a name, it may be changed; without, they only agree.
 * @returns {Promise<string|null>} The name (or ""); null if they thought better of it.
 */
export function ask({ title, text, yes, name }) {
	const asksName = name !== undefined
	const input = element("input", { value: name ?? "", required: true, maxLength: 200, dir: "auto" })
	input.pattern = ".*\\S.*"
	const form = element(
		"form",
		{ method: "dialog" },
		element("h2", { id: "ask-title" }, title),
		...(text ? [element("p", {}, text)] : []),
		...(asksName ? [element("label", {}, "Name", input)] : []),
		element(
			"div",
			{ className: "buttons" },
			element("button", { type: "button", className: "quiet", dataset: { close: "" } }, "Cancel"),
			element("button", { className: "primary" }, yes),
		),
	)
	const dialog = element("dialog", {}, form)
	dialog.setAttribute("aria-labelledby", "ask-title")
	document.body.append(dialog)
	dialog.showModal()
	if (asksName) input.select()
	return new Promise((resolve) => {
		form.onsubmit = (event) => {
			event.preventDefault()
			dialog.close("yes")
		}
		dialog.onclose = () => {
			dialog.remove()
			resolve(dialog.returnValue === "yes" ? input.value.trim() : null)
		}
	})
}
