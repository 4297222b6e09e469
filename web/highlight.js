/**
 * Colours for code, by what nearly all languages share: comments, strings, numbers, keywords.
 * What it does not know stays plain. No DOM.
 */

const WORDS = new Set(
	(
		"abstract and as assert async await begin bool boolean break byte case catch char class const " +
		"continue def default defer del do double elif else elsif end enum except export extends " +
		"extern final finally float fn for foreach from func function global go goto if impl " +
		"implements import in include instanceof int interface is lambda let local long loop match " +
		"mod module mut namespace new nil none not null of or override package pass private " +
		"protected pub public raise ref return select self short signed sizeof static string struct " +
		"super switch then this throw throws trait true false try type typedef typeof union unless " +
		"unsafe unsigned until use using var virtual void where while with yield"
	).split(" "),
)
const SQL_WORDS = new Set(
	(
		"add all alter and as asc between by case create delete desc distinct drop else end exists from " +
		"group having in index inner insert into is join key left like limit not null offset on or " +
		"order outer primary references right select set table then union update values view when " +
		"where with"
	).split(" "),
)
const HASH_COMMENTS = new Set(
	"bash dockerfile ini make makefile perl py python r rb ruby sh shell toml yaml yml zsh".split(" "),
)
const DASH_COMMENTS = new Set("ada elm haskell hs lua sql".split(" "))
const PLAIN = new Set(["", ..."text txt plain plaintext output console diff md markdown".split(" ")])

const STRING =
	/"""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|`(?:\\.|[^`\\])*`?/
const NUMBER = /\b(?:0[xob][\da-f_]+|\d[\d_]*(?:\.\d+)?(?:e[+-]?\d+)?)\b/
const WORD = /[\p{L}_$][\p{L}\d_$]*/u

/** @param {string} lang As written after the fence. */
export function highlight(code, lang) {
	const name = lang.toLowerCase()
	if (PLAIN.has(name)) return [code]
	const words = name === "sql" ? SQL_WORDS : WORDS
	const token = new RegExp(
		`(?<comment>${commentPattern(name)})|(?<string>${STRING.source})|(?<number>${NUMBER.source})|(?<word>${WORD.source})`,
		"giu",
	)
	const nodes = []
	let at = 0
	for (const match of code.matchAll(token)) {
		const kind = kindOf(match.groups, words, name === "sql")
		if (kind === null || match[0] === "") continue
		if (match.index > at) nodes.push(code.slice(at, match.index))
		nodes.push(spanOf(kind, match[0]))
		at = match.index + match[0].length
	}
	if (at < code.length) nodes.push(code.slice(at))
	return nodes
}

// Growing code is coloured anew each frame; equal spans are one object, and left alone.
const spans = new Map()
const MAX_SPANS = 2000

function spanOf(kind, text) {
	const name = kind + text
	if (!spans.has(name)) {
		if (spans.size === MAX_SPANS) spans.clear()
		spans.set(name, { tag: "span", attrs: { class: `hl-${kind}` }, children: [text] })
	}
	return spans.get(name)
}

function commentPattern(name) {
	if (HASH_COMMENTS.has(name)) return "(?<![^\\s])#[^\\n]*"
	if (DASH_COMMENTS.has(name)) return "--[^\\n]*|/\\*[\\s\\S]*?(?:\\*/|$)"
	if (name === "html" || name === "xml" || name === "svg") return "<!--[\\s\\S]*?(?:-->|$)"
	return "(?<!:)//[^\\n]*|/\\*[\\s\\S]*?(?:\\*/|$)"
}

function kindOf({ comment, string, number, word }, words, anyCase) {
	if (comment !== undefined) return "comment"
	if (string !== undefined) return "string"
	if (number !== undefined) return "number"
	return words.has(anyCase ? word.toLowerCase() : word) ||
		word === "None" ||
		word === "True" ||
		word === "False"
		? "keyword"
		: null
}
