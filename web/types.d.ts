/**
 * What the page's modules hand to each other. For readers and type checkers; never loaded.
 */

/** A place in an answer's log; later is the higher epoch, then the higher seq. */
type Cursor = { epoch: number; seq: number }

/** A turn sent and not yet acknowledged in full. Its ids never change: sending again is harmless. */
interface Pending {
  itemId: string
  text: string
  itemEventId: string
  responseEventId: string
  itemStored: boolean
  /** Items that go first: those that this turn takes the place of. */
  removes: string[]
  /** The item after which they are, if they are all to the end; "root" if that is all. */
  removesAfter: string | null
}

/** A session's settings, by their names on the wire. */
interface Settings {
  instructions: string
  max_output_tokens: number | "inf"
  /** Sampling fields; what is absent is at its default. */
  repartee: Record<string, any>
}

interface ConnectionState {
  /** waiting: will try again by itself; closed: will not. */
  phase: "idle" | "connecting" | "open" | "waiting" | "closed"
  /** When waiting: time of the next try, on `Date.now()`'s clock. */
  retryAt?: number
  /** What ended the last socket. */
  code?: number
  reason?: string
  /** Whether the last socket ever opened. */
  opened?: boolean
}

interface ConnectionOptions {
  url: () => string
  protocols: () => string[]
  /** One parsed server event. */
  onEvent: (event: any) => void
  onState: (state: ConnectionState) => void
  /** An event that makes the server answer something. */
  ping: () => object
  /** Whether a clean end (1000) leaves work undone: then it is a lost line and not the end. */
  unfinished: () => boolean
  WebSocket?: typeof WebSocket
  /** In [0, 1). */
  random?: () => number
}

/** What went wrong, in a person's words. */
interface Problem {
  kind: "busy" | "context" | "cut" | "lost" | "refused" | "server" | "unanswered"
  text: string
  /** Whether sending again may help. */
  retry: boolean
  /** How long the server asks to wait first. */
  waitMs?: number
  /** What the server said, for words that come later. */
  error?: object
}

interface Message {
  /** Local and stable, for the view. */
  key: string
  /** The server's (or our proposed) item id. */
  itemId: string | null
  /** For answers. */
  responseId: string | null
  role: "user" | "assistant"
  text: string
  status: "sending" | "waiting" | "streaming" | "done" | "stopped" | "cut" | "failed"
  /** Of the last delta applied. */
  cursor: Cursor | null
  problem: Problem | null
}

/** What a prompt and its answer came to, to learn a token's length from. */
type Spent = { tokens: number; chars: number }

interface Conversation {
  sessionId: string | null
  model: string | null
  title: string | null
  /** Null until the server has said them. */
  settings: Settings | null
  /** Of the latest answer. */
  spent: Spent | null
  messages: Message[]
  pending: Pending | null
  /** Of the conversation as a whole. */
  problem: Problem | null
  /** Stored items of which more pages are to come. */
  arriving: any[] | null
  /** Key of an answer that ran when the line was lost, until the server says that it still does. */
  doubtful: string | null
}

/** What the latest answer took: times by this page's clock in ms, counts by the server's word. */
interface Turn {
  askedAt: number
  /** When its first text came. */
  firstAt: number | null
  /** When its latest text or its end came. */
  lastAt: number | null
  /** Text so far, in UTF-16 units. */
  chars: number
  /** Answers that waited before it when it was asked for. */
  ahead: number | null
  /** As in `response.done`. */
  usage: any
  /** How long it waited in the queue, by the server's clock. */
  queuedMs: number | null
}

interface ChatState {
  conversation: Conversation
  connection: ConnectionState
  /** The server wants an API key, or a better one. */
  needsKey: boolean
  /** Rises when another conversation is shown. */
  visits: number
  /** Something to tell the person once. */
  notice: string | null
  /** The latest one, if this page saw it. */
  turn: Turn | null
  /** Who goes first when many ask, as the server says. */
  tier: string | null
  /** Since the page was loaded. */
  reconnects: number
  /** The draft that the server has begun with. */
  drafted: string | null
}

interface ChatOptions {
  /** ws: or wss: address of `/v1/realtime`. */
  endpoint: string
  memory: Memory
  /** Asks the server over HTTP; a browser is not told why an upgrade was refused. */
  isKeyRefused?: (key: string | null) => Promise<boolean>
  WebSocket?: typeof WebSocket
  /** In ms. */
  now?: () => number
}

/** What must outlive a reload. */
interface Memory {
  /** The conversation that is shown. */
  sessionId: string | null
  key: string | null
  /** It is another conversation from here on. */
  visit: (sessionId: string | null) => void
  pending: (sessionId: string | null) => Pending | null
  keep: (sessionId: string | null, pending: Pending | null) => void
}

/** One value and those who want to know when it changes. */
interface Store<T> {
  get: () => T
  /** Shallow merge; listeners run at once, in order. */
  set: (change: Partial<T>) => void
  /** Returns the way out. */
  subscribe: (listener: (state: T) => void) => () => void
}

interface SessionEntry {
  id: string
  title: string
  /** Unix seconds. */
  updatedAt: number
  /** What was found in it; empty unless words were looked for. */
  excerpt: string
}

interface SessionPage {
  /** Latest first. */
  entries: SessionEntry[]
  /** What to ask for the page that follows; null on the last one. */
  next: string | null
}

interface ComposerOptions {
  onSend: (text: string) => void
  /** Called when typing pauses. */
  onDraft: (text: string) => void
  onStop: () => void
  /** Asked for from an empty box. */
  onEditLast: () => void
  isBusy: () => boolean
  /** Under which name the draft is kept. */
  place: () => string
  /** What to say of the text's size, if anything. */
  estimate: (text: string) => string
}

interface ChatsOptions {
  key: () => string | null
  /** The chat that is shown. */
  current: () => string | null
  /** Go to a chat; null is a new one. */
  onOpen: (id: string | null) => void
  /** The person closes the list. */
  onClose: () => void
  /** Whether there is room beside the chat. */
  wide: MediaQueryList
}

interface TypewriterOptions {
  /** Called with all the text to be visible. */
  show: (text: string) => void
  /** True when pacing is unwanted right now. */
  instant: () => boolean
  requestFrame?: (callback: (now: number) => void) => number
  cancelFrame?: (id: number) => void
}

interface BubbleOptions {
  instant: TypewriterOptions["instant"]
  /** The bubble's height may have changed. */
  onGrown: () => void
}

/** Markdown as nodes: text, or an element from a closed list. */
type MarkdownNode = string | MarkdownElement
interface MarkdownElement {
  tag: string
  attrs?: Record<string, string>
  children: MarkdownNode[]
}
