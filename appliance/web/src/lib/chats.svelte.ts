/** The conversations: the list of all, and the one that is open. The server owns them; this follows its news. */
import { SvelteMap, SvelteSet } from "svelte/reactivity";
import { documentText, isDocument, requestOf } from "./asking";
import { branch, childrenOf, newestBelow, unanswered } from "./chat";
import type { Attachment, Conversation, Message, Settings, ToolCall, Whole } from "./chat";
import { events, type ServerEvent } from "./events.svelte";
import { newId } from "./ids";
import { keeping, ROOT } from "./keeping.svelte";
import { Live } from "./live.svelte";
import { t } from "./prefs.svelte";
import { toasts } from "./toasts.svelte";
import { tools } from "./tools.svelte";

const DRAFT_AFTER = 600;
/** Rounds of tools that follow each other without the person doing anything. */
const ROUNDS = 16;
const SUM_UP =
  "Summarise our conversation so far for yourself, so that we can go on without the text before: goals, facts, decisions, " +
  "names, code and open questions. Write only the summary, in the language of the conversation.";

interface Listing {
  conversations: Conversation[];
  presets?: Record<string, Settings>;
  bytes?: number;
  limit?: number;
}

export interface Asked {
  text: string;
  files: Attachment[];
}

/** The open conversation. */
export class Chat {
  info = $state.raw<Conversation>()!;
  messages = $state.raw<ReadonlyMap<string, Message>>(new Map());
  lives = new SvelteMap<string, Live>();
  /** What is sent when the answer under way has ended. */
  queue = $state<Asked[]>([]);
  /** Further models that the next question goes to, and the question whose answers are shown side by side. */
  also = $state.raw<string[]>([]);
  beside = $state.raw<string>();
  /** Calls of tools that run. */
  using = new SvelteSet<string>();
  /** False for a new one that the server does not know yet. */
  stored = $state(true);
  readonly children = $derived(childrenOf(this.messages));
  private readonly leaf = $derived(this.info.leaf);
  /** The shown branch. */
  readonly path: Message[] = $derived(branch(this.messages, this.leaf));
  private latest = 0;
  private reading: Promise<void> | undefined;
  private again = false;
  private drafting = 0;
  /** Changes on their way to the server, and the number of the newest one that it has. */
  private changing = 0;
  private changed = 0;

  constructor(info: Conversation, stored: boolean) {
    this.info = info;
    this.stored = stored;
  }

  get answering(): Message | undefined {
    return this.path.find((message) => message.state === "answering");
  }

  /** Calls of tools that wait for a decision or run, and the answer that has them. */
  get pending(): ToolCall[] {
    return unanswered(this.path).calls;
  }

  get caller(): Message | undefined {
    return unanswered(this.path).caller;
  }

  siblings(message: Message): Message[] {
    return this.children.get(message.parent ?? null) ?? [];
  }

  /** Read what has changed; news that come meanwhile are read once more. */
  refresh(): Promise<void> {
    this.again = true;
    return (this.reading ??= (async () => {
      try {
        while (this.again) {
          this.again = false;
          this.take(await keeping.ask<Whole>("GET", `${ROOT}/${this.info.id}?since=${this.latest}`));
        }
      } finally {
        this.reading = undefined;
      }
    })());
  }

  async send({ text, files }: Asked, model: string | undefined) {
    const question: Message = { id: newId(), parent: this.path.at(-1)?.id ?? null, role: "user", content: text, attachments: files };
    await this.make();
    await this.write(question);
    const also = this.also.filter((each) => each !== model);
    this.beside = also.length ? question.id : undefined;
    await this.answer(question.id, model);
    const leaf = this.info.leaf!;
    for (const other of also) await this.answer(question.id, other);
    if (also.length) await this.show(leaf);
  }

  /** Ask for an answer to the branch that ends with `parent`; beside others that are there. */
  async answer(parent: string | null, model: string | undefined) {
    const message: Message = { id: newId(), parent, role: "assistant", model: model ?? "", state: "answering", content: "" };
    const request = await requestOf(branch(this.messages, parent), this.info.settings, model);
    await this.write(message);
    this.ask(message.id, request);
    await this.show(message.id);
  }

  /** Put a summary at the end of the branch, in whose place the model is sent nothing else of what came before. */
  async compact(model: string | undefined) {
    const message: Message = { id: newId(), parent: this.path.at(-1)!.id, role: "system", model: model ?? "", state: "answering", content: "" };
    const settings = { ...this.info.settings, schema: "", tools: [] };
    const request = await requestOf(this.path, settings, model, [{ role: "user", content: SUM_UP }]);
    await this.write(message);
    this.ask(message.id, request);
    await this.show(message.id);
  }

  /** Run a tool, or tell the model that it may not; when all have answered, the model goes on. */
  async use(call: ToolCall, run: boolean) {
    if (this.using.has(call.id)) return;
    const caller = this.caller!;
    this.using.add(call.id);
    try {
      const content = run ? await tools.run(call) : "The user did not allow this call.";
      const parent = this.path.at(-1)!.id;
      const result: Message = { id: newId(), parent, role: "tool", tool_call_id: call.id, content, model: call.function.name };
      await this.write(result);
      await this.show(result.id);
      if (!this.pending.length) await this.answer(result.id, caller.model);
    } finally {
      this.using.delete(call.id);
    }
  }

