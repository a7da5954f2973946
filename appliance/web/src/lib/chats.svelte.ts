/** The conversations: the list of all, and the one that is open. The server owns them; this follows its news. */
import { SvelteMap, SvelteSet } from "svelte/reactivity";
import { ApiError } from "./api";
import { documentText, isDocument, requestOf } from "./asking";
import { branch, childrenOf, longer, newest, newestBelow, sound, unanswered } from "./chat";
import type { Attachment, Conversation, Message, Settings, ToolCall, Whole } from "./chat";
import { dropDraft, dropDrafts, keepDraft, NEW, readDraft, wordsOf, type Asked } from "./drafts";
import { events, type ServerEvent } from "./events.svelte";
import { newId } from "./ids";
import { keeping, ROOT } from "./keeping.svelte";
import { endAnswer, Live } from "./live.svelte";
import { t } from "./prefs.svelte";
import { toasts } from "./toasts.svelte";
import { tools } from "./tools.svelte";

const DRAFT_AFTER = 600;
/** How often a question is sent again by itself when the server seems to be back. */
const RESENT = 3;
/** Most ms that other tabs give the one that asked to write down what a killed server has not. */
const OTHERS_WAIT = 3_000;
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

/** The open conversation. */
export class Chat {
  info = $state.raw<Conversation>()!;
  messages = $state.raw<ReadonlyMap<string, Message>>(new Map());
  lives = new SvelteMap<string, Live>();
  /** What is in the field. It leaves it when the server has the question. */
  text = $state.raw("");
  files = $state.raw<Attachment[]>([]);
  /** What is sent when the answer under way has ended. */
  queue = $state.raw<Asked[]>([]);
  /** The queue waits for a word of the person: after a Stop, and after a reload, when another tab may have it too. */
  held = $state(false);
  /** A question is on its way to the server. */
  sending = $state(false);
  /** The question that could not reach the server. It is sent when the server is back. */
  waiting = $state.raw<{ asked: Asked; model: string | undefined; tries: number }>();
  /** How many questions were sent from here. */
  sent = $state(0);
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
  readonly path: Message[] = $derived(branch(this.messages, this.leaf && newestBelow(this.children, this.leaf)));
  /** All answers under way, those of branches that are not shown and those side by side too. */
  private readonly underway: Message[] = $derived(
    [...this.messages.values()].filter((message) => message.state === "answering"),
  );
  /** Answers that this page is about to ask for. */
  private readonly unasked = new Set<string>();
  private latest = 0;
  private reading: Promise<void> | undefined;
  private again = false;
  private drafting: ReturnType<typeof setTimeout> | undefined;
  private tried = "";
  private synced = "";
  private stops = 0;
  /** Changes on their way to the server, and the number of the newest one that it has. */
  private changing = 0;
  private changed = 0;

  constructor(info: Conversation, stored: boolean) {
    this.info = info;
    this.stored = stored;
    const kept = readDraft(this.name);
    if (!kept) return;
    ({ text: this.text, files: this.files, tried: this.tried, queue: this.queue, synced: this.synced } = kept);
    this.held = kept.queue.length > 0;
  }

  /** Under which the browser keeps the draft. */
  private get name(): string {
    return this.stored ? this.info.id : NEW;
  }

  /** False until a stored one has come from the server. */
  get here(): boolean {
    return !this.stored || this.latest > 0;
  }

  get answering(): Message | undefined {
    return this.underway[0];
  }

