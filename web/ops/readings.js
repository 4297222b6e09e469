// From what gateways and workers have counted since they started to what happens now.
// Pure: two snapshots of `/ops/state` in, one reading out.

/** @typedef {{now: number, gateways: object[], workers: object[]}} Snapshot */

export const TIERS = ["vip", "standard", "batch"]

/**
 * How much a counter rose, by the same thing's earlier value; one that started anew, or
 * that was not there before, rose from nothing.
 * @param {number} now
 * @param {number | undefined} before
 */
export const rise = (now, before) => (before === undefined || before > now ? now : now - before)

const byId = (list) => new Map(list.map((entry) => [entry.id, entry]))

/** Sum over all gateways of how much a map of counters rose. */
function risen(now, before, field) {
	const earlier = byId(before.gateways)
	const sums = {}
	for (const gateway of now.gateways) {
		const old = earlier.get(gateway.id)?.[field] ?? {}
		for (const [key, value] of Object.entries(gateway[field]))
			sums[key] = (sums[key] ?? 0) + rise(value, old[key])
	}
	return sums
}

/** By tier, the counts at or below each bound that came between two snapshots. */
function histogram(now, before, field) {
	const earlier = byId(before.gateways)
	const tiers = {}
	for (const gateway of now.gateways) {
		for (const [tier, counts] of Object.entries(gateway[field])) {
			const old = earlier.get(gateway.id)?.[field][tier] ?? {}
			const restarted = counts["+Inf"] < (old["+Inf"] ?? 0)
			const sums = (tiers[tier] ??= {})
			for (const [bound, count] of Object.entries(counts))
				sums[bound] = (sums[bound] ?? 0) + count - (restarted ? 0 : old[bound] ?? 0)
		}
	}
	return tiers
}

/**
 * A percentile of a histogram, evenly spread within its bucket as Prometheus does it.
 * @param {Record<string, number>} counts at or below each bound
 * @param {number} share 0 to 1
 * @returns {number | null} null without observations
 */
export function percentile(counts, share) {
	const bounds = Object.keys(counts).map((text) => [text === "+Inf" ? Infinity : Number(text), text])
	bounds.sort((a, b) => a[0] - b[0])
	const total = counts["+Inf"] ?? 0
	if (!total) return null
	const rank = share * total
	let low = 0
	let below = 0
	for (const [bound, text] of bounds) {
		const count = counts[text]
		if (count >= rank && count > below)
			return bound === Infinity ? low : low + ((bound - low) * (rank - below)) / (count - below)
		if (bound !== Infinity) low = bound
		below = count
	}
	return low
}

const percentiles = (tiers, share) =>
	Object.fromEntries(TIERS.map((tier) => [tier, tiers[tier] ? percentile(tiers[tier], share) : null]))

const total = (list, field) => list.reduce((sum, entry) => sum + entry[field], 0)

/** Sum over all workers of how much one of their metrics rose. */
function metricRise(now, before, name) {
	const earlier = byId(before.workers)
	return now.workers.reduce(
		(sum, worker) =>
			sum + rise(worker.metrics[name] ?? 0, earlier.get(worker.id)?.metrics[name] ?? 0), 0)
}

const metricSum = (workers, name) =>
	workers.reduce((sum, worker) => sum + (worker.metrics[name] ?? 0), 0)

const share = (part, whole) => (whole > 0 ? part / whole : null)

/**
 * What happened between two snapshots.
 * @param {Snapshot} now
 * @param {Snapshot} before
 */
export function reading(now, before) {
	const seconds = Math.max(now.now - before.now, 1e-3)
	const { gateways, workers } = now
	const first = histogram(now, before, "first_token")
	const gap = histogram(now, before, "chunk_gap")
	const queue = histogram(now, before, "queue")
	const outcomes = risen(now, before, "outcomes")
	const tokens = risen(now, before, "tokens")
	const blocks = total(workers, "blocks")
	const running = {}
	for (const gateway of gateways)
		for (const [tier, count] of Object.entries(gateway.running))
			running[tier] = (running[tier] ?? 0) + count
	return {
		at: now.now,
		first50: percentiles(first, 0.5),
		first99: percentiles(first, 0.99),
		gap50: percentiles(gap, 0.5),
		gap99: percentiles(gap, 0.99),
		queue99: percentiles(queue, 0.99),
		running,
		answersPerS: Object.values(outcomes).reduce((sum, count) => sum + count, 0) / seconds,
		failedPerS: (outcomes.failed ?? 0) / seconds,
		sampledPerS: metricRise(now, before, "repartee_engine_sampled_tokens_total") / seconds,
		promptPerS: (tokens.prompt ?? 0) / seconds,
		batch: total(workers, "running"),
		waiting: total(workers, "waiting"),
		kvUsed: share(total(workers, "used_blocks"), blocks),
		kvCached: share(metricSum(workers, "repartee_engine_cached_blocks"), blocks),
		kvRetained: share(metricSum(workers, "repartee_engine_retained_blocks"), blocks),
		hostBytes: metricSum(workers, "repartee_engine_host_bytes"),
		hits: share(tokens.cached ?? 0, tokens.prompt ?? 0),
		accepted: share(
			metricRise(now, before, "repartee_engine_accepted_tokens_total"),
			metricRise(now, before, "repartee_engine_drafted_tokens_total")),
		suspended: metricRise(now, before, "repartee_engine_suspensions_total") / seconds,
		connections: total(gateways, "connections"),
		pendingBytes: total(gateways, "pending_bytes"),
	}
}
