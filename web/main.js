/**
 * Starts the page: where the server is, what is remembered, and who is told when the tab or the
 * network comes back.
 */

import { Chat } from "./chat.js"
import { View } from "./view.js"

const KEY = "repartee.key"
const PENDING = "repartee.pending"

/**
 * The session is in the address, so that reload, bookmark and a second device find it; the part
 * after # is never sent or logged. Unsent turns and the key stay in the tab.
 * @type {import("./chat.js").Memory}
 */
const memory = {
  get sessionId() {
    return location.hash.slice(1) || null
  },
  set sessionId(id) {
    if (id === this.sessionId) return
    history.replaceState(null, "", id ? `#${id}` : location.pathname + location.search)
  },
  get pending() {
    return JSON.parse(sessionStorage.getItem(PENDING) ?? "null")
  },
  set pending(pending) {
    if (pending) sessionStorage.setItem(PENDING, JSON.stringify(pending))
    else sessionStorage.removeItem(PENDING)
  },
  get key() {
    return sessionStorage.getItem(KEY)
  },
  set key(key) {
    if (key === null) sessionStorage.removeItem(KEY)
    else sessionStorage.setItem(KEY, key)
  },
}

async function isKeyRefused(key) {
  try {
    const headers = key ? { authorization: `Bearer ${key}` } : {}
    const { status } = await fetch("/v1/models", { headers })
    return status === 401
  } catch {
    // Not reachable: nothing to say about keys.
    return false
  }
}

const endpoint = new URL("/v1/realtime", location.href)
endpoint.protocol = endpoint.protocol === "https:" ? "wss:" : "ws:"
endpoint.hash = ""

const chat = new Chat({ endpoint: endpoint.href, memory, isKeyRefused })
new View(chat)
chat.open()

addEventListener("online", () => chat.wake())
document.addEventListener("visibilitychange", () => document.hidden || chat.wake())
addEventListener("hashchange", () => location.reload())