  /** Something runs that Stop would end. */
  get busy(): boolean {
    return this.underway.length > 0 || this.using.size > 0 || this.sending;
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

  /** Send what is in the field: at once, after the answer under way, or when the server is back. */
  async submit(model: string | undefined) {
    if (this.sending && this.tried) return; // it is these words that are on their way
    const asked = { id: this.tried || newId(), text: this.text.trim(), files: this.files };
    if (!this.queue.length) this.held = false;
    if (this.busy || (this.queue.length && !this.held)) {
      this.queue = [...this.queue, asked];
      return this.fill("", []);
    }
    this.tried = asked.id;
    this.keep();
    await this.post(asked, model);
  }

  /** Send one question. A server that cannot be reached gets it later; any other error is raised, and the queue waits. */
  async post(asked: Asked, model: string | undefined, tries = 0) {
    if (this.sending) return;
    this.sending = true;
    this.waiting = undefined;
    try {
      await this.send(asked, model);
    } catch (error) {
      this.held = true;
      if (!(error instanceof ApiError && error.status === 0 && tries < RESENT)) throw error;
      this.held = false;
      this.waiting = { asked, model, tries: tries + 1 };
    } finally {
      this.sending = false;
    }
  }

  /** Send the queue's question next, and then the others again. */
  next(asked: Asked) {
    this.queue = [asked, ...this.queue.filter((each) => each !== asked)];
    this.held = false;
  }

  drop(asked: Asked) {
    this.queue = this.queue.filter((each) => each !== asked);
    this.keep();
  }

  /** The server is there again, and may have got more than it could answer. */
  async back() {
    if (this.stored || this.tried) await this.refresh().catch(() => undefined);
    if (this.waiting) {
      await this.post(this.waiting.asked, this.waiting.model, this.waiting.tries).catch((error) =>
        toasts.failed(error),
      );
    }
  }

  /** Ask a question. Nothing is stored of one that cannot be asked, and what is stored already is not stored again. */
  private async send({ id, text, files }: Asked, model: string | undefined) {
    const stored = this.messages.get(id);
    const question: Message = stored ?? {
      id,
      parent: this.path.at(-1)?.id ?? null,
      role: "user",
      content: text,
      attachments: files,
    };
    const path = stored ? branch(this.messages, id) : [...this.path, question];
    const wanted = [...new Set([model, ...this.also])];
    const stops = this.stops;
    const requests = await Promise.all(wanted.map((each) => requestOf(path, this.info.settings, each)));
    if (!stored) {
      await this.make();
      await this.write(question);
    }
    this.arrived();
    this.sent += 1;
    this.beside = wanted.length > 1 ? id : undefined;
    const begun: string[] = [];
    for (const [at, each] of wanted.entries()) {
      if (stops === this.stops) begun.push(await this.begin(id, each, requests[at]!));
    }
    if (stops !== this.stops) await this.stop(); // it came while an answer was being written
    if (begun.length > 1) await this.show(begun[0]!);
  }

  /** Ask for an answer to the branch that ends with `parent`; beside others that are there. */
  async answer(parent: string | null, model: string | undefined) {
    await this.begin(parent, model, await requestOf(branch(this.messages, parent), this.info.settings, model));
  }

  /**
   * Put a summary at the end of the branch, in whose place the model is sent nothing else of what came before. With a
   * message, what comes before it is summed up; a question, which no longer fits, is asked again behind the summary.
   */
  async compact(model: string | undefined, before?: Message, room = Infinity) {
    const path = before ? newest(branch(this.messages, before.parent ?? null), room) : this.path;
    const id = await this.begin(path.at(-1)!.id, model, await this.summing(path, model), "system");
    if (before?.role !== "user") return;
    await this.lives.get(id)?.ended;
    await this.refresh();
    if ((this.messages.get(id)?.state ?? "done") !== "done") return; // it did not come to its end
    await this.edit({ ...before, parent: id }, before.content ?? "", model);
  }

  private summing(path: Message[], model: string | undefined): Promise<object> {
    return requestOf(path, { ...this.info.settings, schema: "", tools: [] }, model, [
      { role: "user", content: SUM_UP },
    ]);
  }

  /** Store an empty answer, and ask for it. */
  private async begin(
    parent: string | null,
    model: string | undefined,
    request: object,
    role: Message["role"] = "assistant",
  ): Promise<string> {
    const message: Message = { id: newId(), parent, role, model: model ?? "", state: "answering", content: "" };
    await this.askFor(message, request);
    await this.show(message.id);
    return message.id;
  }

  /** Store an answer under way, and ask for it. What the server tells of it before is no reason to look for it. */
  private async askFor(message: Message, request: object) {
    this.unasked.add(message.id);
    try {
      await this.write(message);
    } finally {
      this.unasked.delete(message.id);
    }
    this.ask(message.id, request);
  }

  /** End everything that was asked. What is queued waits until the person sends it. */
  async stop() {
    this.stops += 1;
    this.held = true;
    await Promise.all(this.underway.map(({ id }) => this.lives.get(id)?.stop() ?? endAnswer(id)));
  }

  /** Run a tool, or tell the model that it may not; when all have answered, the model goes on. */
  async use(call: ToolCall, run: boolean) {
    if (this.using.has(call.id)) return;
    const caller = this.caller!;
    const stops = this.stops;
    this.using.add(call.id);
    try {
      const content = run ? await tools.run(call) : "The user did not allow this call.";
      const parent = this.path.at(-1)!.id;
      const result: Message = {
        id: newId(),
        parent,
        role: "tool",
        tool_call_id: call.id,
        content,
        model: call.function.name,
      };
      await this.write(result);
      await this.show(result.id);
      if (!this.pending.length && stops === this.stops) await this.answer(result.id, caller.model);
    } finally {
      this.using.delete(call.id);
    }
  }

  /** Run what needs no question. Only the tab that asked for the answer does that. */
  private async proceed() {
    await tools.read();
    const asked = this.path.findLastIndex((message) => message.role === "user");
    const rounds = this.path.slice(asked).filter((message) => message.tool_calls?.length).length;
    const stops = this.stops;
    for (const call of rounds > ROUNDS ? [] : this.pending) {
      if (stops === this.stops && tools.allowed(call.function.name, this.info.id)) await this.use(call, true);
    }
  }

  /** Another question in place of one, as a branch beside it. */
  async edit(message: Message, text: string, model: string | undefined) {
    const { parent, role, attachments } = message;
    const edited: Message = { id: newId(), parent: parent ?? null, role, content: text, attachments };
    const request = await requestOf([...branch(this.messages, parent ?? null), edited], this.info.settings, model);
    await this.write(edited);
    this.sent += 1;
    try {
      await this.begin(edited.id, model, request);
    } catch (error) {
      this.info = { ...this.info, leaf: edited.id }; // the words are stored: they are shown there, and not in the field
      throw error;
    }
  }

  /** Change the text of an answer in place. */
  async rewrite(message: Message, text: string) {
    await this.write({ ...message, content: text });
  }

  /** Go on with an answer that ended too soon, or ask again for one or for a summary that has no text yet. */
  async goOn(message: Message, model: string | undefined) {
    const path = branch(this.messages, message.id);
    const request =
      message.role === "system" ? await this.summing(path, model) : await requestOf(path, this.info.settings, model);
    await this.askFor({ ...message, state: "answering", error: "" }, request);
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
    toasts.tell(t("messageDeleted"), "told", {
      label: t("undo"),
      run: () => back().catch(toasts.failed),
    });
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
    this.change({ settings: { ...this.info.settings, ...settings } }).catch(toasts.failed);
  }

  /** Change what is in the field. The browser has it at once, and the server a moment after the last letter. */
  fill(text: string, files = this.files) {
    Object.assign(this, { text, files, tried: "", waiting: undefined });
    this.keep();
  }

  private async sync() {
    const { text } = this;
    try {
      await keeping.ask("PUT", `${ROOT}/${this.info.id}`, { draft: text });
    } catch {
      return; // the browser has it, and it goes with the next letter, or when the chat is opened again
    }
    this.synced = text;
    this.keep();
  }

  /** A later look at the same conversation has its own record of it. */
  private keep() {
    const { open } = chats;
    if (open && open !== this && open.name === this.name) return;
    const { text, files, tried, queue, synced } = this;
    keepDraft(this.name, { text, files, tried, queue, synced, chat: this.info.id });
    clearTimeout(this.drafting);
    if (this.stored && text !== synced) this.drafting = setTimeout(() => void this.sync(), DRAFT_AFTER);
  }

  /** Take what the server has out of the field and the queue. */
  private arrived() {
    const late = this.queue.some((each) => this.messages.has(each.id));
    if (late) this.queue = this.queue.filter((each) => !this.messages.has(each.id));
    const { tried, waiting } = this;
    if (tried && this.messages.has(tried)) {
      this.fill("", []);
      this.waiting = waiting; // its answer may still have to be asked for
    } else if (late) this.keep();
  }

  leave() {
    for (const live of this.lives.values()) live.leave();
    this.lives.clear();
  }

  /** The server hears of a new one. It counts as stored when it has a message, and can be made again until then. */
  private async make() {
    if (!this.stored) await keeping.ask("PUT", `${ROOT}/${this.info.id}`, { settings: this.info.settings });
  }

  private settle() {
    if (this.stored) return;
    dropDraft(this.name);
    this.stored = true;
    this.keep();
    if (chats.open === this) location.replace(`#/chat/${this.info.id}`);
  }

  private async write(message: Message) {
    const sent = { ...message, revision: message.revision ?? 0 };
    const answer = await keeping.ask<{ message: Message; branched: boolean }>(
      "PUT",
      `${ROOT}/${this.info.id}/messages/${message.id}`,
      sent,
    );
    this.messages = new Map(this.messages).set(answer.message.id, sound(answer.message));
    this.settle();
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
    const done = (this.messages.get(id)?.state ?? "done") === "done";
    if (live.mine && done && this.caller?.id === id) await this.proceed().catch(toasts.failed);
  }

  /** What the server does where it keeps conversations: write the answer down at its end. */
  private async keepHere(id: string, live: Live) {
    const { content = "", reasoning = "", ...message } = this.messages.get(id)!;
    const state = live.error ? "failed" : live.finished ? "done" : live.stopped ? "stopped" : "interrupted";
    const ended = {
      ...message,
      content: content + live.content,
      reasoning: reasoning + live.reasoning,
      error: live.error,
    };
    await this.write({
      ...ended,
      tool_calls: live.calls.map((call) => ({ ...call, type: "function" })),
      timings: live.timings ?? null,
      state,
    });
  }

  /** Write down what the page has read beyond what the killed server kept; the tab that had asked goes first. */
  private async rescue(more: Message, mine: boolean) {
    if (!mine) await new Promise((resolve) => setTimeout(resolve, OTHERS_WAIT * (0.5 + Math.random() / 2)));
    if (this.messages.get(more.id) === more) await this.write(more);
  }

  private take(whole: Whole) {
    const { leaf, settings, title, folder, pinned } = this.info;
    const first = !this.latest;
    // The server read this before it knew of the newest changes made here: they are not undone by it.
    const older = !first && (this.changing > 0 || whole.conversation.change < this.changed);
    this.latest = whole.conversation.change;
    const messages = new Map(this.messages);
    for (const message of whole.messages.map(sound)) {
      const { id, state } = message;
      const live = this.lives.get(id);
      const { content = "", reasoning = "" } = messages.get(id) ?? {};
      const seen = { content: content + (live?.text ?? ""), reasoning: reasoning + (live?.thoughts ?? "") };
      const more = live && state === "interrupted" ? longer(message, seen) : undefined;
      messages.set(id, more ?? message);
      if (state === "answering" && !this.unasked.has(id)) this.ask(id);
      else if (live?.over || more) this.lives.delete(id);
      if (!more) continue;
      live!.leave();
      queueMicrotask(() => void this.rescue(more, live!.mine).catch(() => undefined));
    }
    for (const id of whole.deleted) messages.delete(id);
    this.messages = messages;
    if (messages.size) this.settle();
    if (first && this.text === (readDraft(this.name)?.text ?? "")) {
      const asked = this.path.findLast((message) => message.role === "user")?.content;
      this.text = wordsOf(readDraft(this.name), whole.conversation.draft, asked);
      this.synced = whole.conversation.draft;
      this.keep();
    }
    this.arrived();
    // Another tab may look at another branch, but where it went on with this one, this one follows.
    const follows = branch(messages, whole.conversation.leaf).some((message) => message.id === leaf);
    const kept = !first && leaf && messages.has(leaf) && !follows;
    this.info = {
      ...whole.conversation,
      ...(kept ? { leaf } : {}),
      ...(older ? { settings, title, folder, pinned } : {}),
    };
  }
}

/** A conversation outlives the effect in which it was opened, so what it derives must not belong to that. */
function made(info: Conversation, stored: boolean): Chat {
  let chat!: Chat;
  $effect.root(() => void (chat = new Chat(info, stored)));
  return chat;
}

class Chats {
  list = $state.raw<Conversation[]>([]);
  presets = $state.raw<Record<string, Settings>>({});
  known = $state(false);
  bytes = $state(0);
  limit = $state(0);
  open = $state.raw<Chat>();

