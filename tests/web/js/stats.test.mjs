import assert from "node:assert/strict"
import { test } from "node:test"

import { charsPerToken, estimate } from "../../../web/estimate.js"
import { newTurn, noteEvent, tokensPerSecond } from "../../../web/stats.js"

const created = (more = {}) => ({ type: "response.created", response: { id: "r", ...more } })
const delta = (text) => ({ type: "response.output_text.delta", delta: text })
const done = (usage) => ({ type: "response.done", response: { usage } })

test("times count from the question, tokens are the server's", () => {
  let turn = newTurn(1000)
  turn = noteEvent(turn, created({ "repartee.ahead": 3 }), 1010)
  turn = noteEvent(turn, delta("abcd"), 1200)
  assert.equal(turn.firstAt - turn.askedAt, 200)
  assert.equal(turn.ahead, 3)
  turn = noteEvent(turn, delta("efgh"), 2200)
  assert.equal(tokensPerSecond(turn, 2), 3)
  turn = noteEvent(turn, done({ output_tokens: 11 }), 2200)
  assert.equal(tokensPerSecond(turn, 2), 10)
})

test("an answer that another tab asked for counts from its beginning", () => {
  const old = noteEvent(noteEvent(newTurn(0), created(), 1), done(null), 2)
  const turn = noteEvent(old, created(), 500)
  assert.equal(turn.askedAt, 500)
  assert.equal(turn.lastAt, null)
})

test("nothing is known of a turn that this page did not see begin", () => {
  assert.equal(noteEvent(null, delta("x"), 1), null)
  assert.equal(tokensPerSecond(newTurn(0), 4), null)
})

test("an estimate learns from the server's counts", () => {
  assert.equal(charsPerToken(null), 4)
  const learnt = charsPerToken({ tokens: 100_000, chars: 200_000 })
  assert.ok(learnt > 2 && learnt < 2.1)
  const conversation = {
    spent: null,
    messages: [{ text: "x".repeat(400) }],
    settings: { instructions: "y".repeat(40) },
  }
  assert.deepEqual(estimate(conversation, "z".repeat(80)), { text: 20, all: 130 })
})
