import assert from "node:assert/strict"
import { test } from "node:test"

import { highlight } from "../../../web/highlight.js"
import { safeAddress } from "../../../web/inline.js"
import { parseBlocks } from "../../../web/markdown.js"

function show(node) {
  if (typeof node === "string") return node.replaceAll("<", "&lt;")
  const href = node.attrs?.href ? ` href=${node.attrs.href}` : ""
  return `<${node.tag}${href}>${node.children.map(show).join("")}</${node.tag}>`
}

const plain = (node) => (typeof node === "string" ? node : node.children.map(plain).join(""))
const render = (text, open = false) =>
  parseBlocks(text, open)
    .map(({ node }) => show(node))
    .join("")

const CASES = [
  ["a snake_case_name", "<p>a snake_case_name</p>"],
  ["b[0] f(x) arr[i](j)", "<p>b[0] f(x) arr[i](j)</p>"],
  ["2 * 3 * 4", "<p>2 * 3 * 4</p>"],
  [
    "**b** *i* `c` ~~s~~ ***x***",
    "<p><strong>b</strong> <em>i</em> <code>c</code> <s>s</s> <em><strong>x</strong></em></p>",
  ],
  ["**a *b* c**", "<p><strong>a <em>b</em> c</strong></p>"],
  ["one\ntwo\n\nthree", "<p>one<br></br>two</p><p>three</p>"],
  ["# A #\n## B", "<h1>A</h1><h2>B</h2>"],
  ["- a\n  - b\n- c", "<ul><li>a<ul><li>b</li></ul></li><li>c</li></ul>"],
  ["1. a\n\n2. b", "<ol><li><p>a</p></li><li><p>b</p></li></ol>"],
  ["The year\n1986. was", "<p>The year<br></br>1986. was</p>"],
  ["> q\n> r\n\nx", "<blockquote><p>q<br></br>r</p></blockquote><p>x</p>"],
  ["```\na<b\n```\nx", "<codeblock>a&lt;b</codeblock><p>x</p>"],
  ["~~~\n```\n~~~", "<codeblock>```</codeblock>"],
  ["---", "<hr></hr>"],
  ["\\*a\\* &lt;b&gt; &#65; &nope;", "<p>*a* &lt;b> A &nope;</p>"],
  ["<b>x</b><!-- c -->", "<p>&lt;b>x&lt;/b>&lt;!-- c --></p>"],
  ['[a](http://x/y_z "t")', "<p><a href=http://x/y_z>a</a></p>"],
  ["[a](javascript:alert(1))", "<p>[a](javascript:alert(1))</p>"],
  ["![a](http://x/p.png)", "<p><a href=http://x/p.png>🖼 a</a></p>"],
  [
    "see https://x.y/a_b. (http://z/w)",
    "<p>see <a href=https://x.y/a_b>https://x.y/a_b</a>. (<a href=http://z/w>http://z/w</a>)</p>",
  ],
  ["<mailto:a@b.c>", "<p><a href=mailto:a@b.c>a@b.c</a></p>"],
  ["- [x] a\n- [ ] b", "<ul><li><span>☑ </span>a</li><li><span>☐ </span>b</li></ul>"],
  [
    "| a | b |\n|--|--|\n| `x|y` | 2 |",
    "<div><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td><code>x|y</code></td><td>2</td></tr></tbody></table></div>",
  ],
]
for (const [source, html] of CASES)
  test(`renders ${JSON.stringify(source)}`, () => assert.equal(render(source), html))

const OPEN = [
  ["a **bol", "<p>a <strong>bol</strong></p>"],
  ["a `co", "<p>a <code>co</code></p>"],
  ["a **", "<p>a </p>"],
  ["[li](http://x", "<p>li</p>"],
  ["```py\nx\n``", "<codeblock>x</codeblock>"],
]
for (const [source, html] of OPEN)
  test(`while it arrives, shows ${JSON.stringify(source)}`, () =>
    assert.equal(render(source, true), html))

for (const address of ["http://a", "HTTPS://a/b?c#d", "mailto:a@b"]) {
  test(`allows ${address}`, () => assert.equal(safeAddress(address), address))
}
for (const address of [
  "javascript:x",
  "JaVaScRiPt:x",
  "java\tscript:x",
  " http://a",
  "data:text/html,x",
  "vbscript:x",
  "//a",
  "/a",
  "a",
  "",
  "file:///a",
  "blob:http://a",
  "\u0001http://a",
  "http://a\nb",
]) {
  test(`refuses ${JSON.stringify(address)}`, () => assert.equal(safeAddress(address), null))
}

test("settled blocks do not depend on what follows", () => {
  const text = CASES.map(([source]) => source).join("\n\n")
  const whole = parseBlocks(text, false)
  for (let length = 1; length < text.length; length += 3) {
    const part = parseBlocks(text.slice(0, length), true)
    for (const [i, { node, start }] of part.slice(0, -2).entries()) {
      assert.equal(start, whole[i].start)
      assert.equal(show(node), show(whole[i].node))
    }
  }
})

test("words are never lost", () => {
  const words = "alpha beta_gamma d[0] e*f g<h i&j k|l http://m n".split(" ")
  const marks = [
    "*",
    "**",
    "_",
    "`",
    "~~",
    "[",
    "](",
    ")",
    "![",
    "> ",
    "- ",
    "1. ",
    "# ",
    "|",
    "\n",
    "\n\n",
    "    ",
    "```",
    "<",
    "&",
  ]
  let seed = 7
  const pick = (list) => list[(seed = (seed * 1103515245 + 12345) & 0x7fffffff) % list.length]
  for (let round = 0; round < 400; round++) {
    let text = ""
    for (let i = 0; i < 30; i++) text += pick([pick(words), pick(marks), " "])
    const flat = parseBlocks(text, false)
      .map(({ node }) => plain(node))
      .join("\n")
    const lost =
      (text.match(/alpha|beta|gamma/g) ?? []).length -
      (flat.match(/alpha|beta|gamma/g) ?? []).length
    // Only the address of a link and the info string of a fence are not shown.
    if (!/\]\(|```|~~~/.test(text)) assert.equal(lost, 0, JSON.stringify(text))
  }
})

test("hostile input takes no time and no depth", () => {
  for (const part of [
    "*",
    "_",
    "[",
    "`",
    "![",
    "](",
    "<",
    "~~",
    "**a",
    "*a_",
    "&",
    "\\",
    "> ",
    "- ",
    "1. ",
    "|",
    "|a\n|-\n",
    "[a](",
    "(",
    "http://",
    "#",
    "- a\n  ",
  ]) {
    for (const open of [false, true]) assert.ok(parseBlocks(part.repeat(3000), open).length > 0)
  }
})

test("highlighting keeps the code", () => {
  const code = "def f(x):  # note\n    return \"a\" + 'b' + str(0x1f) // 2\n"
  for (const lang of ["python", "js", "sql", "", "html", "no-such"]) {
    assert.equal(highlight(code, lang).map(plain).join(""), code)
  }
  assert.equal(show(highlight("return 1", "js")[0]), "<span>return</span>")
})
