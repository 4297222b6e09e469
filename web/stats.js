/**
 * What the latest answer took: times by this page's clock, counts by the server's word.
 *
 * No DOM, no clock: `now` is in ms, from any zero.
 */

export function newTurn(now) {
	return { askedAt: now, firstAt: null, lastAt: null, chars: 0, ahead: null, usage: null, queuedMs: null }
}

/** @param {any} event  From the server. */
export function noteEvent(turn, event, now) {
	switch (event.type) {
		case "response.created": {
			// Another tab asked, if the latest turn has begun already.
			const fresh = turn && turn.lastAt === null ? turn : newTurn(now)
			return { ...fresh, ahead: event.response["repartee.ahead"] ?? null }
		}
		case "response.output_text.delta":
			if (!turn) return turn
			return {
				...turn,
				firstAt: turn.firstAt ?? now,
				lastAt: now,
				chars: turn.chars + event.delta.length,
			}
		case "response.done":
			return (
				turn && {
					...turn,
					lastAt: now,
					usage: event.response.usage ?? null,
					queuedMs: event["repartee.queued_ms"] ?? null,
				}
			)
		default:
			return turn
	}
}

/** Tokens a second after the first text: the server's count, or while it runs an estimate. */
export function tokensPerSecond({ firstAt, lastAt, chars, usage }, charsPerToken) {
	if (firstAt === null || lastAt === null || lastAt <= firstAt) return null
	const tokens = usage?.output_tokens ?? chars / charsPerToken
	return ((tokens - 1) * 1000) / (lastAt - firstAt)
}
