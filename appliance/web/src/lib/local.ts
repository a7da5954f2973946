/**
 * The conversations of a browser whose server keeps none, in IndexedDB. It answers the routes of `/api/conversations`
 * that the page uses, so that nothing else has to know. Other tabs hear of changes; other devices do not.
 */
import { openDB, type DBSchema } from "idb";
import { ApiError } from "./api";
import { below, blank, childrenOf } from "./messages";
import type { Carton, Conversation, Hit, Message, Settings } from "./messages";
import { base64, folded, newId } from "./ids";

/** `gone`: when it was deleted. */
type Row<T> = T & { gone?: number };
type Kept = Row<Conversation>;
type Said = Row<Message> & { conversation: string };
interface Stored {
  hash: string;
  blob: Blob;
  added?: number;
}
interface Preset {
  name: string;
  settings: Settings | null;
}
interface Body {
  message?: string;
  ids?: string[];
  moved?: string[];
  leaf?: string | null;
}

/** Two ends: what one of them sends, the other hears in this tab as well. */
const CHANNEL = "llama-appliance.conversations";
const told = new BroadcastChannel(CHANNEL);
export const news = new BroadcastChannel(CHANNEL);
const FOUND = 50;
const UNDO = 60_000; // ms in which a deletion can be taken back
const UNUSED = 86_400_000; // ms in which a file that is attached may wait to be sent
const AROUND = 60; // characters of an excerpt, before and after
let purging: Promise<void> | undefined;

interface Tables extends DBSchema {
  conversations: { key: string; value: Kept };
  messages: { key: string; value: Said; indexes: { conversation: string } };
  files: { key: string; value: Stored };
  presets: { key: string; value: Preset };
}
const database = await openDB<Tables>("llama-appliance", 2, {
  upgrade(made, oldVersion) {
    made.createObjectStore("presets", { keyPath: "name" });
    if (oldVersion) return;
    made.createObjectStore("conversations", { keyPath: "id" });
    made.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
    made.createObjectStore("files", { keyPath: "hash" });
  },
});

/** Delete for good what nobody can take back any more, once for each start of the page. */
async function purge() {
  const old = (row: Row<unknown>) => !!row.gone && Number(row.gone) < Date.now() - UNDO; // 0: it was taken back
  const lost = new Set((await database.getAll("conversations")).filter(old).map((each) => each.id));
  const files = new Set<string>();
  for (const each of await database.getAll("messages")) {
    if (old(each) || lost.has(each.conversation)) await database.delete("messages", each.id);
    else for (const file of each.attachments ?? []) files.add(file.hash);
  }
  for (const id of lost) await database.delete("conversations", id);
  for (const { hash, added = 0 } of await database.getAll("files")) {
    if (!files.has(hash) && added < Date.now() - UNUSED) await database.delete("files", hash);
  }
}

async function conversation(id: string): Promise<Kept> {
  const found = await database.get("conversations", id);
  if (!found || found.gone) throw new ApiError("There is no such conversation in this browser.", 404, "not_found");
  return found;
}

const messagesOf = (id: string) => database.getAllFromIndex("messages", "conversation", id);

/** What the page watches cannot be cloned as it is. */
async function put<Name extends "conversations" | "messages" | "presets">(name: Name, row: Tables[Name]["value"]) {
  await database.put(name, JSON.parse(JSON.stringify(row)) as typeof row);
}

/** Change a conversation; one that is not there is made. */
async function change(id: string, fields: Partial<Kept>): Promise<Kept> {
  const known = await database.get("conversations", id);
  const now = Date.now();
  const updated = "draft" in fields || "gone" in fields ? (known?.updated ?? now) : now;
  const next = { ...blank(id, now), ...known, ...fields, updated, change: Math.max(now, (known?.change ?? 0) + 1) };
  await put("conversations", next);
  told.postMessage(id);
  return next;
}

async function read(id: string) {
  const all = await messagesOf(id);
  return {
    conversation: await conversation(id),
    messages: all.filter((each) => !each.gone),
    deleted: all.filter((each) => each.gone).map((each) => each.id),
  };
}

