/**
 * Small helpers for elements.
 */

/** @returns {any} */
export const byId = (id) => document.getElementById(id)

/** @param {Record<string, any>} [properties]  Of the element; text is set as text. */
export function element(tag, properties = {}, ...children) {
	const { dataset = {}, ...own } = properties
	const made = Object.assign(document.createElement(tag), own)
	Object.assign(made.dataset, dataset)
	made.append(...children)
	return made
}

/** Untouched where nothing changes, so that selections and live regions stay quiet. */
export function setText(node, text) {
	if (node.textContent !== text) node.textContent = text
}

/** Say something once to who listens to the page. */
export function announce(text) {
	byId("announcer").textContent = text
}

/**
 * Whether a key event belongs to an input method, which is still choosing the text. Safari ends
 * the composition before the keydown, and only the old key code 229 tells.
 */
export function isComposing(event) {
	return event.isComposing || event.keyCode === 229
}
