import assert from "node:assert/strict"
import { test } from "node:test"

import { percentile, reading, rise } from "../../../web/ops/readings.js"

const counts = (...values) => ({ "0.1": values[0], "0.5": values[1], "+Inf": values[2] })

const gateway = (id, fields = {}) => ({
	id, started_at: 0, draining: false, connections: 2, pending_bytes: 0, running: {},
	outcomes: {}, tokens: {}, first_token: {}, chunk_gap: {}, queue: {}, ...fields,
})

const worker = (id, metrics = {}, fields = {}) => ({
	id, running: 1, waiting: 0, used_blocks: 25, blocks: 100, metrics, ...fields,
})

test("a counter that started anew rose from nothing", () => {
	assert.equal(rise(7, 5), 2)
	assert.equal(rise(3, 5), 3)
	assert.equal(rise(3, undefined), 3)
})

test("percentiles lie evenly within their bucket", () => {
	assert.equal(percentile(counts(10, 10, 10), 0.5), 0.05)
	assert.ok(Math.abs(percentile(counts(0, 10, 10), 0.5) - 0.3) < 1e-9)
	assert.ok(Math.abs(percentile(counts(5, 10, 10), 0.99) - 0.492) < 1e-9)
	assert.equal(percentile(counts(0, 0, 4), 0.99), 0.5, "past the last bound it is the last bound")
	assert.equal(percentile(counts(0, 0, 0), 0.5), null)
	assert.equal(percentile({}, 0.5), null)
})

test("gateways are added up, and one that was restarted counts from its start", () => {
	const before = {
		now: 100,
		gateways: [
			gateway("a", { first_token: { vip: counts(4, 4, 4) }, outcomes: { completed: 4 } }),
			gateway("b", { first_token: { vip: counts(0, 9, 9) }, outcomes: { completed: 9 } }),
		],
		workers: [worker("w", { repartee_engine_sampled_tokens_total: 1000 })],
	}
	const now = {
		now: 110,
		gateways: [
			gateway("a", { first_token: { vip: counts(6, 6, 6) }, outcomes: { completed: 6 } }),
			gateway("b", { first_token: { vip: counts(0, 2, 2) }, outcomes: { completed: 1, failed: 1 } }),
			gateway("c", { first_token: { batch: counts(1, 1, 1) }, running: { batch: 3 } }),
		],
		workers: [
			worker("w", { repartee_engine_sampled_tokens_total: 1500 }),
			worker("v", { repartee_engine_sampled_tokens_total: 100 }, { used_blocks: 75 }),
		],
	}
	const seen = reading(now, before)
	// Two in the first bucket and two in the second: the median is the bound between them.
	assert.equal(seen.first50.vip, 0.1)
	assert.equal(seen.first50.standard, null)
	assert.equal(seen.first50.batch, 0.05)
	assert.equal(seen.answersPerS, 0.4)
	assert.equal(seen.failedPerS, 0.1)
	assert.equal(seen.sampledPerS, 60)
	assert.equal(seen.kvUsed, 0.5)
	assert.deepEqual(seen.running, { batch: 3 })
	assert.equal(seen.hits, null)
})
