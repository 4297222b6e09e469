/**
 * One value and those who want to know when it changes.
 *
 * @template T
 * @typedef {object} Store
 * @property {() => T} get
 * @property {(change: Partial<T>) => void} set  Shallow merge; listeners run at once, in order.
 * @property {(listener: (state: T) => void) => () => void} subscribe  Returns the way out.
 */

/**
 * @template T
 * @param {T} initial
 * @returns {Store<T>}
 */
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
