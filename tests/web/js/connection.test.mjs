import assert from "node:assert/strict"
import { beforeEach, mock, test } from "node:test"

import { backoffMs, Connection, isFinal } from "../../../web/connection.js"

class FakeSocket {
  static all = []

  constructor(url, protocols) {
    Object.assign(this, { url, protocols, sent: [], closed: false })
    FakeSocket.all.push(this)
  }

  send(text) {
    this.sent.push(JSON.parse(text))
  }

  close() {
    this.closed = true
  }

  greet() {
    this.onopen()
    this.say({ type: "session.created" })
  }

  say(event) {
    this.onmessage({ data: JSON.stringify(event) })
  }

  end(code, reason = "") {
    this.onclose({ code, reason })
  }
}

function connect({ unfinished = () => false } = {}) {
  FakeSocket.all = []
  const states = []
  const events = []
  const connection = new Connection({
    url: () => `ws://host/v1/realtime?n=${FakeSocket.all.length}`,
    protocols: () => ["realtime"],
    onEvent: (event) => events.push(event),
    onState: (state) => states.push(state),
    ping: () => ({ type: "ping" }),
    unfinished,
    WebSocket: FakeSocket,
    random: () => 1,
  })
  connection.open()
  return { connection, states, events, phase: () => connection.state.phase }
}

const sockets = () => FakeSocket.all
const last = () => FakeSocket.all.at(-1)

beforeEach(() => {
  mock.timers.reset()
  mock.timers.enable({ apis: ["setTimeout", "Date"] })
})

test("opens, passes events on, sends", () => {
  const { connection, events, phase } = connect()
  assert.equal(phase(), "connecting")
  assert.equal(connection.send({ type: "x" }), false)
  last().greet()
  assert.equal(phase(), "open")
  assert.deepEqual(events, [{ type: "session.created" }])
  assert.equal(connection.send({ type: "x" }), true)
  assert.deepEqual(last().sent, [{ type: "x" }])
})

test("tries again after a lost line, more slowly each time", () => {
  const { states } = connect()
  const waits = []
  for (let i = 0; i < 8; i++) {
    last().end(1006)
    waits.push(states.at(-1).retryAt - Date.now())
    mock.timers.tick(waits.at(-1))
    assert.equal(sockets().length, i + 2)
  }
  assert.deepEqual(waits, [500, 1000, 2000, 4000, 8000, 15000, 15000, 15000])
})

test("a real event, and not an error, resets the wait", () => {
  const { states } = connect()
  for (let i = 0; i < 3; i++) {
    last().end(1006)
    mock.timers.tick(15000)
  }
  last().onopen()
  last().say({ type: "error" })
  last().end(1013)
  assert.equal(states.at(-1).retryAt - Date.now(), 4000)
  mock.timers.tick(4000)
  last().greet()
  last().end(1012)
  assert.equal(states.at(-1).retryAt - Date.now(), 500)
})

test("jitter takes at most a quarter off", () => {
  assert.equal(backoffMs(0, 0), 375)
  assert.ok(backoffMs(0, 0.999) <= 500)
})

for (const code of [1000, 1008, 4000, 4401, 4499, 4999]) {
  test(`does not try again after ${code}`, () => {
    const { phase } = connect()
    last().greet()
    last().end(code, "no")
    assert.equal(phase(), "closed")
    mock.timers.tick(60_000)
    assert.equal(sockets().length, 1)
  })
}

for (const code of [1001, 1005, 1006, 1009, 1011, 1012, 1013]) {
  test(`tries again after ${code}`, () => {
    assert.equal(isFinal(code), false)
    const { phase } = connect()
    last().greet()
    last().end(code)
    assert.equal(phase(), "waiting")
  })
}

test("a goodbye in mid-answer is a lost line", () => {
  const { phase } = connect({ unfinished: () => true })
  last().greet()
  last().end(1000)
  assert.equal(phase(), "waiting")
  mock.timers.tick(500)
  assert.equal(sockets().length, 2)
})

test("waits as long as the server asked", () => {
  const { connection } = connect()
  connection.holdOff(9000)
  last().end(1013)
  mock.timers.tick(8999)
  assert.equal(sockets().length, 1)
  mock.timers.tick(1)
  assert.equal(sockets().length, 2)
  last().end(1013)
  mock.timers.tick(1000)
  assert.equal(sockets().length, 3)
})

test("wake tries at once while waiting, and only once", () => {
  const { connection } = connect()
  last().end(1006)
  connection.wake()
  connection.wake()
  assert.equal(sockets().length, 2)
  mock.timers.tick(5000)
  assert.equal(sockets().length, 2)
})

test("wake proves an open line", () => {
  const { connection, phase } = connect()
  last().greet()
  connection.wake()
  assert.deepEqual(last().sent, [{ type: "ping" }])
  mock.timers.tick(10_000)
  assert.equal(phase(), "waiting")
})

test("a silent line is asked, then given up", () => {
  const { phase } = connect()
  last().greet()
  mock.timers.tick(15_000)
  assert.deepEqual(last().sent, [{ type: "ping" }])
  last().say({ type: "pong" })
  mock.timers.tick(15_000)
  assert.equal(last().sent.length, 2)
  mock.timers.tick(10_000)
  assert.equal(phase(), "waiting")
  assert.equal(sockets()[0].closed, true)
})

test("a socket that never opens is given up", () => {
  const { phase } = connect()
  mock.timers.tick(10_000)
  assert.equal(phase(), "waiting")
})

test("what is not JSON ends the line", () => {
  const { phase, events } = connect()
  last().greet()
  last().onmessage({ data: "nonsense" })
  assert.equal(phase(), "waiting")
  assert.equal(events.length, 1)
})

test("close is for good, and an old socket has no say", () => {
  const { connection, events, phase } = connect()
  const old = last()
  old.greet()
  connection.close()
  assert.equal(old.closed, true)
  assert.equal(old.onmessage, null)
  assert.equal(phase(), "idle")
  mock.timers.tick(60_000)
  assert.equal(sockets().length, 1)
  assert.equal(events.length, 1)
})
