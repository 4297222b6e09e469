/**
 * One WebSocket kept open: backoff with jitter, a heartbeat watchdog, an honest state.
 *
 * No DOM. The owner gives the address of each try (so that it can carry a resume cursor), and
 * calls `wake()` when the network or the tab comes back.
 */

const FIRST_RETRY_MS = 500
const MAX_RETRY_MS = 15_000
const OPEN_TIMEOUT_MS = 10_000
const QUIET_MS = 15_000
const ANSWER_WITHIN_MS = 10_000

/** Codes after which a new try would end the same way. */
export function isFinal(code) {
	return code === 1000 || code === 1008 || (code >= 4000 && code <= 4999)
}

/**
 * Wait before a try, in ms: doubling, capped, with a quarter of jitter.
 * @param {number} tries
 * @param {number} random In [0, 1).
 */
export function backoffMs(tries, random) {
	const full = Math.min(MAX_RETRY_MS, FIRST_RETRY_MS * 2 ** tries)
	return full * (0.75 + 0.25 * random)
}

export class Connection {
	#options
	/** @type {any} */
	#socket = null
	#state = /** @type {ConnectionState} */ ({ phase: "idle" })
	#tries = 0
	#holdOffMs = 0
	#retryTimer = 0
	#watchdog = 0
	#pinged = false

	/** @param {ConnectionOptions} options */
	constructor(options) {
		this.#options = {
			...options,
			WebSocket: options.WebSocket ?? WebSocket,
			random: options.random ?? Math.random,
		}
	}

	get state() {
		return this.#state
	}

	/** Open, or open anew: a socket that is there ends first. */
	open() {
		this.#drop()
		clearTimeout(this.#retryTimer)
		const { WebSocket, url, protocols } = this.#options
		const socket = new WebSocket(url(), protocols())
		this.#socket = socket
		let opened = false
		this.#setState({ phase: "connecting" })
		this.#watch(OPEN_TIMEOUT_MS)
		socket.onopen = () => {
			opened = true
			this.#pinged = false
			this.#watch(QUIET_MS)
			this.#setState({ phase: "open" })
		}
		socket.onmessage = ({ data }) => this.#receive(data)
		socket.onclose = ({ code, reason }) => this.#ended(code, reason, opened)
	}

	/** End for good; `open()` starts again. */
	close() {
		clearTimeout(this.#retryTimer)
		this.#drop()
		this.#setState({ phase: "idle" })
	}

	/**
	 * @param {object} event
	 * @returns {boolean} Whether it was handed to an open socket.
	 */
	send(event) {
		if (this.#state.phase !== "open") return false
		this.#socket.send(JSON.stringify(event))
		return true
	}

	/** The server asked for this much patience before the next try. */
	holdOff(ms) {
		this.#holdOffMs = ms
	}

	/** The network or the tab is back: try at once if waiting, prove the line if open. */
	wake() {
		if (this.#state.phase === "waiting") this.open()
		else if (this.#state.phase === "open") this.#probe()
	}

	#receive(data) {
		this.#pinged = false
		this.#watch(QUIET_MS)
		let event
		try {
			event = JSON.parse(data)
		} catch {
			// Not the protocol: nothing after it can be trusted.
			this.#lose("the server sent something that is not JSON")
			return
		}
		// A refused session opens too; only an event proves that we are taken.
		if (event.type !== "error") this.#tries = 0
		this.#options.onEvent(event)
	}

	#watch(ms) {
		clearTimeout(this.#watchdog)
		this.#watchdog = setTimeout(() => this.#silent(), ms)
	}

	#silent() {
		if (this.#state.phase === "open" && !this.#pinged) this.#probe()
		else this.#lose("the server stopped answering")
	}

	#probe() {
		this.#pinged = true
		this.#watch(ANSWER_WITHIN_MS)
		this.send(this.#options.ping())
	}

	#lose(reason) {
		this.#drop()
		this.#ended(1006, reason, true)
	}

	#drop() {
		clearTimeout(this.#watchdog)
		const socket = this.#socket
		this.#socket = null
		if (!socket) return
		socket.onopen = socket.onmessage = socket.onclose = null
		socket.close()
	}

	#ended(code, reason, opened) {
		clearTimeout(this.#watchdog)
		this.#socket = null
		const end = { code, reason, opened }
		const goodbyeTooEarly = code === 1000 && this.#options.unfinished()
		if (isFinal(code) && !goodbyeTooEarly) {
			this.#setState({ phase: "closed", ...end })
			return
		}
		const wait = Math.max(backoffMs(this.#tries, this.#options.random()), this.#holdOffMs)
		this.#tries += 1
		this.#holdOffMs = 0
		this.#retryTimer = setTimeout(() => this.open(), wait)
		this.#setState({ phase: "waiting", retryAt: Date.now() + wait, ...end })
	}

	#setState(state) {
		this.#state = state
		this.#options.onState(state)
	}
}
