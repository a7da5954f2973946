/**
 * The conversations of a browser whose server keeps none, in IndexedDB. It answers the routes of `/api/conversations`
 * that the page uses, so that nothing else has to know. Other tabs hear of changes; other devices do not.
 */
import { ApiError } from "./api";
import { childrenOf, type Conversation, type Message } from "./chat";
import { newId } from "./ids";

type Row<T> = T & { gone?: boolean };
type Kept = Row<Conversation>;
type Said = Row<Message> & { conversation: string };
interface Body {
  message?: string;
  ids?: string[];
  leaf?: string | null;
}

/** Two ends: what one of them sends, the other hears in this tab as well. */
const CHANNEL = "llama-appliance.conversations";
const told = new BroadcastChannel(CHANNEL);
export const news = new BroadcastChannel(CHANNEL);
const NAME = "llama-appliance";
const FOUND = 50;
const AROUND = 60; // characters of an excerpt, before and after
let opening: Promise<IDBDatabase> | undefined;

function done<T>(request: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error ?? new Error("IndexedDB"));
  });
}

function opened(): Promise<IDBDatabase> {
  return (opening ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => {
      request.result.createObjectStore("conversations", { keyPath: "id" });
      request.result.createObjectStore("messages", { keyPath: "id" }).createIndex("conversation", "conversation");
      request.result.createObjectStore("files", { keyPath: "hash" });
    };
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error ?? new Error("IndexedDB"));
  }));
}

async function table(name: "conversations" | "messages" | "files"): Promise<IDBObjectStore> {
  return (await opened()).transaction(name, "readwrite").objectStore(name);
}

async function conversation(id: string): Promise<Kept> {
  const found = (await done((await table("conversations")).get(id))) as Kept | undefined;
  if (!found || found.gone) throw new ApiError("There is no such conversation in this browser.", 404, "not_found");
  return found;
}

async function messagesOf(id: string): Promise<Said[]> {
  return done((await table("messages")).index("conversation").getAll(id)) as Promise<Said[]>;
}

/** What the page watches cannot be cloned as it is. */
async function put(name: "conversations" | "messages", row: object) {
  await done((await table(name)).put(JSON.parse(JSON.stringify(row))));
}

/** Change a conversation; one that is not there is made. */
async function change(id: string, fields: Partial<Kept>): Promise<Kept> {
  const known = (await done((await table("conversations")).get(id))) as Kept | undefined;
  const now = Date.now();
  const fresh: Kept = { id, title: "", folder: "", pinned: false, created: now, updated: now, leaf: null, draft: "", settings: {}, change: 0, answering: false };
  const next = { ...fresh, ...known, ...fields, updated: "draft" in fields ? (known?.updated ?? now) : now, change: Math.max(now, (known?.change ?? 0) + 1) };
  await put("conversations", next);
  told.postMessage(id);
  return next;
}

async function read(id: string) {
  const all = await messagesOf(id);
  return { conversation: await conversation(id), messages: all.filter((each) => !each.gone), deleted: all.filter((each) => each.gone).map((each) => each.id) };
}

async function write(id: string, message: Message) {
  const known = (await done((await table("messages")).get(message.id))) as Said | undefined;
  const created = known?.created ?? message.created ?? Date.now();
  const next: Said = { ...message, conversation: id, created, revision: (known?.revision ?? 0) + 1 };
  await put("messages", next);
  const { title } = await conversation(id);
  const line = message.role === "user" && !title ? (message.content ?? "").trim().split("\n", 1)[0]!.slice(0, 60) : title;
  await change(id, { title: line });
  return { message: next, branched: false };
}

async function mark(id: string, ids: string[], gone: boolean, leaf?: string | null) {
  for (const each of await messagesOf(id)) if (ids.includes(each.id)) await put("messages", { ...each, gone });
  await change(id, leaf === undefined ? {} : { leaf });
}

async function remove(id: string, message: string) {
  const known = new Map((await messagesOf(id)).filter((each) => !each.gone).map((each) => [each.id, each]));
  const children = childrenOf(known);
  const ids = [message];
  for (const each of ids) ids.push(...(children.get(each) ?? []).map((child) => child.id));
  await mark(id, ids, true, known.get(message)?.parent ?? null);
  return { ids };
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

async function search(text: string) {
  const words = text.toLowerCase().split(/\s+/);
  const titles = new Map(((await done((await table("conversations")).getAll())) as Kept[]).filter((each) => !each.gone).map((each) => [each.id, each.title]));
  const data = [];
  for (const each of (await done((await table("messages")).getAll())) as Said[]) {
    const content = each.content ?? "";
    const at = content.toLowerCase().indexOf(words[0]!);
    if (each.gone || !titles.has(each.conversation) || !words.every((word) => content.toLowerCase().includes(word))) continue;
    const hit = `\u0002${content.slice(at, at + words[0]!.length)}\u0003`;
    const excerpt = content.slice(Math.max(0, at - AROUND), at) + hit + content.slice(at + words[0]!.length, at + AROUND);
    data.push({ conversation: each.conversation, message: each.id, title: titles.get(each.conversation)!, excerpt });
    if (data.length === FOUND) break;
  }
  return { data };
}

/** Answer a route below `/api/conversations`. */
export async function local(method: string, path: string, body: unknown): Promise<unknown> {
  const url = new URL(path, "http://local/");
  const [id = "", part = "", message = ""] = url.pathname.split("/").slice(3).map(decodeURIComponent);
  const given = (body ?? {}) as Body;
  if (id === "search") return search(url.searchParams.get("q") ?? "");
  if (id === "attachments" && method === "GET") return ((await done((await table("files")).get(part))) as { blob: Blob }).blob;
  if (id === "attachments") {
    const file = { hash: newId(), blob: body as Blob };
    await done((await table("files")).put(file));
    return { hash: file.hash, size: file.blob.size };
  }
  if (!id && method === "DELETE") {
    for (const name of ["conversations", "messages", "files"] as const) await done((await table(name)).clear());
    told.postMessage("");
    return undefined;
  }
  if (!id) {
    const all = (await done((await table("conversations")).getAll())) as Kept[];
    return { conversations: all.filter((each) => !each.gone).sort((a, b) => b.updated - a.updated) };
  }
  if (part === "messages" && method === "PUT") return write(id, body as Message);
  if (part === "messages" && method === "DELETE") return remove(id, message);
  if (part === "messages") return mark(id, given.ids ?? [], false, given.leaf ?? null);
  if (part === "fork") return fork(id, given.message ?? "");
  if (part === "restore") return change(id, { gone: false });
  if (method === "DELETE") return change(id, { gone: true });
  return method === "PUT" ? change(id, body as Partial<Kept>) : read(id);
}
