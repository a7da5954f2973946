/** Conversations and their messages as `/api/conversations` has them, and the tree that they make. */
export interface Attachment {
  hash: string;
  name: string;
  type: string;
  size: number;
}

export interface Timings {
  prompt_n?: number;
  cache_n?: number;
  predicted_n?: number;
  predicted_ms?: number;
  predicted_per_second?: number;
}

export interface ToolCall {
  id: string;
  function: { name: string; arguments: string };
}

export interface Message {
  id: string;
  parent?: string | null;
  role: "system" | "user" | "assistant" | "tool";
  content?: string;
  reasoning?: string;
  tool_calls?: ToolCall[];
  tool_call_id?: string;
  model?: string;
  attachments?: Attachment[];
  state?: "done" | "answering" | "stopped" | "failed" | "interrupted";
  error?: string;
  timings?: Timings | null;
  created?: number;
  revision?: number;
}

/** Parameters are sent only where they are set; the server's own values hold for the others. */
export interface Settings {
  model?: string;
  system?: string;
  params?: Record<string, number | string>;
  /** How much the model thinks before it answers, where it can. */
  effort?: Effort;
  /** The JSON schema that an answer has to follow. */
  schema?: string;
  /** Names of the server's tools that the model may call. */
  tools?: string[];
}

export type Effort = "off" | "low" | "medium" | "high";

export interface Conversation {
  id: string;
  title: string;
  folder: string;
  pinned: boolean;
  created: number;
  updated: number;
  leaf: string | null;
  draft: string;
  settings: Settings;
  change: number;
  answering: boolean;
}

export function blank(id: string, now = Date.now()): Conversation {
  const empty = { title: "", folder: "", draft: "", pinned: false, leaf: null, settings: {}, answering: false };
  return { id, ...empty, created: now, updated: now, change: 0 };
}

/** What a search finds: a message, or the title of a conversation. */
export interface Hit {
  conversation: string;
  message: string | null;
  title: string;
  excerpt: string;
}

/** One whose deletion can be taken back for another `left` ms. */
export interface Deleted {
  id: string;
  title: string;
  left: number;
}

export interface Whole {
  conversation: Conversation;
  messages: Message[];
  deleted: string[];
}

/** Whole conversations with the attachments that they name, in base64. */
export interface Carton {
  conversations: Whole[];
  files: Record<string, { type: string; data: string }>;
}

type Known = ReadonlyMap<string, Message>;

/** The messages by their parent, those of one parent by age. */
export type Children = ReadonlyMap<string | null, Message[]>;

export function childrenOf(messages: Known): Children {
  const children = new Map<string | null, Message[]>();
  for (const message of messages.values()) {
    const parent = message.parent ?? null;
    const known = children.get(parent);
    if (known) known.push(message);
    else children.set(parent, [message]);
  }
  for (const list of children.values()) if (list.length > 1) list.sort((a, b) => (a.created ?? 0) - (b.created ?? 0));
  return children;
}

/** The newest leaf below a message: what choosing a sibling shows. */
export function newestBelow(children: Children, id: string): string {
  for (;;) {
    const last = children.get(id)?.at(-1);
    if (!last) return id;
    id = last.id;
  }
}

/** Those that answer a message, at any distance. */
export function below(children: Children, id: string): string[] {
  const found = [id];
  for (const each of found) found.push(...(children.get(each) ?? []).map((child) => child.id));
  return found.slice(1);
}

/** The shown branch, root first. A leaf that is gone gives way to the newest message. */
export function branch(messages: Known, leaf: string | null): Message[] {
  const path: Message[] = [];
  let at =
    messages.get(leaf ?? "") ?? [...messages.values()].sort((a, b) => (a.created ?? 0) - (b.created ?? 0)).at(-1);
  while (at && path.length <= messages.size) {
    path.push(at);
    at = messages.get(at.parent ?? "");
  }
  return path.reverse();
}

/** A message in place of everything before it: the model is sent its text, and not what it sums up. */
export function isSummary(message: Message): boolean {
  return message.role === "system" && !!message.model && !!message.content && message.state !== "failed";
}

/** The last answer of a branch with calls of tools, and those of them that have no result; none once it went on. */
export function unanswered(path: Message[]): { caller?: Message; calls: ToolCall[] } {
  const at = path.findLastIndex((message) => message.role !== "tool");
  const caller = path[at];
  if (!caller?.tool_calls?.length || caller.state === "answering") return { calls: [] };
  return { caller, calls: withoutResult(path, at) };
}

/** The calls of an answer that the conversation went on without. */
export function skipped(path: Message[], message: Message): ToolCall[] {
  const at = path.indexOf(message);
  return path.findLastIndex((each) => each.role !== "tool") > at && at >= 0 ? withoutResult(path, at) : [];
}

/** The calls of a message that none of the results right behind it is of. */
export function withoutResult(path: Message[], at: number): ToolCall[] {
  const next = path.findIndex((each, place) => place > at && each.role !== "tool");
  const results = new Set(path.slice(at + 1, next < 0 ? undefined : next).map((each) => each.tool_call_id));
  return path[at]?.tool_calls?.filter((call) => !results.has(call.id)) ?? [];
}

/**
 * A stored message in the shape that the page counts on. The server keeps calls and timings as they came, from models
 * and from other programs' files, so they can be anything.
 */
export function sound(message: Message): Message {
  const { tool_calls: calls, timings } = message;
  return {
    ...message,
    ...(calls ? { tool_calls: (calls as unknown[]).flatMap(soundCall) } : {}),
    ...(timings
      ? { timings: Object.fromEntries(Object.entries(timings).filter(([, value]) => Number.isFinite(value))) }
      : {}),
  };
}

function soundCall(call: unknown): ToolCall[] {
  const { id, function: called } = Object(call) as Partial<Record<string, unknown>>;
  const { name, arguments: given } = Object(called) as Partial<Record<string, unknown>>;
  if (typeof name !== "string") return [];
  const text = typeof given === "string" ? given : JSON.stringify(given ?? {});
  return [{ id: typeof id === "string" ? id : "", function: { name, arguments: text } }];
}

/** What the server had before it was killed, with what this page read of the same answer; nothing if that is no more. */
export function longer(stored: Message, seen: Pick<Message, "content" | "reasoning">): Message | undefined {
  const { content = "", reasoning = "" } = stored;
  const { content: text = "", reasoning: thoughts = "" } = seen;
  const goesOn = text.startsWith(content) && thoughts.startsWith(reasoning);
  return goesOn && text.length + thoughts.length > content.length + reasoning.length
    ? { ...stored, content: text, reasoning: thoughts }
    : undefined;
}

/** The end of a branch, as far as it has no more than so many characters; its last message always. */
export function newest(path: Message[], room: number): Message[] {
  let from = path.length - 1;
  for (let left = room; from > 0; from--) {
    if ((left -= path[from]!.content?.length ?? 0) < (path[from - 1]!.content?.length ?? 0)) break;
  }
  return path.slice(Math.max(from, 0));
}
