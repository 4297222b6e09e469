// The plots: which lines of a reading each shows, drawn by uPlot, told in text as well.

import { TIERS } from "./readings.js"

const KEPT = 900 // readings, one a second

const ms = (value) => {
	if (value == null) return "–"
	return value < 1 ? `${(value * 1000).toFixed(value < 0.1 ? 1 : 0)} ms` : `${value.toFixed(1)} s`
}
const percent = (value) => (value == null ? "–" : `${(value * 100).toFixed(0)} %`)
const count = (value) => (value == null ? "–" : value.toFixed(Number.isInteger(value) ? 0 : 1))
const number = (value) => (value == null ? "–" : value >= 100 ? value.toFixed(0) : value.toFixed(1))
const bytes = (value) =>
	value == null ? "–" : value < 1024 ? `${value} B` : `${(value / 1024).toFixed(0)} KiB`

const tiers = (field) => TIERS.map((tier) => [tier, (reading) => reading[field][tier] ?? null])

const PLOTS = [
	["Time to first token, p99", ms, tiers("first99")],
	["Time to first token, median", ms, tiers("first50")],
	["Gap between chunks, p99", ms, tiers("gap99")],
	["Wait before running, p99", ms, tiers("queue99")],
	["Answers running", count, tiers("running")],
	["Tokens a second", number, [
		["generated", (reading) => reading.sampledPerS],
		["prompt", (reading) => reading.promptPerS],
	]],
	["Batch and queue", count, [
		["running", (reading) => reading.batch],
		["waiting", (reading) => reading.waiting],
	]],
	["KV cache", percent, [
		["used", (reading) => reading.kvUsed],
		["cached", (reading) => reading.kvCached],
		["kept for chats", (reading) => reading.kvRetained],
	]],
	["Host memory for KV", bytes, [["packed", (reading) => reading.hostBytes]]],
	["Prompt found in the cache", percent, [["hits", (reading) => reading.hits]]],
	["Guesses accepted", percent, [["accepted", (reading) => reading.accepted]]],
	["Suspensions a second", number, [["suspended", (reading) => reading.suspended]]],
	["Sockets", count, [["open", (reading) => reading.connections]]],
	["Bytes for slow readers", bytes, [["waiting", (reading) => reading.pendingBytes]]],
	["Answers a second", number, [
		["ended", (reading) => reading.answersPerS],
		["failed", (reading) => reading.failedPerS],
	]],
]

/** A colour as a canvas takes it: what it comes to in this scheme. */
function colour(name) {
	const probe = document.body.appendChild(document.createElement("span"))
	probe.style.color = `var(${name})`
	const found = getComputedStyle(probe).color
	probe.remove()
	return found
}

class Plot {
	constructor(parent, [title, format, lines]) {
		this.lines = lines
		this.format = format
		const figure = parent.appendChild(document.createElement("figure"))
		const caption = figure.appendChild(document.createElement("figcaption"))
		caption.append(title)
		this.values = lines.map(([name], index) => {
			const entry = caption.appendChild(document.createElement("span"))
			entry.className = `line line-${index}`
			entry.append(`${name} `)
			return entry.appendChild(document.createElement("b"))
		})
		this.box = figure.appendChild(document.createElement("div"))
		this.box.setAttribute("aria-hidden", "true")
		this.chart = null
	}

	draw(readings) {
		const data = [readings.map((reading) => reading.at)]
		for (const [, value] of this.lines) data.push(readings.map((reading) => value(reading)))
		const width = Math.max(this.box.clientWidth, 100)
		if (this.chart === null) this.chart = this.make(width, data)
		else {
			if (this.chart.width !== width) this.chart.setSize({ width, height: 150 })
			this.chart.setData(data)
		}
		const last = readings.at(-1)
		this.lines.forEach(([, value], index) => {
			this.values[index].textContent = this.format(value(last))
		})
	}

	make(width, data) {
		const axis = { stroke: colour("--ink-soft"), grid: { stroke: colour("--line"), width: 1 } }
		return new window.uPlot(
			{
				width,
				height: 150,
				legend: { show: false },
				cursor: { show: false },
				scales: { y: { range: (_chart, _low, high) => [0, high > 0 ? high * 1.1 : 1] } },
				axes: [
					axis,
					{ ...axis, size: 62, values: (_chart, ticks) => ticks.map((tick) => this.format(tick)) },
				],
				series: [
					{},
					...this.lines.map((_line, index) => ({
						stroke: colour(`--line-${index}`),
						width: 2,
						spanGaps: false,
						points: { show: false },
					})),
				],
			},
			data,
			this.box,
		)
	}

	forget() {
		this.chart?.destroy()
		this.chart = null
	}
}

/** All plots under one element. */
export class Plots {
	constructor(parent) {
		this.readings = []
		this.plots = PLOTS.map((plot) => new Plot(parent, plot))
		// Colours are read once for a chart, so another scheme needs other charts.
		matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
			for (const plot of this.plots) plot.forget()
			this.draw()
		})
	}

	/** Take one reading in. */
	add(reading) {
		this.readings.push(reading)
		if (this.readings.length > KEPT) this.readings.shift()
		this.draw()
	}

	draw() {
		if (document.hidden || !this.readings.length) return
		for (const plot of this.plots) plot.draw(this.readings)
	}
}

export const formats = { ms, percent, number, count, bytes }
