// The operator's page: asks for `/ops/state` each second and shows what it means.

import { Plots, formats } from "./plots.js"
import { reading } from "./readings.js"

const PERIOD_MS = 1000
const WINDOW_S = 10 // percentiles and rates are over as much
const TOKEN = "repartee.ops-token"

const at = (id) => document.getElementById(id)
const plots = new Plots(at("plots"))
const snapshots = []
let token = sessionStorage.getItem(TOKEN) ?? ""
let timer = 0

class Refused extends Error {}

async function call(path, method = "GET") {
	const headers = token ? { authorization: `Bearer ${token}` } : {}
	const answer = await fetch(path, { method, headers, cache: "no-store" })
	const body = await answer.json()
	if (answer.status === 401) throw new Refused()
	if (!answer.ok) throw new Error(body.error.message)
	return body
}

function cell(row, text, className = "") {
	const made = row.appendChild(document.createElement("td"))
	made.textContent = text
	made.className = className
	return made
}

const short = (id) => id.slice(0, 10)
const span = (seconds) =>
	seconds < 120 ? `${seconds.toFixed(0)} s` : seconds < 7200 ? `${(seconds / 60).toFixed(0)} min` : `${(seconds / 3600).toFixed(1)} h`

/** Rows by id, made once and kept, so that a focused button stays where it is. */
class Table {
	constructor(body, fill) {
		this.body = body
		this.fill = fill
		this.rows = new Map()
	}

	show(entries) {
		const seen = new Set(entries.map((entry) => entry.id))
		for (const [id, row] of this.rows)
			if (!seen.has(id)) {
				row.remove()
				this.rows.delete(id)
			}
		for (const entry of entries) {
			let row = this.rows.get(entry.id)
			if (row === undefined) {
				row = this.body.appendChild(document.createElement("tr"))
				row.dataset.id = entry.id
				this.rows.set(entry.id, row)
			}
			this.fill(row, entry)
		}
	}
}

function setCells(row, texts) {
	while (row.cells.length < texts.length) cell(row, "")
	texts.forEach((text, index) => {
		if (row.cells[index].textContent !== text) row.cells[index].textContent = text
	})
}

const workers = new Table(at("workers"), (row, worker) => {
	const isFirst = row.cells.length === 0
	setCells(row, [
		short(worker.id), worker.model, worker.status, String(worker.running),
		String(worker.waiting), formats.percent(worker.used_blocks / worker.blocks),
		formats.number(worker.decode_tokens_per_s), `${worker.step_age_s.toFixed(1)} s`,
	])
	row.cells[2].dataset.state = worker.status
	if (isFirst) {
		const button = cell(row, "").appendChild(document.createElement("button"))
		button.type = "button"
		button.textContent = "Drain"
		button.setAttribute("aria-label", `Drain worker ${short(worker.id)}`)
		button.addEventListener("click", () => drain(worker.id))
	}
	row.querySelector("button").disabled = worker.status !== "live"
})

const gateways = new Table(at("gateways"), (row, gateway) => {
	const running = Object.values(gateway.running).reduce((sum, count) => sum + count, 0)
	setCells(row, [
		short(gateway.id), gateway.draining ? "draining" : "live", String(gateway.connections),
		String(running), formats.bytes(gateway.pending_bytes), span(gateway.up_s),
	])
	row.cells[1].dataset.state = gateway.draining ? "draining" : "live"
})

async function drain(id) {
	const dialog = at("confirm")
	at("confirm-text").textContent =
		`Drain worker ${short(id)}? It takes nothing new, ends or hands over its answers, and stops. `
		+ "Whoever started it may start another."
	dialog.returnValue = "no"
	dialog.showModal()
	await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }))
	if (dialog.returnValue !== "yes") return
	try {
		await call(`/ops/workers/${encodeURIComponent(id)}/drain`, "POST")
	} catch (error) {
		tell(`Worker ${short(id)} was not drained: ${error.message}`, true)
	}
}

function tell(text, isBad = false) {
	const state = at("state")
	if (state.textContent !== text) state.textContent = text
	state.className = isBad ? "bad" : ""
}

function showTiles(now) {
	const tiles = [
		["First token, median", formats.ms(worst(now.first50))],
		["First token, p99", formats.ms(worst(now.first99))],
		["Tokens a second", formats.number(now.sampledPerS)],
		["Running", formats.count(now.batch)],
		["Waiting", formats.count(now.waiting)],
		["KV used", formats.percent(now.kvUsed)],
		["Sockets", formats.count(now.connections)],
		["Failed a second", formats.number(now.failedPerS)],
	]
	const list = at("tiles")
	while (list.children.length < tiles.length) {
		const tile = list.appendChild(document.createElement("div"))
		tile.append(document.createElement("dt"), document.createElement("dd"))
	}
	tiles.forEach(([name, value], index) => {
		list.children[index].children[0].textContent = name
		list.children[index].children[1].textContent = value
	})
}

/** The worst tier's, which is what an operator looks for. */
const worst = (byTier) => {
	const known = Object.values(byTier).filter((value) => value !== null)
	return known.length ? Math.max(...known) : null
}

function show(snapshot) {
	for (const gateway of snapshot.gateways) gateway.up_s = snapshot.now - gateway.started_at
	snapshots.push(snapshot)
	while (snapshots.length > 1 && snapshot.now - snapshots[0].now > WINDOW_S) snapshots.shift()
	const now = reading(snapshot, snapshots[0])
	at("door").hidden = true
	at("view").hidden = false
	if (snapshots.length > 1) plots.add(now)
	showTiles(now)
	workers.show(snapshot.workers)
	gateways.show(snapshot.gateways)
	const live = snapshot.workers.filter((worker) => worker.status === "live").length
	const counts = `Gateways: ${snapshot.gateways.length}. Workers live: ${live} of ${snapshot.workers.length}.`
	tell(counts, live === 0)
}

async function tick() {
	try {
		show(await call("/ops/state"))
	} catch (error) {
		if (error instanceof Refused) {
			ask()
			return
		}
		tell(`No reading: ${error.message}`, true)
	}
	timer = setTimeout(tick, PERIOD_MS)
}

function ask() {
	const wasShown = token !== ""
	token = ""
	sessionStorage.removeItem(TOKEN)
	at("view").hidden = true
	at("door").hidden = false
	at("refusal").textContent = wasShown ? "That is not the token." : ""
	tell("Locked")
	at("token").focus()
}

at("door").addEventListener("submit", (event) => {
	event.preventDefault()
	token = at("token").value.trim()
	sessionStorage.setItem(TOKEN, token)
	at("token").value = ""
	clearTimeout(timer)
	tick()
})
addEventListener("resize", () => plots.draw())
document.addEventListener("visibilitychange", () => plots.draw())

tick()
