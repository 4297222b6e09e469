/**
 * What went wrong, in a person's words.
 *
 * @typedef {object} Problem  What to tell the person.
 * @property {string} kind     Stable name: busy, context, cut, key, lost, refused, server, unanswered.
 * @property {string} text     One or two sentences, in plain words.
 * @property {boolean} retry   Whether sending again may help.
 * @property {number} [waitMs] How long the server asks to wait first.
 */

/**
 * The server's error in a person's words.
 * @param {any} error
 * @returns {Problem}
 */
export function problemFromError(error) {
  const waitMs = error.retry_after_ms ?? error["repartee.retry_after_ms"] ?? undefined
  switch (error.code) {
    case "context_length_exceeded":
      return {
        kind: "context",
        text: "This conversation no longer fits what the model can read at once. Start a new chat, or send a shorter message.",
        retry: false,
      }
    case "overloaded":
    case "rate_limit_exceeded":
      return { kind: "busy", text: `The server is busy. ${waitText(waitMs)}`, retry: true, waitMs }
    case "unavailable":
      return {
        kind: "busy",
        text: `No model is ready to answer right now. ${waitText(waitMs)}`,
        retry: true,
        waitMs,
      }
    case "conversation_already_has_active_response":
      return {
        kind: "busy",
        text: "Another answer is still running in this chat. Try again when it has ended.",
        retry: true,
      }
    case "deadline_exceeded":
      return {
        kind: "server",
        text: "The answer took too long, and the server gave up.",
        retry: true,
      }
  }
  if (error.type === "rate_limit_error") {
    return { kind: "busy", text: `The server is busy. ${waitText(waitMs)}`, retry: true, waitMs }
  }
  if (error.type === "invalid_request_error") {
    return {
      kind: "refused",
      text: `The server refused this: ${error.message ?? "no reason given"}`,
      retry: false,
    }
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
