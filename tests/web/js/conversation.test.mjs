import assert from "node:assert/strict"
import { test } from "node:test"

import {
  activeAnswer,
  ask,
  askAgain,
  askInstead,
  askWithoutOldest,
  emptyConversation,
  endAnswer,
  reduce,
  settle,
} from "../../../web/conversation.js"
import { loadTexts } from "../../../web/problems.js"

await loadTexts()

const created = (fields = {}) => ({
  type: "session.created",
  session: { id: "sess_1", model: "m", repartee: {} },
  "repartee.items": [],
  "repartee.items_remaining": 0,
  ...fields,
})
const item = (id, role, text, status = "completed") => ({
  id,
  type: "message",
  role,
  status,
  content: [{ type: role === "user" ? "input_text" : "output_text", text }],
})
const delta = (text, seq, epoch = 1, id = "resp_1") => ({
  type: "response.output_text.delta",
  response_id: id,
  delta: text,
  "repartee.cursor": { epoch, seq },
})
const begun = { type: "response.created", response: { id: "resp_1" } }
const done = (status, more = {}) => ({
  type: "response.done",
  response: { id: "resp_1", status, status_details: null, output: [], ...more },
})
const run = (conversation, ...events) => events.reduce(reduce, conversation)
const asked = () => ask(run(emptyConversation(), created()), "Hi")
const last = (conversation) => conversation.messages.at(-1)

test("a turn from question to answer", () => {
  let c = asked()
  assert.deepEqual(
    c.messages.map(({ role, status }) => [role, status]),
    [
      ["user", "sending"],
      ["assistant", "waiting"],
    ],
  )
  c = run(c, { type: "conversation.item.added", item: item(c.pending.itemId, "user", "Hi") })
  assert.equal(c.messages[0].status, "done")
  assert.equal(c.pending.itemStored, true)
  c = run(c, begun)
  assert.equal(c.pending, null)
  c = run(c, delta("He", 1), delta("llo", 2))
  assert.equal(last(c).text, "Hello")
  assert.equal(last(c).status, "streaming")
  c = run(c, done("completed", { output: [item("item_1", "assistant", "Hello")] }))
  assert.equal(last(c).status, "done")
  assert.equal(last(c).itemId, "item_1")
  assert.equal(activeAnswer(c), null)
})

test("reduce leaves its arguments alone", () => {
  const before = run(asked(), begun, delta("a", 1))
  const copy = structuredClone(before)
  run(before, delta("b", 2), done("completed"))
  assert.deepEqual(before, copy)
})

test("a repeated or older delta is dropped, a later epoch is not", () => {
  const c = run(
    asked(),
    begun,
    delta("a", 1),
    delta("a", 1),
    delta("b", 2),
    delta("a", 1),
    delta("c", 3, 2),
    delta("x", 9, 1),
  )
  assert.equal(last(c).text, "abc")
})

test("deltas of unknown responses, and after the end, change nothing", () => {
  const c = run(
    asked(),
    begun,
    delta("a", 1),
    delta("x", 2, 1, "resp_9"),
    done("completed"),
    delta("y", 5),
  )
  assert.equal(last(c).text, "a")
})

test("the server's whole text wins", () => {
  const c = run(asked(), begun, delta("a", 1), {
    type: "response.output_text.done",
    response_id: "resp_1",
    text: "abc",
  })
  assert.equal(last(c).text, "abc")
})

for (const [status, details, shown, kind] of [
  ["cancelled", { reason: "client_cancelled" }, "stopped", undefined],
  ["incomplete", { reason: "max_output_tokens" }, "cut", "cut"],
  ["failed", { error: { code: "engine_fault", type: "server_error" } }, "failed", "server"],
  ["failed", { error: { code: "overloaded", type: "rate_limit_error" } }, "failed", "busy"],
  [
    "failed",
    { error: { code: "context_length_exceeded", type: "invalid_request_error" } },
    "failed",
    "context",
  ],
]) {
  test(`an answer that ends ${status} with ${JSON.stringify(details)}`, () => {
    const c = run(asked(), begun, delta("a", 1), done(status, { status_details: details }))
    assert.equal(last(c).status, shown)
    assert.equal(last(c).problem?.kind, kind)
    assert.equal(last(c).text, "a")
  })
}

