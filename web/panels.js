/**
 * What is beside the chat, each loaded when it is first wanted: the list of chats, the settings,
 * the figures, the keys, the editor of a message.
 */

import { byId, element } from "./dom.js"
import { listenToKeys } from "./shortcuts.js"

/** Where this browser remembers what is open. */
const SHOWN = { chats: "repartee.chats", figures: "repartee.hud" }

const WIDE = matchMedia("(min-width: 60rem)")

export class Panels {
	#chat
	#key
	/** @type {Promise<any>|null} */
	#style = null
	/** @type {import("./chats.js").Chats|null} */
	#chats = null
	/** @type {import("./hud.js").Hud|null} */
	#hud = null
	/** A browser remembers a module that it could not load; under another name it tries again. */
	#failures = 0

	/**
	 * @param {() => string|null} key  The API key.
	 * @param {{newChat: () => void, copyAnswer: () => void}} actions  Behind keys, of the view.
	 */
	constructor(chat, key, actions) {
		this.#chat = chat
		this.#key = key
		const open = {
			chats: () => this.toggleChats(),
			figures: () => this.#toggleFigures(),
			settings: () => this.#openSettings(),
			keys: () => this.#openKeys(),
		}
		byId("toggle-chats").addEventListener("click", open.chats)
		byId("toggle-hud").addEventListener("click", open.figures)
		byId("open-settings").addEventListener("click", open.settings)
		byId("open-help").addEventListener("click", open.keys)
		listenToKeys({ ...open, ...actions })
		if (WIDE.matches && localStorage.getItem(SHOWN.chats) === "yes") this.#showChats(true)
		if (localStorage.getItem(SHOWN.figures) === "yes") this.#showFigures(true)
	}

	/** Whether the list of chats covers the chat. */
	get hasDrawer() {
		return this.#chats?.isDrawer ?? false
	}

	/** What is listed, or which of them is shown, may have changed. */
	refreshChats() {
		this.#chats?.refresh()
	}

	update(state) {
		this.#hud?.update(state)
	}

	async toggleChats() {
		const open = byId("chats").hidden
		if (WIDE.matches) localStorage.setItem(SHOWN.chats, open ? "yes" : "no")
		await this.#showChats(open)
		byId(open ? "chats-search" : "toggle-chats").focus()
	}

	async edit(bubble, text, onSend) {
		const module = await this.#load("editor.js")
		module?.openEditor(bubble, text, onSend, this.#chat)
	}

	async #showChats(open) {
		const module = await this.#load("chats.js")
		if (!module) return
		this.#chats ??= new module.Chats({
			key: this.#key,
			wide: WIDE,
			current: () => this.#chat.place,
			onOpen: (id) => this.#chat.show(id),
			onClose: () => this.toggleChats(),
		})
		this.#chats.show(open)
	}

	#toggleFigures() {
		const shown = byId("hud").hidden
		localStorage.setItem(SHOWN.figures, shown ? "yes" : "no")
		return this.#showFigures(shown)
	}

	async #showFigures(shown) {
		const module = await this.#load("hud.js")
		if (!module) return
		this.#hud ??= new module.Hud()
		this.#hud.update(this.#chat.store.get())
		byId("hud").hidden = !shown
		byId("toggle-hud").ariaPressed = String(shown)
	}

	async #openSettings() {
		const module = await this.#load("settings.js")
		const { settings } = this.#chat.store.get().conversation
		module?.openSettings(settings, (changed) => this.#chat.configure(changed))
	}

	async #openKeys() {
		const module = await this.#load("keys.js")
		module?.showKeys()
	}

	#loadStyle() {
		return new Promise((resolve, reject) => {
			const link = element("link", { rel: "stylesheet", href: "panels.css", onload: resolve })
			link.onerror = () => {
				link.remove()
				this.#style = null
				reject(new Error("no panels.css"))
			}
			document.head.append(link)
		})
	}

	/** @returns {Promise<any>} Null if the server cannot be reached. */
	async #load(file) {
		try {
			await (this.#style ??= this.#loadStyle())
			return await import(`./${file}${this.#failures ? `?${this.#failures}` : ""}`)
		} catch {
			this.#failures++
			this.#chat.tell("The server cannot be reached to open that. Try again in a moment.")
			return null
		}
	}
}
