/** The list of all conversations, and which of them is open. The server owns them; this follows its news. */
import { oneByOne } from "./again";
import { ApiError } from "./api";
import { documentText, isDocument } from "./asking";
import { Chat } from "./chat.svelte";
import { drafts, NEW, readDraft } from "./drafts";
import { events, type ServerEvent } from "./events.svelte";
import { newId, save } from "./ids";
import { keeping, ROOT } from "./keeping.svelte";
import { blank, type Attachment, type Conversation, type Deleted, type Hit } from "./messages";
import type { Message, Settings, Whole } from "./messages";
import { t } from "./prefs.svelte";
import { questions } from "./question.svelte";
import { toasts } from "./toasts.svelte";

interface Listing {
  conversations: Conversation[];
  deleted?: Deleted[];
  /** The newest change that it knows of, and the one that it builds on; none: it is all there is. */
  change?: number;
  since?: number;
  presets?: Record<string, Settings>;
  bytes?: number;
  limit?: number;
}

/** The name under which the settings of new conversations are kept among the presets. */
export const FRESH = "*";
const SOON = 250; // ms; the news of one answer come in groups, and are read together

/** A conversation outlives the effect in which it was opened, so what it derives must not belong to that. */
function made(info: Conversation, stored: boolean): Chat {
  let chat!: Chat;
  $effect.root(() => void (chat = new Chat(info, stored, () => chats.open)));
  return chat;
}

class Chats {
  list = $state.raw<Conversation[]>([]);
  /** Those whose deletion can be taken back, the latest first. */
  bin = $state.raw<Deleted[]>([]);
  presets = $state.raw<Record<string, Settings>>({});
  known = $state(false);
  /** The list has been asked for, and has come or failed. */
  asked = $state(false);
  bytes = $state(0);
  limit = $state(0);
  open = $state.raw<Chat>();

  private following = false;
  private newest = 0;
  /** Those that are deleted here now: the server tells everybody of that before it answers. */
  private leaving: string[] = [];
  private soon: ReturnType<typeof setTimeout> | undefined;

  constructor() {
    events.listen((event) => this.hear(event));
  }

  /** Begin a conversation; the server hears of it with the first message. */
  begin() {
    this.open?.leave();
    const kept = readDraft(NEW);
    const id = kept?.tried ? kept.chat : newId(); // it may have arrived
    this.open = made({ ...blank(id), settings: { ...this.fresh, ...kept?.settings } }, false);
    this.open.chosen = { ...kept?.settings };
    if (kept?.tried) void this.open.outbox.back();
  }

  /** Begin one, and show it. */
  beginShown() {
    location.hash = "#/chat";
    this.begin();
  }

  /** The settings of a new conversation: those that somebody chose for it, and else the model used last. */
  private get fresh(): Settings {
    const { model = this.list[0]?.settings.model, ...rest } = this.presets[FRESH] ?? {};
    return { ...rest, ...(model ? { model } : {}) };
  }

  async show(id: string) {
    if (this.open?.info.id === id) return;
    this.open?.leave();
    const chat = made(blank(id, 0), true);
    this.open = chat;
    try {
      await chat.refresh();
    } catch (error) {
      if (error instanceof ApiError && error.status === 0) return; // it comes when the server is back
      toasts.failed(error);
      if (this.open === chat) location.hash = "#/chat";
    }
  }

  /** Delete conversations, with one way back for all of them. */
  async remove(...gone: Conversation[]) {
    const wanted = (this.leaving = gone.map((each) => each.id));
    try {
      await this.removed(await keeping.ask<{ ids: string[] }>("DELETE", ROOT, { ids: wanted }));
    } finally {
      this.leaving = [];
    }
  }

  private async removed({ ids }: { ids: string[] }) {
    for (const id of ids) drafts.drop(id);
    const open = this.open?.info.id ?? "";
    if (ids.includes(open)) {
      if (location.hash.startsWith("#/chat/")) location.hash = "#/chat";
      else this.begin();
    }
    const shown = ids.includes(open) ? open : undefined;
    const told = t("chosenDeleted", { count: ids.length });
    toasts.tell(told, "told", { label: t("undo"), run: () => this.restore(ids, shown).catch(toasts.failed) });
    await this.read();
  }

  /** Take a deletion back, and open the one that was shown. */
  async restore(ids: string[], shown: string | undefined) {
    await keeping.ask("POST", `${ROOT}/restore`, { ids });
    if (shown) location.hash = `#/chat/${shown}`;
    await this.read();
  }

  async fork(message: Message) {
    const made = await keeping.ask<Conversation>("POST", `${ROOT}/${this.open!.info.id}/fork`, { message: message.id });
    location.hash = `#/chat/${made.id}`;
  }