// Each says what happens next; none is the general one.
for (const [code, next] of [
  ["answer_lost", /written anew/],
  ["conversation_full", /new one/],
  ["draining", /reconnects by itself/],
  ["no_worker", /in 2 seconds/],
  ["redis_unavailable", /is safe\. Try again in 2 seconds/],
  ["storage_full", /Delete old chats/],
  ["worker_died", /written anew/],
  ["workers_died", /other words/],
]) {
  test(`the words for ${code}`, () => {
    const error = { code, type: "server_error", "repartee.retry_after_ms": 2000 }
    const c = run(asked(), begun, done("failed", { status_details: { error } }))
    assert.match(last(c).problem.text, next)
    assert.ok(last(c).problem.text.length < 100)
  })
}

for (const [reason, shown, text] of [
  ["client_cancelled", "stopped", undefined],
  ["max_output_tokens", "cut", /length limit/],
  ["failed", "cut", /not finished/],
  [undefined, "cut", /not finished/],
]) {
  test(`a stored answer that is incomplete: ${reason}`, () => {
    const stored = { ...item("item_1", "assistant", "a", "incomplete"), "repartee.reason": reason }
    const c = run(
      emptyConversation(),
      created({ "repartee.items": [item("item_0", "user", "Hi"), stored] }),
    )
    assert.equal(last(c).status, shown)
    if (text) assert.match(last(c).problem.text, text)
    else assert.equal(last(c).problem, null)
  })
}

test("an error that names the turn ends it; a quiet one is ignored; another is the chat's", () => {
  const c = asked()
  const refused = run(c, {
    type: "error",
    error: { code: "overloaded", type: "rate_limit_error", event_id: c.pending.responseEventId, "repartee.retry_after_ms": 4200 },
  })
  assert.equal(last(refused).status, "failed")
  assert.match(last(refused).problem.text, /in 5 seconds/)
  assert.equal(refused.pending, null)
  assert.deepEqual(run(c, { type: "error", error: { code: "x", event_id: "quiet_1" } }), c)
  assert.equal(
    run(c, { type: "error", error: { code: "x", event_id: null } }).problem.kind,
    "server",
  )
})

test("the create that went out with a refused item adds nothing when it fails too", () => {
  const c = asked()
  const { itemEventId, responseEventId } = c.pending
  const refused = run(c, {
    type: "error",
    error: { type: "invalid_request_error", code: "context_length_exceeded", event_id: itemEventId },
  })
  assert.equal(last(refused).status, "failed")
  const after = run(refused, {
    type: "error",
    error: { type: "invalid_request_error", code: "not_found", event_id: responseEventId },
  })
  assert.deepEqual(after, refused)
})

test("asking again keeps the question and drops the answer", () => {
  let c = run(asked(), begun, done("failed", { status_details: { error: {} } }))
  const key = c.messages[0].key
  c = askAgain(c)
  assert.deepEqual(
    c.messages.map(({ role, status }) => [role, status]),
    [
      ["user", "sending"],
      ["assistant", "waiting"],
    ],
  )
  assert.equal(c.messages[0].key, key)
})

test("stopping without a line ends the turn here", () => {
  const c = endAnswer(asked(), "stopped")
  assert.deepEqual(
    c.messages.map(({ status }) => status),
    ["failed", "stopped"],
  )
  assert.equal(c.pending, null)
})

test("a stored session opens with its items", () => {
  const c = run(
    emptyConversation(),
    created({
      "repartee.items": [
        item("s", "system", "Be brief"),
        item("u", "user", "Hi"),
        item("a", "assistant", "Ho"),
      ],
    }),
  )
  assert.deepEqual(
    c.messages.map(({ role, text, status }) => [role, text, status]),
    [
      ["user", "Hi", "done"],
      ["assistant", "Ho", "done"],
    ],
  )
})

test("items come in pages", () => {
  const first = run(
    emptyConversation(),
    created({ "repartee.items": [item("u", "user", "Hi")], "repartee.items_remaining": 1 }),
  )
  assert.equal(first.messages.length, 0)
  const c = run(first, {
    type: "repartee.items",
    "repartee.items": [item("a", "assistant", "Ho")],
    "repartee.items_remaining": 0,
  })
  assert.deepEqual(
    c.messages.map(({ text }) => text),
    ["Hi", "Ho"],
  )
})

