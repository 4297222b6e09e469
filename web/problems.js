/**
 * What went wrong, in a person's words. Most of them come once something is typed.
 */

let texts = {}

/** Fetch the words. */
export async function loadTexts() {
	try {
		texts = (await import("./problem_texts.js")).TEXTS
	} catch {
		// The server is away.
	}
}

/**
 * @param {any} error  The server's.
 * @returns {Problem}
 */
export function problemFromError(error) {
	const waitMs = error.retry_after_ms ?? error["repartee.retry_after_ms"] ?? undefined
	const [kind, text, retry] = wordsFor(error)
	const full = retry === "wait" ? `${text} ${waitText(waitMs)}` : text
	return { kind, text: full, retry: retry !== false, waitMs, error }
}

function wordsFor({ code, type, message = "no reason given" }) {
	if (Object.hasOwn(texts, code)) return texts[code]
	if (type === "rate_limit_error" || code === "too_many_connections")
		return ["busy", "The server is busy.", "wait"]
	if (type === "invalid_request_error")
		return ["refused", `The server refused this: ${message}`, false]
	return ["server", "Something went wrong on the server.", true]
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
