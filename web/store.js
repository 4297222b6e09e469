/**
 * One value and those who want to know when it changes.
 *
 * @template T
 */

/** @template T */
export function createStore(initial) {
	let state = initial
	const listeners = new Set()
	return {
		get: () => state,
		set(change) {
			state = { ...state, ...change }
			for (const listener of listeners) listener(state)
		},
		subscribe(listener) {
			listeners.add(listener)
			return () => listeners.delete(listener)
		},
	}
}