test("a running answer is taken up from the snapshot, with its key", () => {
  let c = run(asked(), begun, delta("a", 1))
  const { key } = last(c)
  const user = item(c.messages[0].itemId, "user", "Hi")
  c = run(c, created({ "repartee.items": [user] }))
  assert.equal(last(c).status, "streaming")
  c = run(c, {
    type: "repartee.response.resumed",
    response: { id: "resp_1" },
    item_id: "i",
    text: "abc",
    "repartee.cursor": { epoch: 1, seq: 3 },
  })
  c = settle(c)
  assert.equal(last(c).text, "abc")
  assert.equal(last(c).key, key)
  c = run(c, delta("c", 3), delta("d", 4))
  assert.equal(last(c).text, "abcd")
})

test("a null snapshot leaves our text", () => {
  let c = run(asked(), begun, delta("ab", 2))
  c = run(c, created({ "repartee.items": [item(c.messages[0].itemId, "user", "Hi")] }))
  c = run(c, {
    type: "repartee.response.resumed",
    response: { id: "resp_1" },
    item_id: "i",
    text: null,
    "repartee.cursor": { epoch: 1, seq: 2 },
  })
  c = run(c, delta("cd", 4))
  assert.equal(last(c).text, "abcd")
})

test("an answer that ended meanwhile is shown whole", () => {
  let c = run(asked(), begun, delta("a", 1), {
    type: "response.output_item.added",
    response_id: "resp_1",
    item: { id: "i" },
  })
  const { key } = last(c)
  c = settle(
    run(
      c,
      created({
        "repartee.items": [item(c.messages[0].itemId, "user", "Hi"), item("i", "assistant", "abc")],
      }),
    ),
  )
  assert.equal(last(c).status, "done")
  assert.equal(last(c).text, "abc")
  assert.equal(last(c).key, key)
  assert.equal(c.messages.length, 2)
})

test("a running answer that the server does not mention has an end", () => {
  let c = run(asked(), begun)
  c = settle(run(c, created({ "repartee.items": [item(c.messages[0].itemId, "user", "Hi")] })))
  assert.equal(last(c).status, "failed")
  assert.equal(last(c).problem.retry, true)
})

test("an unsent turn stays after the stored ones", () => {
  const c = asked()
  const again = settle(
    run(
      c,
      created({ "repartee.items": [item("u0", "user", "old"), item("a0", "assistant", "older")] }),
    ),
  )
  assert.deepEqual(
    again.messages.map(({ text }) => text),
    ["old", "older", "Hi", ""],
  )
  assert.deepEqual(again.pending, c.pending)
})

test("a turn whose answer exists is acknowledged", () => {
  const c = asked()
  const again = settle(
    run(
      c,
      created({
        "repartee.items": [item(c.pending.itemId, "user", "Hi"), item("a", "assistant", "Ho")],
      }),
    ),
  )
  assert.equal(again.pending, null)
  assert.deepEqual(
    again.messages.map(({ text }) => text),
    ["Hi", "Ho"],
  )
})

test("a message without an answer offers one", () => {
  const c = run(emptyConversation(), created({ "repartee.items": [item("u", "user", "Hi")] }))
  assert.equal(last(c).problem.kind, "unanswered")
  assert.equal(askAgain(c).pending.itemStored, true)
})

const texts = (conversation) => conversation.messages.map(({ text }) => text)
const stored = (...pairs) =>
  run(
    emptyConversation(),
    created({
      "repartee.items": pairs.map(([id, text]) =>
        item(id, id[0] === "u" ? "user" : "assistant", text),
      ),
    }),
  )

test("a changed message takes the place of what came after it", () => {
  const before = stored(["u1", "one"], ["a1", "eins"], ["u2", "two"], ["a2", "zwei"])
  const c = askInstead(before, before.messages[2].key, "three")
  assert.deepEqual(texts(c), ["one", "eins", "three", ""])
  assert.deepEqual(c.pending.removes, ["u2", "a2"])
  assert.equal(c.pending.removesAfter, "a1")
  const first = askInstead(before, before.messages[0].key, "zero")
  assert.deepEqual(texts(first), ["zero", ""])
  assert.equal(first.pending.removesAfter, "root")
  assert.equal(askInstead(before, "no such", "x"), before)
})

