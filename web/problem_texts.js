/**
 * What an error's code means to a person, and what happens next: [kind, text, whether to try
 * again; "wait" when the server says after which time].
 */
export const TEXTS = {
	answer_lost: ["server", "The rest of this answer was lost. Have it written anew.", true],
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
	conversation_full: ["context", "This chat is full. Go on in a new one.", false],
	deadline_exceeded: ["server", "The answer took too long, and the server gave up.", true],
	draining: [
		"busy",
		"The server restarts. This page reconnects by itself; then try again.",
		true,
	],
	no_worker: ["busy", "No model is ready to answer right now.", "wait"],
	redis_unavailable: [
		"busy",
		"The server cannot reach its store right now. What is stored there is safe.",
		"wait",
	],
	storage_full: ["refused", "You have stored all that you may. Delete old chats, then retry.", true],
	worker_died: [
		"server",
		"The machine that wrote this answer failed, and the rest is lost. Have it written anew.",
		true,
	],
	workers_died: [
		"server",
		"Every machine that tried to write this answer failed. Try other words.",
		false,
	],
}
