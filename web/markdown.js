/**
 * Markdown blocks, each with the offset where it begins. No DOM.
 * What holds a person's language carries `dir="auto"`; code is always left to right.
 */

import { highlight } from "./highlight.js"
import { parseInline } from "./inline.js"

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`\n]*)$/
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$/
const RULE = /^ {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$/
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:[ \t]+|$)/
const QUOTE = /^ {0,3}> ?/
const TABLE_RULE = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/
const MAX_DEPTH = 12

/**
 * @returns {{node: MarkdownElement, start: number}[]}
 */
export function parseBlocks(text, open) {
	const lines = []
	let offset = 0
	for (const line of text.split("\n")) {
		lines.push({ text: line.replace(/\r$/, ""), start: offset })
		offset += line.length + 1
	}
	return new BlockReader(lines, open, 0).read()
}

class BlockReader {
	constructor(lines, open, depth) {
		this.lines = lines
		this.open = open
		this.depth = depth
		this.at = 0
	}

	read() {
		const blocks = []
		while (this.at < this.lines.length) {
			const { text, start } = this.lines[this.at]
			if (text.trim() === "") this.at++
			else blocks.push({ node: this.#block(text), start })
		}
		return blocks
	}

	#block(text) {
		if (FENCE.test(text)) return this.#fence(text)
		if (HEADING.test(text)) return this.#heading(text)
		if (RULE.test(text)) return this.#rule()
		if (this.depth < MAX_DEPTH) {
			if (QUOTE.test(text)) return this.#quote()
			if (ITEM.test(text)) return this.#list(text)
		}
		if (/^(?: {4}|\t)/.test(text)) return this.#indentedCode()
		if (this.#tableStarts()) return this.#table()
		return this.#paragraph()
	}

	/** Whether the last line is inside the block that ends before `this.at`. */
	get #growing() {
		return this.open && this.at >= this.lines.length
	}

	#fence(text) {
		const [, marks, info] = FENCE.exec(text)
		const indent = text.search(/\S/)
		const end = new RegExp(`^ {0,3}${marks[0]}{${marks.length},}[ \\t]*$`)
		const code = []
		this.at++
		let closed = false
		while (this.at < this.lines.length && !closed) {
			const line = this.lines[this.at++].text
			closed = end.test(line)
			if (!closed) code.push(line.replace(new RegExp(`^ {0,${indent}}`), ""))
		}
		// The closing fence arrives a mark at a time; until it is whole it is not code.
		if (!closed && this.#growing && /^ {0,3}(`{1,2}|~{1,2})$/.test(code.at(-1) ?? "")) code.pop()
		return codeBlock(code.join("\n"), info.trim().split(/\s+/)[0])
	}

	#indentedCode() {
		const code = []
		while (this.at < this.lines.length) {
			const { text } = this.lines[this.at]
			if (text.trim() !== "" && !/^(?: {4}|\t)/.test(text)) break
			code.push(text.replace(/^(?: {1,4}|\t)/, ""))
			this.at++
		}
		return codeBlock(code.join("\n").trimEnd(), "")
	}

	#heading(text) {
		const [, marks, title = ""] = HEADING.exec(text)
		this.at++
		return block(`h${marks.length}`, parseInline(title, this.#growing))
	}

	#rule() {
		this.at++
		return { tag: "hr", children: [] }
	}

	#paragraph() {
		const lines = [this.lines[this.at++].text.trimStart()]
		while (this.at < this.lines.length && !this.#interrupts(this.lines[this.at].text)) {
			lines.push(this.lines[this.at++].text.trimStart())
		}
		return block("p", parseInline(lines.join("\n").trimEnd(), this.#growing))
	}

	#interrupts(text) {
		if (text.trim() === "" || FENCE.test(text) || HEADING.test(text) || RULE.test(text)) return true
		if (QUOTE.test(text) || this.#tableStarts()) return true
		const item = ITEM.exec(text)
		// A year or a price at the start of a line is not a list; one that starts at 1 is.
		return (
			item !== null && text.trim() !== item[2] && (!/^\d/.test(item[2]) || /^1[.)]$/.test(item[2]))
		)
	}

	#quote() {
		const lines = []
		while (this.at < this.lines.length) {
			const { text, start } = this.lines[this.at]
			const lazy = lines.length > 0 && !QUOTE.test(text) && this.#continuesParagraph(lines, text)
			if (!QUOTE.test(text) && !lazy) break
			lines.push({ text: text.replace(QUOTE, ""), start })
			this.at++
		}
		return { tag: "blockquote", attrs: { dir: "auto" }, children: this.#nested(lines) }
	}

	#continuesParagraph(lines, text) {
		const last = lines.at(-1).text
		return (
			last.trim() !== "" &&
			!this.#interrupts(text) &&
			!ITEM.test(text) &&
			!FENCE.test(last) &&
			!HEADING.test(last)
		)
	}

	#list(text) {
		const [, , marker] = ITEM.exec(text)
		const ordered = /\d/.test(marker)
		const kind = marker.at(-1)
		const items = []
		let loose = false
		while (this.at < this.lines.length) {
			const next = ITEM.exec(this.lines[this.at].text)
			if (!next || next[2].at(-1) !== kind || RULE.test(this.lines[this.at].text)) break
			const item = this.#item(next)
			items.push(item.lines)
			const more =
				this.at < this.lines.length && ITEM.exec(this.lines[this.at].text)?.[2].at(-1) === kind
			loose ||= item.gap || (item.blankAfter && more)
		}
		const children = items.map((lines, i) => this.#listItem(lines, loose, i === items.length - 1))
		const first = parseInt(marker, 10)
		const attrs = { dir: "auto", ...(ordered && first !== 1 ? { start: String(first) } : {}) }
		return { tag: ordered ? "ol" : "ul", attrs, children }
	}

	/** The lines of one item, without its indent; blank lines after it are consumed. */
	#item(match) {
		const first = this.lines[this.at++]
		const width = Math.min(match[0].length, match[1].length + match[2].length + 4)
		const lines = [{ text: first.text.slice(width), start: first.start }]
		let blank = 0
		let gap = false
		while (this.at < this.lines.length) {
			const { text, start } = this.lines[this.at]
			const indent = text.search(/\S/)
			if (indent < 0) blank++
			else if (indent >= Math.min(width, match[1].length + 2)) {
				gap ||= blank > 0 && indent < width + 4 && !ITEM.test(text.slice(Math.min(indent, width)))
				for (; blank > 0; blank--) lines.push({ text: "", start })
				lines.push({ text: text.slice(Math.min(indent, width)), start })
			} else if (blank > 0 || ITEM.test(text) || this.#interrupts(text)) break
			else lines.push({ text: text.trimStart(), start })
			this.at++
		}
		return { lines, gap, blankAfter: blank > 0 }
	}

	#listItem(lines, loose, last) {
		const task = /^\[([ xX])\][ \t]+/.exec(lines[0].text)
		if (task) lines[0].text = lines[0].text.slice(task[0].length)
		let children = this.#nested(lines, last)
		if (!loose) children = children.flatMap((node) => (node.tag === "p" ? node.children : [node]))
		if (!task) return { tag: "li", attrs: { dir: "auto" }, children }
		const done = task[1] !== " "
		const box = {
			tag: "span",
			attrs: { class: done ? "task task-done" : "task" },
			children: [done ? "☑ " : "☐ "],
		}
		return { tag: "li", attrs: { dir: "auto", class: "task-item" }, children: [box, ...children] }
	}

	#nested(lines, last = true) {
		const reader = new BlockReader(lines, last && this.#growing, this.depth + 1)
		return reader.read().map(({ node }) => node)
	}

	#tableStarts() {
		const head = this.lines[this.at]?.text
		const rule = this.lines[this.at + 1]?.text
		return (
			head !== undefined &&
			rule !== undefined &&
			head.includes("|") &&
			TABLE_RULE.test(rule) &&
			cells(head).length === cells(rule).length
		)
	}

	#table() {
		const head = cells(this.lines[this.at].text)
		const align = cells(this.lines[this.at + 1].text).map(alignment)
		this.at += 2
		const rows = []
		while (this.at < this.lines.length && this.lines[this.at].text.trim() !== "") {
			const { text } = this.lines[this.at]
			if (!text.includes("|") && this.#interrupts(text)) break
			rows.push(cells(text))
			this.at++
		}
		const row = (tag, texts) => ({
			tag: "tr",
			children: align.map((side, i) => cell(tag, texts[i] ?? "", side)),
		})
		const body = { tag: "tbody", children: rows.map((texts) => row("td", texts)) }
		const table = { tag: "table", children: [{ tag: "thead", children: [row("th", head)] }, body] }
		return {
			tag: "div",
			attrs: { class: "table", tabindex: "0", role: "region", "aria-label": "Table" },
			children: [table],
		}
	}
}

function cell(tag, text, side) {
	return {
		tag,
		attrs: { dir: "auto", ...(side ? { class: side } : {}) },
		children: parseInline(text, false),
	}
}

/** Cells of a row; a pipe that is escaped or in code is text. */
function cells(line) {
	const row = line
		.trim()
		.replace(/^\|/, "")
		.replace(/(?<!\\)\|$/, "")
	return (row.match(/(?:^|\|)(?:\\.|`[^`]*`|[^|\\`]|[\\`])*/g) ?? []).map((part, i) =>
		(i === 0 ? part : part.slice(1)).trim().replace(/\\\|/g, "|"),
	)
}

function alignment(rule) {
	if (/^:-+:$/.test(rule)) return "center"
	if (/^-+:$/.test(rule)) return "end"
	return ""
}

function block(tag, children) {
	return { tag, attrs: { dir: "auto" }, children }
}

function codeBlock(text, lang) {
	return { tag: "codeblock", attrs: { lang }, children: highlight(text, lang) }
}