test("what a turn takes the place of does not come back with a lost line", () => {
  const before = stored(["u1", "one"], ["a1", "eins"], ["u2", "two"], ["a2", "zwei"])
  const edited = askInstead(before, before.messages[2].key, "three")
  const pages = ["u1", "a1", "u2", "a2"].map((id) => item(id, id[0] === "u" ? "user" : "assistant", id))
  const c = settle(run(edited, created({ "repartee.items": pages })))
  assert.deepEqual(texts(c), ["u1", "a1", "three", ""])
  assert.equal(c.pending.itemStored, false)
  assert.equal(c.pending.removesAfter, "a1")
})

test("an answer asked for again is cut off behind its question", () => {
  const c = askAgain(stored(["u1", "one"], ["a1", "eins"]))
  assert.equal(c.pending.removesAfter, "u1")
  assert.deepEqual(c.pending.removes, ["a1"])
  const none = askAgain(stored(["u1", "one"]))
  assert.equal(none.pending.removesAfter, null)
})

test("a full chat goes on without its older half, in whole turns", () => {
  const before = stored(["u1", "x".repeat(60)], ["a1", "y".repeat(60)], ["u2", "b"], ["a2", "c"], ["u3", "d"])
  const c = askWithoutOldest(before)
  assert.deepEqual(texts(c), ["b", "c", "d", ""])
  assert.deepEqual(c.pending.removes, ["u1", "a1"])
  assert.equal(c.pending.removesAfter, null)
  const one = stored(["u1", "alone"])
  assert.equal(askWithoutOldest(one), one)
})

test("another tab cuts the conversation, renames it and changes its settings", () => {
  let c = stored(["u1", "one"], ["a1", "eins"], ["u2", "two"])
  c = run(c, { type: "repartee.conversation.truncated", item_id: "u1", deleted_item_ids: ["a1", "u2"] })
  assert.deepEqual(texts(c), ["one"])
  c = run(c, { type: "repartee.session.title", title: "T" })
  assert.equal(c.title, "T")
  c = run(c, {
    type: "session.updated",
    session: { model: "m", instructions: "Be brief.", max_output_tokens: 5, repartee: { seed: 1 } },
  })
  assert.deepEqual(c.settings, {
    instructions: "Be brief.",
    max_output_tokens: 5,
    repartee: { seed: 1 },
  })
  c = run(c, { type: "repartee.conversation.truncated", item_id: "root", deleted_item_ids: ["u1"] })
  assert.deepEqual(texts(c), [])
})

test("our own cut leaves the turn that follows it", () => {
  const before = stored(["u1", "one"], ["a1", "eins"])
  const c = run(askInstead(before, before.messages[0].key, "two"), {
    type: "repartee.conversation.truncated",
    item_id: "root",
    deleted_item_ids: ["u1", "a1"],
  })
  assert.deepEqual(texts(c), ["two", ""])
})

test("what was missed comes whole", () => {
  const c = run(stored(["u1", "one"]), {
    ...created({ "repartee.items": [item("u9", "user", "new")], "repartee.title": "Title" }),
    type: "repartee.resynced",
  })
  assert.deepEqual(texts(c)[0], "new")
  assert.equal(c.title, "Title")
})

test("usage teaches how long a token is", () => {
  const c = run(
    asked(),
    begun,
    delta("x".repeat(398), 1),
    done("completed", { usage: { total_tokens: 100 } }),
  )
  assert.deepEqual(c.spent, { tokens: 100, chars: 400 })
})

test("an answer given up for lost goes on when it is heard of again", () => {
  let c = run(asked(), begun, delta("ab", 2))
  const user = item(c.messages[0].itemId, "user", "Hi")
  c = settle(run(c, { ...created({ "repartee.items": [user] }), type: "repartee.resynced" }))
  assert.equal(last(c).status, "failed")
  c = run(c, begun, delta("ab", 2), delta("cd", 3))
  assert.equal(c.messages.length, 2)
  assert.equal(last(c).text, "abcd")
  assert.equal(last(c).status, "streaming")
  assert.equal(last(c).problem, null)
})
