/**
 * What a browser keeps of a conversation before the server has it: the words and files in the field, and the queue.
 * Files are on the server already, so their names are enough. A conversation has a record of its own, so that two tabs
 * with two conversations do not overwrite each other.
 */
import type { Attachment, Settings } from "./messages";
import { Records } from "./records";

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
  /** What was set for a new conversation, its system prompt above all. */
  settings?: Settings;
}

/** The name of the conversation that is not stored yet. */
export const NEW = "new";
export const drafts = new Records("llama-appliance.draft.");

export function readDraft(name: string): Draft | undefined {
  const draft = drafts.read(name) as unknown as Draft;
  const whole = typeof draft.text === "string" && Array.isArray(draft.files) && Array.isArray(draft.queue);
  return whole ? draft : undefined;
}

/** Keep it, and forget one that says nothing. */
export function keepDraft(name: string, draft: Draft) {
  const isEmpty = draft.text === draft.synced && !draft.files.length && !draft.queue.length;
  if (isEmpty && !Object.keys(draft.settings ?? {}).length) drafts.drop(name);
  else drafts.keep(name, draft);
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
