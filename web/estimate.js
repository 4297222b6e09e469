/**
 * How many tokens a text will be, about: the server counts, this learns from its counts.
 */

import { charsIn } from "./conversation.js"

// English prose, until something is known; weighs as much as this many tokens.
const USUAL_CHARS = 4
const USUAL_TOKENS = 400

export function charsPerToken(spent) {
	const { tokens, chars } = spent ?? { tokens: 0, chars: 0 }
	return (chars + USUAL_CHARS * USUAL_TOKENS) / (tokens + USUAL_TOKENS)
}

/**
 * @param {Conversation} conversation
 * @param {string} text  What is typed.
 * @returns {{text: number, all: number}} Tokens of the text, and of the prompt with it.
 */
export function estimate({ spent, messages, settings }, text) {
	const length = charsPerToken(spent)
	const before = charsIn(messages) + (settings?.instructions.length ?? 0)
	return {
		text: Math.ceil(text.length / length),
		all: Math.ceil((before + text.length) / length),
	}
}