  private following = false;
  private reading: Promise<void> | undefined;
  private again = false;

  constructor() {
    events.listen((event) => this.hear(event));
  }

  /** Begin a conversation; the server hears of it with the first message. */
  begin() {
    this.open?.leave();
    const now = Date.now();
    const settings = this.list[0]?.settings.model ? { model: this.list[0].settings.model } : {};
    const kept = readDraft(NEW);
    const id = kept?.tried ? kept.chat : newId(); // it may have arrived
    const info = {
      id,
      title: "",
      folder: "",
      pinned: false,
      created: now,
      updated: now,
      leaf: null,
      draft: "",
      settings,
      change: 0,
      answering: false,
    };
    this.open = made(info, false);
    if (kept?.tried) void this.open.back();
  }

  async show(id: string) {
    if (this.open?.info.id === id) return;
    this.open?.leave();
    const chat = made(
      {
        id,
        title: "",
        folder: "",
        pinned: false,
        created: 0,
        updated: 0,
        leaf: null,
        draft: "",
        settings: {},
        change: 0,
        answering: false,
      },
      true,
    );
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
    const { ids } = await keeping.ask<{ ids: string[] }>("DELETE", ROOT, { ids: gone.map((each) => each.id) });
    for (const id of ids) dropDraft(id);
    if (ids.includes(this.open?.info.id ?? "")) {
      if (location.hash.startsWith("#/chat/")) location.hash = "#/chat";
      else this.begin();
    }
    const back = () => keeping.ask("POST", `${ROOT}/restore`, { ids });
    const told = ids.length === 1 ? t("conversationDeleted") : t("chosenDeleted", { count: ids.length });
    toasts.tell(told, "told", { label: t("undo"), run: () => back().catch(toasts.failed) });
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

  async search(
    text: string,
  ): Promise<{ conversation: string; message: string | null; title: string; excerpt: string }[]> {
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
    const name =
      /filename\*=UTF-8''(.+)/.exec(response.headers.get("Content-Disposition") ?? "")?.[1] ?? "conversations";
    const url = URL.createObjectURL(await response.blob());
    const link = Object.assign(document.createElement("a"), { href: url, download: decodeURIComponent(name) });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }

  async empty() {
    await keeping.ask("DELETE", `${ROOT}?all=1`);
    dropDrafts();
    location.hash = "#/chat";
    this.begin();
  }

  private hear(event: ServerEvent & { conversation?: string }) {
    if (event.event !== "connected" && event.event !== "conversation_changed") return;
    if (event.event === "connected") keeping.forget();
    void this.read();
    const open = this.open;
    if (event.event === "connected") return void open?.back();
    if (open?.stored && (!event.conversation || event.conversation === open.info.id)) {
      open.refresh().catch(() => undefined);
    }
  }

  /** Read the list. A change that comes meanwhile is read once more at the end, so the older of two answers never stays. */
  read(): Promise<void> {
    this.again = true;
    return (this.reading ??= (async () => {
      while (this.again) {
        this.again = false;
        try {
          await this.take(await keeping.list<Listing>());
        } catch {
          // the event connection shows that the server is away, and this is read again when it is back
        }
      }
      this.reading = undefined;
    })());
  }

  private async take({ conversations, presets = {}, bytes = 0, limit = 0 }: Listing) {
    this.list = conversations;
    Object.assign(this, { presets, bytes, limit });
    if (keeping.here && !this.following) {
      this.following = true;
      const { news } = await import("./local");
      news.onmessage = ({ data }) =>
        this.hear({ event: "conversation_changed", conversation: String(data) || undefined });
    }
    this.known = true;
  }
}

export const chats = new Chats();
