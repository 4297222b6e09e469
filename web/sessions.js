/**
 * The conversations that the server keeps: listed, renamed, deleted, exported over HTTP.
 */

const PATH = "/v1/sessions"
const PAGE_SIZE = 30

export class Sessions {
	#key

	/** @param {() => string|null} key The API key, if the server asks for one. */
	constructor(key) {
		this.#key = key
	}

	/**
	 * @param {string} query  Words to look for; empty finds all.
	 * @param {string|null} after  `next` of the page before.
	 */
	async list(query, after = null) {
		const search = new URLSearchParams({ limit: String(PAGE_SIZE) })
		if (query) search.set("query", query)
		if (after) search.set("after", after)
		const { data, next_after: next } = await this.#json(`?${search}`)
		const entries = data.map(({ id, title, updated_at: updatedAt, match }) => ({
			id,
			title: title ?? "",
			updatedAt,
			excerpt: match?.excerpt ?? "",
		}))
		return { entries, next }
	}

	async rename(id, title) {
		await this.#fetch(`/${id}`, "POST", { title })
	}

	async delete(id) {
		await this.#fetch(`/${id}`, "DELETE")
	}

	async export(id, format) {
		return (await this.#fetch(`/${id}/export?format=${format}`)).blob()
	}

	async #json(path) {
		return (await this.#fetch(path)).json()
	}

	async #fetch(path, method = "GET", body = undefined) {
		const key = this.#key()
		const headers = key ? { authorization: `Bearer ${key}` } : {}
		if (body) headers["content-type"] = "application/json"
		const response = await fetch(PATH + path, { method, headers, body: JSON.stringify(body) })
		if (response.ok) return response
		const { error } = await response.json().catch(() => ({ error: null }))
		throw new Error(error?.message ?? `The server answered ${response.status}.`)
	}
}
