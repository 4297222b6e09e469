import assert from "node:assert/strict"
import { test } from "node:test"

import { boundaryAfter, MAX_BEHIND, settledEnd, Typewriter } from "../../../web/typewriter.js"

/** A typewriter on a hand-turned clock. */
function bench({ instant = () => false, hz = 60 } = {}) {
  const shown = []
  let frames = []
  let now = 0
  const typewriter = new Typewriter({
    show: (text) => shown.push(text),
    instant,
    requestFrame: (callback) => frames.push(callback),
    cancelFrame: () => (frames = []),
  })
  return {
    typewriter,
    shown,
    last: () => shown.at(-1) ?? "",
    pending: () => frames.length,
    frame() {
      now += 1000 / hz
      const due = frames
      frames = []
      for (const callback of due) callback(now)
    },
    frames(count) {
      for (let i = 0; i < count; i++) this.frame()
    },
  }
}

test("shows all text in the end, growing, in order", () => {
  const { typewriter, shown, frame } = bench()
  const text = "The answer, in some forty characters or so."
  typewriter.receive(text)
  for (let i = 0; i < 200; i++) frame()
  assert.equal(shown.at(-1), text)
  for (const [i, part] of shown.entries()) {
    assert.ok(text.startsWith(part))
    assert.ok(i === 0 || part.length > shown[i - 1].length)
  }
  assert.ok(shown.length > 5)
})

test("never trails by more than the bound after a frame", () => {
  const { typewriter, last, frame } = bench()
  let text = ""
  for (let i = 0; i < 300; i++) {
    text += "abcdefghij ".repeat(1 + (i % 7))
    typewriter.receive(text)
    frame()
    assert.ok(text.length - last().length <= MAX_BEHIND)
  }
})

test("is about as fast at 60 and at 240 frames a second", () => {
  const lengths = [60, 240].map((hz) => {
    const b = bench({ hz })
    b.typewriter.receive("x".repeat(100))
    b.frames(hz / 4)
    return b.last().length
  })
  assert.ok(Math.abs(lengths[0] - lengths[1]) <= 8, String(lengths))
})

test("goes faster when more waits", () => {
  const after = (size) => {
    const b = bench()
    b.typewriter.receive("y".repeat(size))
    b.frames(6)
    return b.last().length
  }
  assert.ok(after(110) > 1.5 * after(20))
})

test("never splits a grapheme", () => {
  const family = "👩‍👩‍👧‍👦"
  const text = `a${family}b🏳️‍🌈é${family}नमस्ते🇨🇿 end`
  const whole = new Set()
  for (const { index, segment } of new Intl.Segmenter().segment(text))
    whole.add(index + segment.length)
  const { typewriter, shown, frame } = bench()
  typewriter.receive(text)
  for (let i = 0; i < 200; i++) frame()
  assert.equal(shown.at(-1), text)
  for (const part of shown) assert.ok(whole.has(part.length), JSON.stringify(part))
})

test("holds an unfinished emoji back until its rest has come", () => {
  const b = bench()
  b.typewriter.receive("Hi 👩")
  b.frames(100)
  assert.equal(b.last(), "Hi ")
  b.typewriter.receive("Hi 👩‍🔬")
  b.frames(100)
  assert.equal(b.last(), "Hi ")
  b.typewriter.finish("Hi 👩‍🔬")
  assert.equal(b.last(), "Hi 👩‍🔬")
})

test("flushes at the end and leaves no frame behind", () => {
  const b = bench()
  b.typewriter.receive("z".repeat(100))
  b.frame()
  b.typewriter.finish("z".repeat(101))
  assert.equal(b.last().length, 101)
  assert.equal(b.pending(), 0)
})

test("shows at once when pacing is unwanted", () => {
  const b = bench({ instant: () => true })
  b.typewriter.receive("all of it")
  assert.deepEqual(b.shown, ["all of it"])
  assert.equal(b.pending(), 0)
})

test("starts over when the text was replaced", () => {
  const b = bench()
  b.typewriter.receive("one two")
  b.frames(60)
  b.typewriter.receive("other words")
  b.frames(60)
  assert.equal(b.last(), "other words")
})

test("idles without frames when nothing waits", () => {
  const b = bench()
  b.typewriter.receive("short")
  b.frames(60)
  assert.equal(b.pending(), 0)
  b.typewriter.receive("short and more")
  assert.equal(b.pending(), 1)
})

test("boundaryAfter gives the next grapheme's end", () => {
  assert.equal(boundaryAfter("abc", 0, 1), 1)
  assert.equal(boundaryAfter("a👍🏽b", 0, 2), 5)
  assert.equal(boundaryAfter("abc", 0, 9), 3)
})

test("settledEnd trusts plain ASCII", () => {
  assert.equal(settledEnd("abc", 0), 3)
  assert.equal(settledEnd("ab👍", 0), 2)
  assert.equal(settledEnd("", 0), 0)
})
