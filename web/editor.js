/**
 * A message of the person, changed in its place.
 */

import { tooLong } from "./composer.js"
import { byId, element, isComposing, setText } from "./dom.js"

const BUSY = "Send this when the answer has ended."

/** @param {import("./bubble.js").UserBubble} bubble */
export function openEditor({ element: article, body, foot }, text, onSend, chat) {
	if (article.querySelector("form")) return
	const box = element("textarea", { value: text, dir: "auto", ariaLabel: "Edit your message" })
	box.rows = Math.min(12, text.split("\n").length + Math.ceil(text.length / 60))
	const cancel = element("button", { type: "button", className: "quiet" }, "Cancel")
	const send = element("button", { className: "primary" }, "Send")
	const hint = element("span", { className: "note" }, "What came after it will be replaced.")
	const problem = element("p", { className: "problem-line", role: "alert" })
	const form = element("form", { className: "editor" }, box, hint, cancel, send, problem)
	const close = () => {
		form.remove()
		body.hidden = foot.hidden = false
		byId("input").focus()
	}
	cancel.onclick = close
	form.onsubmit = (event) => {
		event.preventDefault()
		if (box.value.trim() === "") return
		setText(problem, chat.isBusy ? BUSY : tooLong(box.value))
		if (problem.textContent) return
		close()
		onSend(box.value)
	}
	form.onkeydown = (event) => {
		const sends = event.key === "Enter" && event.target === box && !event.shiftKey
		if (isComposing(event) || (event.key !== "Escape" && !sends)) return
		event.preventDefault()
		if (sends) form.requestSubmit()
		else close()
	}
	body.hidden = foot.hidden = true
	article.append(form)
	box.focus()
}