  /** Run what needs no question. Only the tab that asked for the answer does that. */
  private async proceed() {
    await tools.read();
    const asked = this.path.findLastIndex((message) => message.role === "user");
    const rounds = this.path.slice(asked).filter((message) => message.tool_calls?.length).length;
    for (const call of rounds > ROUNDS ? [] : this.pending) {
      if (tools.allowed(call.function.name, this.info.id)) await this.use(call, true);
    }
  }

  /** Another question in place of one, as a branch beside it. */
  async edit(message: Message, text: string, model: string | undefined) {
    const { parent, role, attachments } = message;
    const edited: Message = { id: newId(), parent: parent ?? null, role, content: text, attachments };
    await this.write(edited);
    await this.answer(edited.id, model);
  }

  /** Change the text of an answer in place. */
  async rewrite(message: Message, text: string) {
    await this.write({ ...message, content: text });
  }

  /** Go on with an answer that ended too soon. */
  async goOn(message: Message, model: string | undefined) {
    const request = await requestOf(branch(this.messages, message.id), this.info.settings, model);
    await this.write({ ...message, state: "answering", error: "" });
    this.ask(message.id, request);
  }

  async show(leaf: string) {
    this.info = { ...this.info, leaf };
    await this.change({ leaf });
  }

  async choose(sibling: string) {
    await this.show(newestBelow(this.children, sibling));
  }

  async remove(message: Message) {
    const before = this.info.leaf;
    await this.lives.get(message.id)?.stop();
    const { ids } = await keeping.ask<{ ids: string[] }>("DELETE", `${ROOT}/${this.info.id}/messages/${message.id}`);
    const back = async () => {
      await keeping.ask("POST", `${ROOT}/${this.info.id}/messages/restore`, { ids, leaf: before });
      await this.refresh();
      this.info = { ...this.info, leaf: before };
    };
    toasts.tell(t("messageDeleted"), "told", { label: t("undo"), run: () => back().catch((error) => toasts.failed(error)) });
    await this.refresh();
  }

  async change(fields: Partial<Conversation>) {
    this.info = { ...this.info, ...fields };
    if (!this.stored) return;
    this.changing += 1;
    try {
      const { change } = await keeping.ask<Conversation>("PUT", `${ROOT}/${this.info.id}`, fields);
      this.changed = Math.max(this.changed, change);
    } finally {
      this.changing -= 1;
    }
  }

  set(settings: Partial<Settings>) {
    this.change({ settings: { ...this.info.settings, ...settings } }).catch((error) => toasts.failed(error));
  }

  /** Keep what is being written, a moment after the last letter. */
  draft(text: string) {
    clearTimeout(this.drafting);
    this.info = { ...this.info, draft: text };
    if (this.stored) this.drafting = setTimeout(() => void keeping.ask("PUT", `${ROOT}/${this.info.id}`, { draft: text }).catch(() => undefined), DRAFT_AFTER);
  }

  leave() {
    for (const live of this.lives.values()) live.leave();
    this.lives.clear();
  }

  private async make() {
    if (this.stored) return;
    const { settings } = this.info;
    await keeping.ask("PUT", `${ROOT}/${this.info.id}`, { settings });
    this.stored = true;
    location.replace(`#/chat/${this.info.id}`);
  }

  private async write(message: Message) {
    const sent = { ...message, revision: message.revision ?? 0 };
    const answer = await keeping.ask<{ message: Message; branched: boolean }>("PUT", `${ROOT}/${this.info.id}/messages/${message.id}`, sent);
    this.messages = new Map(this.messages).set(answer.message.id, answer.message);
    if (answer.branched) toasts.tell(t("branched"));
  }

  private ask(id: string, request?: object) {
    if (this.lives.has(id)) return;
    const live = new Live(id, request);
    this.lives.set(id, live);
    void live.ended.then(() => this.finish(id, live));
  }

  private async finish(id: string, live: Live) {
    if (keeping.here && this.messages.get(id)?.state === "answering") await this.keepHere(id, live);
    await this.refresh().catch(() => undefined);
    if (this.messages.get(id)?.state !== "answering" && this.lives.get(id) === live) this.lives.delete(id);
    if (live.mine && this.caller?.id === id) await this.proceed().catch((error) => toasts.failed(error));
  }

  /** What the server does where it keeps conversations: write the answer down at its end. */
  private async keepHere(id: string, live: Live) {
    const { content = "", reasoning = "", ...message } = this.messages.get(id)!;
    const state = live.error ? "failed" : live.finished ? "done" : live.stopped ? "stopped" : "interrupted";
    const ended = { ...message, content: content + live.content, reasoning: reasoning + live.reasoning, error: live.error };
    await this.write({ ...ended, tool_calls: live.calls.map((call) => ({ ...call, type: "function" })), timings: live.timings ?? null, state });
  }