  async change(conversation: Conversation, fields: Partial<Conversation>) {
    await keeping.ask("PUT", `${ROOT}/${conversation.id}`, fields);
    if (this.open?.info.id === conversation.id) await this.open.refresh();
    await this.read();
  }

  async rename(conversation: Conversation) {
    const title = await questions.ask(t("rename"), conversation.title);
    if (title !== undefined) await this.change(conversation, { title });
  }

  async search(text: string): Promise<Hit[]> {
    return (await keeping.ask<{ data: Hit[] }>("GET", `${ROOT}/search?q=${encodeURIComponent(text)}`)).data;
  }

  async attach(file: File): Promise<Attachment> {
    const read = isDocument(file);
    const type = read ? "text/plain" : file.type || "text/plain";
    const { hash, size } = await keeping.store(read ? new Blob([await documentText(file, file.name)]) : file, type);
    return { hash, size, type, name: file.name.slice(-255) || "file" };
  }

  /** Keep settings under a name, for every conversation and, with the server, every browser; null deletes them. */
  async keep(name: string, settings: Settings | null) {
    await keeping.ask("PUT", `${ROOT}/presets`, { name, settings });
    await this.read();
  }

  async import(file: File) {
    const { imported, skipped } = await keeping.import(file);
    await this.read(); // else the words come before the chats
    toasts.tell(t("imported", { count: imported.length, skipped: skipped.length }));
  }

  /** Save some conversations, or all, as a file. */
  async export(...ids: string[]) {
    const response = await keeping.export(ids);
    const name =
      /filename\*=UTF-8''(.+)/.exec(response.headers.get("Content-Disposition") ?? "")?.[1] ?? "conversations";
    save(await response.blob(), decodeURIComponent(name));
  }

  /** Save some conversations as one Markdown file. */
  async exportText(...ids: string[]) {
    const { markdownOf } = await import("./exported");
    const texts: string[] = [];
    let title = "";
    for (const id of ids) {
      const whole = await keeping.ask<Whole>("GET", `${ROOT}/${id}`);
      ({ title } = whole.conversation);
      texts.push(markdownOf(whole, t));
    }
    const safe = title.replace(/[\\/:*?"<>|]+/g, " ").trim();
    const name = (ids.length === 1 && safe.slice(0, 80)) || "conversations";
    save(new Blob([texts.join("\n---\n\n")], { type: "text/markdown" }), `${name}.md`);
  }

  async empty() {
    await keeping.ask("DELETE", `${ROOT}?all=1`);
    drafts.dropAll();
    this.beginShown();
  }

  private hear({ event, conversation }: ServerEvent & { conversation?: string }) {
    const { open } = this;
    const isAnother = event === "connected"; // another server may answer now
    if (!isAnother && event !== "conversation_changed") return;
    // What one browser has lost altogether leaves no trace.
    if (isAnother || (keeping.here && !conversation)) this.newest = 0;
    if (isAnother) {
      keeping.forget();
      void this.read();
      return void open?.outbox.back();
    }
    this.soon ??= setTimeout(() => {
      this.soon = undefined;
      void this.read();
    }, SOON);
    if (!open?.stored || this.leaving.includes(open.info.id)) return;
    if ((conversation || open.info.id) === open.info.id) open.refresh().catch(() => undefined);
  }

  /** Read the list, or what has changed in it. */
  readonly read = oneByOne(async () => {
    const since = this.newest;
    try {
      const found = await keeping.list<Listing>(since);
      if (since === this.newest) await this.take(found);
      else void this.read(); // it builds on what counts no more
    } catch {
      // the event connection shows that the server is away, and this is read again when it is back
    } finally {
      this.asked = true;
    }
  });

  private async take({ conversations, deleted = [], change = 0, since = 0, presets, bytes = 0, limit = 0 }: Listing) {
    const news = new Set([...conversations, ...deleted].map((each) => each.id));
    const old = <T extends { id: string }>(list: T[]) => (since ? list.filter((each) => !news.has(each.id)) : []);
    this.list = [...conversations, ...old(this.list)].sort((a, b) => b.updated - a.updated);
    this.bin = [...deleted.filter((each) => each.left > 0), ...old(this.bin)];
    for (const each of deleted) {
      setTimeout(() => (this.bin = this.bin.filter((other) => other !== each)), each.left);
    }
    Object.assign(this, { newest: change, bytes, limit, presets: presets ?? (since ? this.presets : {}) });
    if (keeping.here && !this.following) {
      this.following = true;
      const { news } = await import("./local");
      news.onmessage = ({ data }) =>
        this.hear({ event: "conversation_changed", conversation: String(data) || undefined });
    }
    const { open } = this;
    if (!this.known && open && !open.stored) void open.change({ settings: { ...this.fresh, ...open.info.settings } });
    this.known = true;
  }
}

export const chats = new Chats();
