/**
 * Markdown inside a block: emphasis, code, links, line breaks. Text in, nodes out, no DOM.
 *
 * HTML is text like any other. A link whose address is not on the allow-list stays as it was
 * written; an image becomes a link, so nothing is ever loaded.
 */

const ENTITIES = {
	amp: "&",
	lt: "<",
	gt: ">",
	quot: '"',
	apos: "'",
	nbsp: "\u00a0",
	copy: "©",
	hellip: "…",
	mdash: "—",
	ndash: "–",
}
const SAFE_SCHEME = /^(https?:\/\/|mailto:)/i
const MAX_DEPTH = 16

const TOKEN = new RegExp(
	[
		/\\([!-/:-@[-`{-~])/, // 1 escaped punctuation
		/(`+)/, // 2 code
		/<((?:https?:\/\/|mailto:)[^\s<>]*)>/, // 3 address in angle brackets
		/(!?\[)/, // 4 link or image
		/(\*+|_+|~~)/, // 5 emphasis
		/(?:\\| *)(\n)/, // 6 line break
		/&(#\d{1,7}|#[xX][\da-fA-F]{1,6}|[a-z]{2,6});/, // 7 character reference
		/(https?:\/\/[^\s<>"`]+)/, // 8 bare address
	]
		.map((part) => part.source)
		.join("|"),
	"g",
)

// Finished texts and their nodes: lists and tables ask again each frame.
const known = new Map()
const MAX_KNOWN = 2000

/**
 * @param {string} text   The text of one block.
 * @param {boolean} open  More text is to come: what is begun at the end is shown as if finished.
 * @returns {readonly MarkdownNode[]} The same object for the same finished text.
 */
export function parseInline(text, open) {
	if (open) return parse(text, open, 0)
	if (!known.has(text)) {
		if (known.size === MAX_KNOWN) known.clear()
		known.set(text, parse(text, open, 0))
	}
	return known.get(text)
}

/** @param {number} depth Of nested links. */
function parse(text, open, depth) {
	const parts = []
	const token = new RegExp(TOKEN)
	let at = 0
	for (let match; (match = token.exec(text));) {
		const node = read(match, text, open, depth)
		if (node === null) continue
		if (match.index > at) parts.push(text.slice(at, match.index))
		parts.push(...node.nodes)
		at = token.lastIndex = node.end
	}
	if (at < text.length) parts.push(text.slice(at))
	return merge(emphasise(parts, open))
}

/** What a match means: nodes and where they end; null for plain text. */
function read(match, text, open, depth) {
	const [whole, escaped, ticks, angle, bracket, run, newline, entity, bare] = match
	const end = match.index + whole.length
	if (escaped !== undefined) return { nodes: [escaped], end }
	if (ticks !== undefined) return readCode(text, ticks, end, open)
	if (angle !== undefined) return { nodes: [link(angle, [angle.replace(/^mailto:/i, "")])], end }
	if (bracket !== undefined) return readLink(text, bracket, end, open, depth)
	if (run !== undefined) return { nodes: [new Run(run, text, match.index)], end }
	if (newline !== undefined) return { nodes: [{ tag: "br", children: [] }], end }
	if (entity !== undefined) return { nodes: [decodeEntity(entity)], end }
	return readBareAddress(bare, match.index)
}

function readCode(text, ticks, end, open) {
	const close = new RegExp(`(?<!\`)${ticks}(?!\`)`, "g")
	close.lastIndex = end
	const match = close.exec(text)
	if (!match && !(open && end < text.length)) return { nodes: [open ? "" : ticks], end }
	let code = text.slice(end, match ? match.index : text.length).replace(/\n/g, " ")
	if (!match) code = code.replace(/`+$/, "")
	if (/^ .*[^ ].* $/.test(code)) code = code.slice(1, -1)
	const node = { tag: "code", attrs: { dir: "ltr" }, children: [code] }
	return { nodes: [node], end: match ? match.index + ticks.length : text.length }
}

function readLink(text, bracket, start, open, depth) {
	const close = depth < MAX_DEPTH ? matchingBracket(text, start) : -1
	if (close < 0 || text[close + 1] !== "(") return { nodes: [bracket], end: start }
	const target =
		/^\(\s*(?:<([^<>\n]*)>|((?:[^\s()\\]|\\.|\((?:[^\s()\\]|\\.)*\))*))(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/
	const match = target.exec(text.slice(close + 1))
	const label = text.slice(start, close)
	if (!match) {
		const unfinished = open && !/[)\n]/.test(text.slice(close + 1))
		return unfinished
			? { nodes: parse(label, false, depth + 1), end: text.length }
			: { nodes: [bracket], end: start }
	}
	const address = safeAddress(unescape(match[1] ?? match[2]))
	if (address === null) return { nodes: [bracket], end: start }
	const end = close + 1 + match[0].length
	if (bracket === "![") return { nodes: [link(address, [`🖼 ${label || "image"}`])], end }
	return { nodes: [link(address, withoutLinks(parse(label, false, depth + 1)))], end }
}

function matchingBracket(text, start) {
	let depth = 1
	for (let i = start; i < text.length && i < start + 2000; i++) {
		if (text[i] === "\\") i++
		else if (text[i] === "[") depth++
		else if (text[i] === "]" && --depth === 0) return i
	}
	return -1
}

function unescape(address) {
	return address
		.replace(/\\([!-/:-@[-`{-~])/g, "$1")
		.replace(/&(#\d{1,7}|#[xX][\da-fA-F]{1,6}|[a-z]{2,6});/g, (_, entity) => decodeEntity(entity))
}

/** Punctuation that ends the sentence is not part of a bare address. */
function readBareAddress(bare, index) {
	let address = bare.replace(/[.,:;!?'*_~]+$/, "")
	while (address.endsWith(")") && count(address, ")") > count(address, "("))
		address = address.slice(0, -1)
	return { nodes: [link(address, [address])], end: index + address.length }
}

function count(text, character) {
	return text.split(character).length - 1
}

/**
 * The address if it may be followed: http, https, mailto, nothing that hides its scheme.
 */
export function safeAddress(address) {
	// Browsers drop control characters and blanks before they read a scheme.
	return SAFE_SCHEME.test(address) && !/[\u0000-\u0020\u007f]/.test(address) ? address : null
}

function link(href, children) {
	return {
		tag: "a",
		attrs: { href, rel: "noopener noreferrer nofollow", target: "_blank" },
		children,
	}
}

function withoutLinks(nodes) {
	return nodes.flatMap((node) => {
		if (typeof node === "string") return [node]
		const children = withoutLinks(node.children)
		return node.tag === "a" ? children : [{ ...node, children }]
	})
}

function decodeEntity(entity) {
	if (entity[0] !== "#") return ENTITIES[entity] ?? `&${entity};`
	const hex = entity[1] === "x" || entity[1] === "X"
	const code = hex ? parseInt(entity.slice(2), 16) : parseInt(entity.slice(1), 10)
	const valid = code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff)
	return valid ? String.fromCodePoint(code) : "\ufffd"
}

/** A run of emphasis marks, with the sides it may open or close on (CommonMark 6.2). */
class Run {
	constructor(marks, text, index) {
		const before = index > 0 ? text.slice(Math.max(0, index - 2), index).match(/.$/su)[0] : " "
		const end = index + marks.length
		const after = end < text.length ? String.fromCodePoint(text.codePointAt(end)) : " "
		const left =
			!/\s/.test(after) && (!isPunctuation(after) || /\s/.test(before) || isPunctuation(before))
		const right =
			!/\s/.test(before) && (!isPunctuation(before) || /\s/.test(after) || isPunctuation(after))
		const word = marks[0] === "_"
		this.mark = marks[0]
		this.length = marks.length
		this.atEnd = end === text.length
		this.opens = left && (!word || !right || isPunctuation(before))
		this.closes = right && (!word || !left || isPunctuation(after))
	}
}

function isPunctuation(character) {
	return /[\p{P}\p{S}]/u.test(character)
}

/** Pair the runs, inner before outer, and wrap what is between. */
function emphasise(parts, open) {
	const out = []
	const openers = []
	for (const part of parts) {
		if (!(part instanceof Run)) {
			out.push(part)
			continue
		}
		if (part.closes) close(part, out, openers)
		if (part.length === 0) continue
		if (part.opens && openers.length < MAX_DEPTH * 4) openers.push(out.length)
		out.push(part)
	}
	if (open) finishOpen(out, openers)
	return out.map((part) => (part instanceof Run ? part.mark.repeat(part.length) : part))
}

function close(run, out, openers) {
	while (run.length > 0) {
		const at = openers.findLastIndex((index) => out[index].mark === run.mark)
		if (at < 0) return
		const size = wrap(out, openers[at], run.length)
		openers.length = out[openers[at]] instanceof Run ? at + 1 : at
		run.length -= size
		if (size === 0) return
	}
}

/** Wrap all after the opener at `index`; returns how many marks that took from each side. */
function wrap(out, index, available) {
	const opener = out[index]
	const size = opener.mark === "~" ? 2 : Math.min(2, opener.length, available)
	const children = out
		.splice(index + 1)
		.map((part) => (part instanceof Run ? part.mark.repeat(part.length) : part))
	const tag = opener.mark === "~" ? "s" : size === 2 ? "strong" : "em"
	opener.length -= size
	if (opener.length <= 0) out.pop()
	out.push({ tag, children: merge(children) })
	return size
}

/** While text arrives, `**bol` is already bold, and a mark at the very end is not yet shown. */
function finishOpen(out, openers) {
	const last = out.at(-1)
	if (last instanceof Run && last.atEnd) {
		if (openers.at(-1) === out.length - 1) openers.pop()
		out.pop()
	}
	for (const index of openers.reverse()) {
		const run = out[index]
		if (run instanceof Run && index < out.length - 1) wrap(out, index, run.length)
	}
}

function merge(nodes) {
	const out = []
	for (const node of nodes) {
		if (node === "") continue
		const last = out.at(-1)
		if (typeof node === "string" && typeof last === "string") out[out.length - 1] = last + node
		else out.push(node)
	}
	return out
}