  private take(whole: Whole) {
    const { leaf, draft, settings, title, folder, pinned } = this.info;
    const first = !this.latest;
    // The server read this before it knew of the newest changes made here: they are not undone by it.
    const older = !first && (this.changing > 0 || whole.conversation.change < this.changed);
    this.latest = whole.conversation.change;
    const messages = new Map(this.messages);
    for (const message of whole.messages) {
      messages.set(message.id, message);
      if (message.state === "answering") this.ask(message.id);
      else if (this.lives.get(message.id)?.over) this.lives.delete(message.id);
    }
    for (const id of whole.deleted) messages.delete(id);
    this.messages = messages;
    // Another tab may look at another branch, but where it went on with this one, this one follows.
    const follows = branch(messages, whole.conversation.leaf).some((message) => message.id === leaf);
    const kept = !first && leaf && messages.has(leaf) && !follows;
    this.info = { ...whole.conversation, ...(first ? {} : { draft }), ...(kept ? { leaf } : {}), ...(older ? { settings, title, folder, pinned } : {}) };
  }
}

class Chats {
  list = $state.raw<Conversation[]>([]);
  presets = $state.raw<Record<string, Settings>>({});
  known = $state(false);
  bytes = $state(0);
  limit = $state(0);
  open = $state.raw<Chat>();

  private following = false;

  constructor() {
    events.listen((event) => this.hear(event));
  }

  /** Begin a conversation; the server hears of it with the first message. */
  begin(folder = "") {
    this.open?.leave();
    const now = Date.now();
    const settings = this.list[0]?.settings.model ? { model: this.list[0].settings.model } : {};
    const info = { id: newId(), title: "", folder, pinned: false, created: now, updated: now, leaf: null, draft: "", settings, change: 0, answering: false };
    this.open = new Chat(info, false);
  }

  async show(id: string) {
    if (this.open?.info.id === id) return;
    this.open?.leave();
    const chat = new Chat({ id, title: "", folder: "", pinned: false, created: 0, updated: 0, leaf: null, draft: "", settings: {}, change: 0, answering: false }, true);
    this.open = chat;
    try {
      await chat.refresh();
    } catch (error) {
      toasts.failed(error);
      if (this.open === chat) location.hash = "#/chat";
    }
  }

  async remove(conversation: Conversation) {
    await keeping.ask("DELETE", `${ROOT}/${conversation.id}`);
    if (this.open?.info.id === conversation.id) location.hash = "#/chat";
    const back = () => keeping.ask("POST", `${ROOT}/${conversation.id}/restore`).catch((error) => toasts.failed(error));
    toasts.tell(t("conversationDeleted"), "told", { label: t("undo"), run: back });
    await this.read();
  }

  /** Delete several, with one way back for all of them. */
  async removeAll(gone: Conversation[]) {
    const open = gone.some((each) => each.id === this.open?.info.id);
    for (const each of gone) await keeping.ask("DELETE", `${ROOT}/${each.id}`);
    if (open) this.begin();
    const back = async () => {
      for (const each of gone) await keeping.ask("POST", `${ROOT}/${each.id}/restore`);
    };
    toasts.tell(t("chosenDeleted", { count: gone.length }), "told", { label: t("undo"), run: () => back().catch((error) => toasts.failed(error)) });
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

  async search(text: string): Promise<{ conversation: string; message: string; title: string; excerpt: string }[]> {
    return (await keeping.ask<{ data: never[] }>("GET", `${ROOT}/search?q=${encodeURIComponent(text)}`)).data;
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
    if (keeping.here) await this.read();
    toasts.tell(t("imported", { count: imported.length, skipped: skipped.length }));
  }

  /** Save some conversations, or all, as a file. */
  async export(...ids: string[]) {
    const response = await keeping.export(ids);
    const name = /filename\*=UTF-8''(.+)/.exec(response.headers.get("Content-Disposition") ?? "")?.[1] ?? "conversations";
    const url = URL.createObjectURL(await response.blob());
    const link = Object.assign(document.createElement("a"), { href: url, download: decodeURIComponent(name) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }

  async empty() {
    await keeping.ask("DELETE", `${ROOT}?all=1`);
    location.hash = "#/chat";
    this.begin();
  }

  private hear(event: ServerEvent & { conversation?: string }) {
    if (event.event !== "connected" && event.event !== "conversation_changed") return;
    if (event.event === "connected") keeping.forget();
    void this.read();
    const open = this.open;
    if (open?.stored && (!event.conversation || event.conversation === open.info.id)) open.refresh().catch(() => undefined);
  }

  private async read() {
    try {
      const listing = await keeping.ask<Listing>("GET", ROOT);
      this.list = listing.conversations;
      this.presets = listing.presets ?? {};
      this.bytes = listing.bytes ?? 0;
      this.limit = listing.limit ?? 0;
      if (keeping.here && !this.following) {
        this.following = true;
        const { news } = await import("./local");
        news.onmessage = ({ data }) => this.hear({ event: "conversation_changed", conversation: String(data) || undefined });
      }
      this.known = true;
    } catch {
      // the event connection shows that the server is away, and this is read again when it is back
    }
  }
}

export const chats = new Chats();
