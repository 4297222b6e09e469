/**
 * The list of chats: a panel beside the chat, or a drawer over it on a small screen.
 */

import { announce, byId, element, setText } from "./dom.js"
import { Sessions } from "./sessions.js"

const SEARCH_PAUSE_MS = 200
const NAMELESS = "New chat"

export class Chats {
	#options
	#sessions
	#panel = byId("chats")
	#list = byId("chats-list")
	#search = byId("chats-search")
	#menu = byId("chat-menu")
	#isOpen = false
	#next = null
	#loads = 0
	#timer = 0
	/** @type {SessionEntry|null} The one whose menu is open. */
	#chosen = null

	constructor(options) {
		this.#options = options
		this.#sessions = new Sessions(options.key)
		byId("close-chats").addEventListener("click", options.onClose)
		byId("scrim").addEventListener("click", options.onClose)
		byId("chats-more").addEventListener("click", () => this.#load(this.#next))
		this.#search.addEventListener("input", () => {
			clearTimeout(this.#timer)
			this.#timer = setTimeout(() => this.#load(), SEARCH_PAUSE_MS)
		})
		// It only empties a search.
		this.#search.onkeydown = (event) => {
			if (event.key === "Escape" && this.#search.value) event.stopPropagation()
		}
		this.#list.addEventListener("click", (event) => this.#onClick(event))
		this.#menu.addEventListener("click", (event) => this.#onMenu(event))
		options.wide.addEventListener("change", () => this.show(this.#isOpen))
	}

	/** Whether it covers the chat. */
	get isDrawer() {
		return this.#isOpen && !this.#options.wide.matches
	}

	show(open) {
		this.#isOpen = open
		this.#panel.hidden = !open
		byId("scrim").hidden = !this.isDrawer
		byId("room").inert = this.isDrawer
		byId("toggle-chats").ariaExpanded = String(open)
		this.refresh()
	}

	/** What is listed, or which of them is shown, may have changed. */
	refresh() {
		if (this.#isOpen) this.#load()
	}

	async #load(after = null) {
		const load = ++this.#loads
		const query = this.#search.value.trim()
		try {
			const { entries, next } = await this.#sessions.list(query, after)
			// A later one has been asked for.
			if (load !== this.#loads) return
			this.#next = next
			this.#show(entries, after !== null)
			this.#say(this.#list.children.length > 0 ? "" : query ? "Nothing found." : "No chats yet.")
		} catch (error) {
			if (load === this.#loads) this.#say(`The chats could not be listed. ${error.message}`)
		}
	}

	#show(entries, behind) {
		const focused = this.#list.contains(document.activeElement)
			? document.activeElement.getAttribute("data-id")
			: null
		const rows = entries.map((entry) => this.#row(entry))
		if (behind) this.#list.append(...rows)
		else this.#list.replaceChildren(...rows)
		byId("chats-more").hidden = this.#next === null
		if (focused) this.#list.querySelector(`[data-id="${CSS.escape(focused)}"]`)?.focus()
	}

	#row(entry) {
		const title = entry.title || NAMELESS
		const link = element(
			"a",
			{ href: `#${entry.id}`, dataset: { id: entry.id } },
			element("span", { dir: "auto", textContent: title }),
			element("time", { textContent: when(entry.updatedAt) }),
		)
		if (entry.excerpt) link.append(element("small", { dir: "auto", textContent: entry.excerpt }))
		if (entry.id === this.#options.current()) link.ariaCurrent = "page"
		const more = element("button", {
			className: "icon",
			textContent: "⋯",
			ariaLabel: `More for ${title}`,
		})
		more.onclick = () => this.#openMenu(entry, more)
		return element("li", {}, link, more)
	}

	#onClick(event) {
		const link = event.target.closest("a")
		if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return
		event.preventDefault()
		this.#options.onOpen(link.dataset.id)
		if (this.isDrawer) this.show(false)
		byId("input").focus()
	}

	#openMenu(entry, button) {
		this.#chosen = entry
		const { bottom, right } = button.getBoundingClientRect()
		this.#menu.showPopover()
		const top = Math.min(bottom, innerHeight - this.#menu.offsetHeight - 8)
		this.#menu.style.top = `${top}px`
		this.#menu.style.left = `${Math.max(8, right - this.#menu.offsetWidth)}px`
		this.#menu.querySelector("button").focus()
	}

	async #onMenu(event) {
		const action = event.target.closest("button")?.dataset.do
		const entry = this.#chosen
		if (!action || !entry) return
		this.#menu.hidePopover()
		try {
			if (action === "rename") await this.#rename(entry)
			else if (action === "delete") await this.#delete(entry)
			else await this.#export(entry, action)
		} catch (error) {
			this.#say(`That did not work. ${error.message}`)
			announce(`That did not work. ${error.message}`)
		}
	}

	async #rename({ id, title }) {
		const { ask } = await import("./ask.js")
		const name = await ask({ title: "Rename chat", yes: "Rename", name: title })
		if (name === null || name === title) return
		await this.#sessions.rename(id, name)
		announce("Chat renamed.")
		await this.#load()
	}

	async #delete({ id, title }) {
		const { ask } = await import("./ask.js")
		const text = `“${title || NAMELESS}” and all its messages will be gone for good.`
		if ((await ask({ title: "Delete this chat?", text, yes: "Delete" })) === null) return
		await this.#sessions.delete(id)
		announce("Chat deleted.")
		if (id === this.#options.current()) this.#options.onOpen(null)
		await this.#load()
		this.#search.focus()
	}

	async #export({ id, title }, format) {
		const blob = await this.#sessions.export(id, format)
		const name = (title || NAMELESS).replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "")
		const href = URL.createObjectURL(blob)
		element("a", { href, download: `${name}.${format === "json" ? "json" : "md"}` }).click()
		// The browser has begun to read it by then.
		setTimeout(() => URL.revokeObjectURL(href), 10_000)
	}

	#say(text) {
		setText(byId("chats-problem"), text)
	}
}

/** @param {number} seconds Unix time. */
function when(seconds) {
	const date = new Date(seconds * 1000)
	const today = date.toDateString() === new Date().toDateString()
	return today
		? date.toLocaleTimeString("en", { hour: "2-digit", minute: "2-digit", hour12: false })
		: date.toLocaleDateString("en", { day: "numeric", month: "short" })
}
