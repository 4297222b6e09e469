/**
 * What went wrong, in a person's words.
 */

const TEXTS = {
	context_length_exceeded: [
		"context",
		"This conversation no longer fits what the model can read at once.",
		false,
	],
	conversation_already_has_active_response: [
		"busy",
		"Another answer is still running in this chat. Try again when it has ended.",
		true,
	],
	deadline_exceeded: ["server", "The answer took too long, and the server gave up.", true],
}

/**
 * @param {any} error  The server's.
 * @returns {Problem}
 */
export function problemFromError(error) {
	const waitMs = error.retry_after_ms ?? error["repartee.retry_after_ms"] ?? undefined
	const { code, type } = error
	if (Object.hasOwn(TEXTS, code)) {
		const [kind, text, retry] = TEXTS[code]
		return { kind, text, retry }
	}
	if (code === "no_worker") {
		const text = `No model is ready to answer right now. ${waitText(waitMs)}`
		return { kind: "busy", text, retry: true, waitMs }
	}
	if (type === "rate_limit_error" || code === "too_many_connections") {
		return { kind: "busy", text: `The server is busy. ${waitText(waitMs)}`, retry: true, waitMs }
	}
	if (type === "invalid_request_error") {
		const text = `The server refused this: ${error.message ?? "no reason given"}`
		return { kind: "refused", text, retry: false }
	}
	return { kind: "server", text: "Something went wrong on the server.", retry: true, waitMs }
}

function waitText(waitMs) {
	if (!waitMs) return "Try again in a moment."
	const seconds = Math.ceil(waitMs / 1000)
	return `Try again in ${seconds} ${seconds === 1 ? "second" : "seconds"}.`
}

/** @returns {Problem} */
export function cutProblem(text = "The answer was cut off: it reached the length limit.") {
	return { kind: "cut", text, retry: false }
}
