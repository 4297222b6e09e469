/**
 * Starts the page: where the server is, what is remembered, what the browser tells.
 */

import { Chat } from "./chat.js"
import { View } from "./view.js"

const KEY = "repartee.key"
const PENDING = "repartee.pending."

/**
 * The session is in the address, so that reload, bookmark and a second device find it; the part
 * after # is never sent or logged. Unsent turns and the key stay in the tab.
 * @type {Memory}
 */
const memory = {
	get sessionId() {
		return location.hash.slice(1) || null
	},
	set sessionId(id) {
		if (id !== this.sessionId) history.replaceState(null, "", addressOf(id))
	},
	visit(id) {
		if (id !== this.sessionId) history.pushState(null, "", addressOf(id))
	},
	pending(id) {
		return JSON.parse(sessionStorage.getItem(PENDING + (id ?? "")) ?? "null")
	},
	keep(id, pending) {
		if (pending) sessionStorage.setItem(PENDING + (id ?? ""), JSON.stringify(pending))
		else sessionStorage.removeItem(PENDING + (id ?? ""))
	},
	get key() {
		return sessionStorage.getItem(KEY)
	},
	set key(key) {
		if (key === null) sessionStorage.removeItem(KEY)
		else sessionStorage.setItem(KEY, key)
	},
}

function addressOf(id) {
	return id ? `#${id}` : location.pathname + location.search
}

function fetchModels(key) {
	return fetch("/v1/models", { headers: key ? { authorization: `Bearer ${key}` } : {} })
}

async function isKeyRefused(key) {
	try {
		return (await fetchModels(key)).status === 401
	} catch {
		// Not reachable: nothing to say about keys.
		return false
	}
}

/** How many tokens a model reads and writes at most; null if the server does not say. */
async function contextWindow(model) {
	const { data } = await (await fetchModels(memory.key)).json()
	return data?.find(({ id }) => id === model)?.context_window ?? null
}

const endpoint = new URL("/v1/realtime", location.href)
endpoint.protocol = endpoint.protocol === "https:" ? "wss:" : "ws:"
endpoint.hash = ""

const chat = new Chat({ endpoint: endpoint.href, memory, isKeyRefused })
new View(chat, contextWindow, () => memory.key)
chat.open()

addEventListener("online", () => chat.wake())
document.addEventListener("visibilitychange", () => document.hidden || chat.wake())
addEventListener("offline", () => chat.wake())
addEventListener("popstate", () => chat.show(memory.sessionId))
