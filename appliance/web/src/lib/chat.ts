/** The shapes of `/api/conversations`; the server's `wire/conversations.py` says what they mean. */
export interface Attachment {
  hash: string;
  name: string;
  type: string;
  size: number;
}

export interface Timings {
  prompt_n?: number;
  prompt_ms?: number;
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
}

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

export interface Whole {
  conversation: Conversation;
  messages: Message[];
  deleted: string[];
}

type Known = ReadonlyMap<string, Message>;

export function childrenOf(messages: Known, parent: string | null): Message[] {
  return [...messages.values()]
    .filter((message) => (message.parent ?? null) === parent)
    .sort((a, b) => (a.created ?? 0) - (b.created ?? 0));
}

/** The newest leaf below a message: what choosing a sibling shows. */
export function newestBelow(messages: Known, id: string): string {
  for (;;) {
    const last = childrenOf(messages, id).at(-1);
    if (!last) return id;
    id = last.id;
  }
}

/** The shown branch, root first. A leaf that is gone gives way to the newest message. */
export function branch(messages: Known, leaf: string | null): Message[] {
  const path: Message[] = [];
  let at = messages.get(leaf ?? "") ?? [...messages.values()].sort((a, b) => (a.created ?? 0) - (b.created ?? 0)).at(-1);
  while (at && path.length <= messages.size) {
    path.push(at);
    at = messages.get(at.parent ?? "");
  }
  return path.reverse();
}
