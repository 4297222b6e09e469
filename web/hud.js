/**
 * A line of figures about the latest answer, for who wants to see them.
 */

import { byId, element } from "./dom.js"
import { charsPerToken } from "./estimate.js"
import { tokensPerSecond } from "./stats.js"

export class Hud {
	#line = byId("hud")
	#last = ""

	update(state) {
		const figures = figuresOf(state)
		const text = figures.join("\n")
		if (text === this.#last) return
		this.#last = text
		const pairs = figures.map(([name, value]) =>
			element("div", {}, element("dt", { textContent: name }), element("dd", { textContent: value })),
		)
		this.#line.replaceChildren(...pairs)
	}
}

/** Names and values; what is not known is a dash. */
function figuresOf({ turn, tier, reconnects, conversation }) {
	const rate = turn && tokensPerSecond(turn, charsPerToken(conversation.spent))
	const first = turn?.firstAt == null ? null : (turn.firstAt - turn.askedAt) / 1000
	const usage = turn?.usage
	const cached = usage?.input_token_details?.cached_tokens
	const figures = [
		["first word", first === null ? "–" : `${first.toFixed(2)} s`],
		["tokens/s", rate === null ? "–" : `${usage ? "" : "about "}${rate.toFixed(rate < 10 ? 1 : 0)}`],
		["prompt", usage ? `${usage.input_tokens} (${cached} cached)` : "–"],
		["answer", usage ? String(usage.output_tokens) : "–"],
		["reconnects", String(reconnects)],
	]
	if (turn?.ahead != null) figures.splice(1, 0, ["ahead", String(turn.ahead)])
	if (turn?.queuedMs != null) figures.splice(1, 0, ["waited", `${(turn.queuedMs / 1000).toFixed(2)} s`])
	if (tier !== null) figures.push(["tier", tier])
	return figures
}
