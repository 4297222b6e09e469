/**
 * Shows arriving text at a steady pace: arrival and display run on two clocks.
 *
 * The pace grows with the backlog, so the display trails by about a third of a second and never
 * by more than `MAX_BEHIND` characters. Graphemes are never split.
 */

/** Hard bound on how far the display may trail, in UTF-16 units. */
export const MAX_BEHIND = 120

const BASE_PER_S = 40
const CATCH_UP_PER_S = 3.5
// After a stall (a slow frame, a sleeping laptop) time does not pile up into one jump.
const MAX_FRAME_MS = 100

const segmenter = new Intl.Segmenter(undefined, { granularity: "grapheme" })

/** The grapheme boundary nearest at or after `at`, from an earlier one; the end counts as one. */
export function boundaryAfter(text, from, at) {
	if (at >= text.length) return text.length
	// Families of emoji run to some 30 units; the slack keeps the last grapheme whole.
	const slice = text.slice(from, at + 64)
	const found = segmenter.segment(slice).containing(at - from)
	const start = from + found.index
	return start === at ? at : start + found.segment.length
}

/**
 * End of the part that may be shown while more can come. The last grapheme waits for its rest
 * (a joiner, a skin tone, a vowel sign), unless it is plain ASCII.
 */
export function settledEnd(text, from) {
	if (from >= text.length || text.charCodeAt(text.length - 1) < 0x80) return text.length
	const tail = Math.max(from, text.length - 64)
	let last = tail
	for (const { index } of segmenter.segment(text.slice(tail))) last = tail + index
	return last
}

export class Typewriter {
	#options
	#text = ""
	#shown = 0
	#budget = 0
	#frame = 0
	#lastAt = 0

	constructor(options) {
		this.#options = {
			requestFrame: (callback) => requestAnimationFrame(callback),
			cancelFrame: (id) => cancelAnimationFrame(id),
			...options,
		}
	}

	/** All the text so far; it may also have been replaced. */
	receive(text) {
		if (!text.startsWith(this.#text.slice(0, this.#shown))) this.#shown = 0
		this.#text = text
		if (this.#options.instant()) this.flush()
		else this.#schedule()
	}

	/** The text is complete: show the rest at once. */
	finish(text) {
		this.#text = text
		this.flush()
	}

	/** Show all that has arrived, now. */
	flush() {
		this.stop()
		this.#shown = this.#text.length
		this.#options.show(this.#text)
	}

	/** No more frames; what is shown stays. */
	stop() {
		if (this.#frame) this.#options.cancelFrame(this.#frame)
		this.#frame = 0
		this.#lastAt = 0
		this.#budget = 0
	}

	#schedule() {
		if (this.#frame || this.#shown >= this.#text.length) return
		this.#frame = this.#options.requestFrame((now) => this.#tick(now))
	}

	#tick(now) {
		this.#frame = 0
		const elapsedMs = this.#lastAt ? Math.min(now - this.#lastAt, MAX_FRAME_MS) : 1000 / 60
		this.#lastAt = now
		const end = settledEnd(this.#text, this.#shown)
		const backlog = end - this.#shown
		this.#budget += ((BASE_PER_S + CATCH_UP_PER_S * backlog) * elapsedMs) / 1000
		const want = Math.max(this.#shown + Math.floor(this.#budget), end - MAX_BEHIND)
		const next = Math.min(boundaryAfter(this.#text, this.#shown, want), end)
		if (next > this.#shown) {
			this.#budget = Math.max(0, this.#budget - (next - this.#shown))
			this.#shown = next
			this.#options.show(this.#text.slice(0, next))
		}
		if (this.#shown < end) this.#schedule()
		// Idle from here: the next arrival starts on a fresh clock.
		else this.#lastAt = this.#budget = 0
	}
}
