/**
 * What a browser keeps of a conversation before the server has it: the words and files in the field, and the queue.
 * Files are on the server already, so their names are enough. A conversation has a record of its own, so that two tabs
 * with two conversations do not overwrite each other.
 */
import type { Attachment } from "./messages";

/** A question that is on its way. Its id stays the same however often it is sent, so the server stores it once. */
export interface Asked {
  id: string;
  text: string;
  files: Attachment[];
}

export interface Draft {
  text: string;
  files: Attachment[];
  /** The id under which the field was sent, for as long as nobody knows whether that has arrived. */
  tried: string;
  queue: Asked[];
  /** The draft that the server has. */
  synced: string;
  /** The id that a new conversation was to have. */
  chat: string;
}

const NAME = "llama-appliance.draft.";
/** The name of the conversation that is not stored yet. */
export const NEW = "new";
const MOST = 100;

export function readDraft(name: string): Draft | undefined {
  try {
    const { text, files, tried, queue, synced, chat } = JSON.parse(
      localStorage.getItem(NAME + name) ?? "null",
    ) as Draft;
    if (typeof text === "string" && Array.isArray(files) && Array.isArray(queue)) {
      return { text, files, tried, queue, synced, chat };
    }
  } catch {
    // there is none, or storage is forbidden
  }
  return undefined;
}

/** Keep it, and forget one that says nothing. Where there is no room, the oldest one of another conversation goes. */
export function keepDraft(name: string, draft: Draft) {
  if (draft.text === draft.synced && !draft.files.length && !draft.queue.length) return dropDraft(name);
  try {
    const others = Object.keys(localStorage).filter((key) => key.startsWith(NAME) && key !== NAME + name);
    const age = new Map(others.map((key) => [key, Number(/"at":(\d+)/.exec(localStorage.getItem(key) ?? "")?.[1])]));
    others.sort((a, b) => age.get(b)! - age.get(a)!);
    for (const old of others.splice(MOST - 1)) localStorage.removeItem(old);
    for (;;) {
      try {
        return localStorage.setItem(NAME + name, JSON.stringify({ at: Date.now(), ...draft }));
      } catch (error) {
        const oldest = others.pop();
        if (!oldest) throw error;
        localStorage.removeItem(oldest);
      }
    }
  } catch {
    // storage is forbidden: the draft lives as long as the page
  }
}

export function dropDraft(name: string) {
  try {
    localStorage.removeItem(NAME + name);
  } catch {
    // storage is forbidden
  }
}

export function dropDrafts() {
  for (const key of Object.keys(localStorage)) if (key.startsWith(NAME)) localStorage.removeItem(key);
}

/**
 * The words of the field. Those of this browser win while the server has not got them; after that the server's win,
 * because another device may have written since. A draft that was just asked is not a draft any more: the server may
 * have been killed between the question and the news that the field is empty.
 */
export function wordsOf(kept: Draft | undefined, draft: string, asked: string | undefined): string {
  if (kept && kept.text !== kept.synced) return kept.text;
  return draft === asked ? "" : draft;
}
