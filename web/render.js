/**
 * Markdown nodes as DOM, kept up to date while the text grows.
 *
 * Finished blocks are never touched again and growing text is appended to the text node it
 * belongs to, so that a selection stays and the work per frame is that of the last block.
 * Elements are made by name from a closed list, text is set as text: no HTML is ever parsed.
 */

import { element } from "./dom.js"
import { parseBlocks } from "./markdown.js"

const TAGS = new Set(
	"p h1 h2 h3 h4 h5 h6 ul ol li blockquote hr br em strong s code a span div table thead tbody tr th td".split(
		" ",
	),
)
// A line still arriving may yet join the block before it (`2` becomes `2. …`).
const OPEN_BLOCKS = 2
const PIECE_LINES = 20

export class MarkdownView {
	#root
	#text = ""
	#stable = { offset: 0, count: 0 }
	/** Nodes shown after the stable ones. */
	#shown = []

	constructor(root) {
		this.#root = root
	}

	update(text, open) {
		if (!text.startsWith(this.#text.slice(0, this.#stable.offset))) this.#reset()
		this.#text = text
		const { offset } = this.#stable
		const blocks = parseBlocks(text.slice(offset), open)
		this.#patch(blocks.map(({ node }) => (node.tag === "codeblock" ? inPieces(node) : node)))
		const settled = blocks.length - OPEN_BLOCKS
		if (open && settled > 0) this.#settle(settled, offset + blocks[settled].start)
	}

	#patch(nodes) {
		const parent = this.#root
		patchChildren(parent, this.#stable.count, this.#shown, nodes)
		this.#shown = nodes
	}

	#settle(count, offset) {
		this.#stable = { offset, count: this.#stable.count + count }
		this.#shown = this.#shown.slice(count)
	}

	#reset() {
		this.#root.replaceChildren()
		this.#stable = { offset: 0, count: 0 }
		this.#shown = []
	}
}

/** Long code in pieces: a browser lays out only the last anew. */
function inPieces({ children, ...node }) {
	const pieces = [[]]
	let lines = 0
	for (let child of children) {
		const text = typeof child === "string" ? child : ""
		lines += text.split("\n").length - 1
		const end = text.lastIndexOf("\n") + 1
		if (lines >= PIECE_LINES && end > 0) {
			pieces.at(-1).push(text.slice(0, end))
			pieces.push([])
			lines = 0
			child = text.slice(end)
		}
		if (child !== "") pieces.at(-1).push(child)
	}
	const attrs = { class: "piece" }
	return { ...node, children: pieces.map((part) => ({ tag: "span", attrs, children: part })) }
}

function patchChildren(parent, from, before, after) {
	if (before === after) return
	after.forEach((node, i) => {
		if (i < before.length) patchNode(parent, parent.childNodes[from + i], before[i], node)
		else parent.append(create(node))
	})
	for (let i = before.length; i > after.length; i--) parent.childNodes[from + i - 1].remove()
}

function patchNode(parent, dom, before, after) {
	if (before === after) return
	if (typeof before === "string" && typeof after === "string") {
		if (after.startsWith(before)) dom.appendData(after.slice(before.length))
		else dom.data = after
	} else if (isSameElement(before, after)) {
		patchChildren(container(dom, after), 0, before.children, after.children)
	} else {
		parent.replaceChild(create(after), dom)
	}
}

function isSameElement(before, after) {
	if (before.tag === undefined || before.tag !== after.tag) return false
	const [one, other] = [before.attrs ?? {}, after.attrs ?? {}]
	for (const name in other) if (one[name] !== other[name]) return false
	return Object.keys(one).length === Object.keys(other).length
}

function container(dom, node) {
	return node.tag === "codeblock" ? dom.querySelector("code") : dom
}

function create(node) {
	if (typeof node === "string") return document.createTextNode(node)
	if (node.tag === "codeblock") return createCodeBlock(node)
	if (!TAGS.has(node.tag)) throw new Error(`no such element in an answer: ${node.tag}`)
	const made = element(node.tag, {}, ...node.children.map(create))
	for (const [name, value] of Object.entries(node.attrs ?? {})) made.setAttribute(name, value)
	return made
}

function createCodeBlock({ attrs: { lang }, children }) {
	const copy = element("button", {
		className: "copy",
		ariaLabel: `Copy ${lang || "the"} code`,
		dataset: { copy: "code" },
	}, "Copy")
	const head = element("div", { className: "codehead" }, element("span", {}, lang || "text"), copy)
	const code = element("code", {}, ...children.map(create))
	const pre = element("pre", { dir: "ltr", tabIndex: 0 }, code)
	return element("div", { className: "codeblock" }, head, pre)
}