async function write(id: string, message: Message) {
  const known = await database.get("messages", message.id);
  const created = known?.created ?? message.created ?? Date.now();
  const next: Said = { ...message, conversation: id, created, revision: (known?.revision ?? 0) + 1 };
  await put("messages", next);
  const { title } = await conversation(id);
  const [line = ""] = message.role === "user" ? (message.content ?? "").trim().split("\n", 1) : [];
  await change(id, { title: title || line.slice(0, 60) });
  return { message: next, branched: false };
}

async function alter(id: string, ids: string[], fields: Partial<Said>) {
  for (const each of await messagesOf(id)) if (ids.includes(each.id)) await put("messages", { ...each, ...fields });
}

async function remove(id: string, message: string, alone: boolean) {
  const known = new Map((await messagesOf(id)).filter((each) => !each.gone).map((each) => [each.id, each]));
  const children = childrenOf(known);
  const { leaf } = await conversation(id);
  const parent = known.get(message)?.parent ?? null;
  const moved = alone ? (children.get(message) ?? []).map((child) => child.id) : [];
  const ids = [message, ...(alone ? [] : below(children, message))];
  await alter(id, moved, { parent });
  await alter(id, ids, { gone: Date.now() });
  await change(id, { leaf: alone && leaf !== message ? leaf : parent });
  return { ids, moved };
}

async function restore(id: string, { ids = [], moved = [], leaf = null }: Body) {
  await alter(id, moved, { parent: ids[0] ?? null });
  await alter(id, ids, { gone: 0 });
  await change(id, { leaf });
}

async function fork(id: string, leaf: string) {
  const known = new Map((await messagesOf(id)).map((each) => [each.id, each]));
  const { id: _, ...fields } = await conversation(id);
  const made = newId();
  let below: Said | undefined;
  for (let at = known.get(leaf); at; at = known.get(at.parent ?? "")) {
    const copy: Said = { ...at, id: newId(), conversation: made, parent: null };
    if (below) await put("messages", { ...below, parent: copy.id });
    else fields.leaf = copy.id;
    below = copy;
  }
  if (below) await put("messages", below);
  return change(made, { ...fields, pinned: false, draft: "" });
}

/** Titles, then messages, of which every word is a part. */
async function search(text: string) {
  const words = folded(text).split(/\s+/).filter(Boolean);
  const kept = (await database.getAll("conversations")).filter((each) => !each.gone);
  const titles = new Map(kept.map((each) => [each.id, each.title]));
  const data: Hit[] = [];
  const named = words.length ? kept.filter((each) => words.every((word) => folded(each.title).includes(word))) : [];
  for (const { id, title } of named.slice(0, FOUND)) {
    data.push({ conversation: id, message: null, title, excerpt: title });
  }
  for (const each of await database.getAll("messages")) {
    const content = each.content ?? "";
    if (data.length === FOUND || !words.length) break;
    const whole = folded(content);
    if (each.gone || !titles.has(each.conversation) || !words.every((word) => whole.includes(word))) continue;
    const plain = whole.length === content.length ? content : whole; // only then are the places the same
    const at = whole.indexOf(words[0]!);
    const hit = `\u0002${plain.slice(at, at + words[0]!.length)}\u0003`;
    const excerpt = plain.slice(Math.max(0, at - AROUND), at) + hit + plain.slice(at + words[0]!.length, at + AROUND);
    data.push({ conversation: each.conversation, message: each.id, title: titles.get(each.conversation)!, excerpt });
  }
  return { data };
}

/** Some conversations, or all, with their files: what an export is made of. */
export async function carton(ids: string[]): Promise<Carton> {
  const found: Carton = { conversations: [], files: {} };
  for (const each of await database.getAll("conversations")) {
    if (each.gone || (ids.length && !ids.includes(each.id))) continue;
    const whole = await read(each.id);
    for (const message of whole.messages) {
      const there = [];
      for (const file of message.attachments ?? []) {
        const stored = await database.get("files", file.hash);
        if (!stored) continue;
        found.files[file.hash] = { type: file.type, data: await base64(stored.blob) };
        there.push(file);
      }
      message.attachments = there;
    }
    found.conversations.push(whole);
  }
  return found;
}

/** Keep the content of an export; conversations that are here already stay as they are. */
export async function unpack({ conversations, files }: Carton) {
  const imported: string[] = [];
  const skipped: string[] = [];
  for (const [hash, { type, data }] of Object.entries(files)) {
    const blob = new Blob([Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0))], { type });
    await database.put("files", { hash, blob, added: Date.now() });
  }
  for (const { conversation: whole, messages } of conversations) {
    const known = await database.get("conversations", whole.id);
    if (known && !known.gone) {
      skipped.push(whole.id);
      continue;
    }
    for (const { id } of messages) {
      const { conversation = whole.id } = (await database.get("messages", id)) ?? {};
      if (conversation === whole.id) continue;
      throw new ApiError(`The message '${id}' is in another conversation.`, 409, "conflict");
    }
    for (const message of messages) await put("messages", { ...message, conversation: whole.id });
    await put("conversations", { ...whole, change: Date.now() });
    imported.push(whole.id);
  }
  told.postMessage("");
  return { imported, skipped };
}

/** All of them, or those that have changed since; a change is a time, in which more than one may have come. */
async function list(since: number) {
  await (purging ??= purge());
  const presets = Object.fromEntries((await database.getAll("presets")).map(({ name, settings }) => [name, settings]));
  const kept = await database.getAll("conversations");
  const changed = kept.filter((each) => each.change >= since);
  const left = ({ gone = 0 }: Kept) => Math.max(gone + UNDO - Date.now(), 0);
  return {
    change: kept.reduce((newest, each) => Math.max(newest, each.change), 0),
    since,
    conversations: changed.filter((each) => !each.gone).sort((a, b) => b.updated - a.updated),
    deleted: changed
      .filter((each) => each.gone)
      .sort((a, b) => b.gone! - a.gone!)
      .map((each) => ({ id: each.id, title: each.title, left: left(each) })),
    presets,
  };
}

async function preset(given: Preset) {
  if (given.settings) await put("presets", given);
  else await database.delete("presets", given.name);
  told.postMessage("");
}

/** Answer a route below `/api/conversations`. */
export async function local(method: string, path: string, body: unknown): Promise<unknown> {
  const url = new URL(path, "http://local/");
  const [id = "", part = "", message = ""] = url.pathname.split("/").slice(3).map(decodeURIComponent);
  const given = (body ?? {}) as Body;
  if (id === "search") return search(url.searchParams.get("q") ?? "");
  if (id === "attachments" && method === "GET") return (await database.get("files", part))!.blob;
  if (id === "attachments") {
    const hash = `${newId()}${newId()}`.replaceAll("-", ""); // has the form of the server's names
    const file: Stored = { hash, blob: body as Blob, added: Date.now() };
    await database.put("files", file);
    return { hash: file.hash, size: file.blob.size };
  }
  if (!id && method === "DELETE" && given.ids) {
    const kept = new Set((await database.getAll("conversations")).filter((each) => !each.gone).map((each) => each.id));
    const ids = given.ids.filter((each) => kept.has(each));
    for (const each of ids) await change(each, { gone: Date.now() });
    return { ids };
  }
  if (!id && method === "DELETE") {
    for (const name of ["conversations", "messages", "files"] as const) await database.clear(name);
    told.postMessage("");
    return undefined;
  }
  if (!id) return list(Number(url.searchParams.get("since")));
  if (id === "restore") {
    for (const each of given.ids ?? []) await change(each, { gone: 0 });
    return undefined;
  }
  if (id === "presets") return preset(body as Preset);
  if (part === "messages" && method === "PUT") return write(id, body as Message);
  if (part === "messages" && method === "DELETE") return remove(id, message, url.searchParams.has("alone"));
  if (part === "messages") return restore(id, given);
  if (part === "fork") return fork(id, given.message ?? "");
  return method === "PUT" ? change(id, body as Partial<Kept>) : read(id);
}
