/** One conversation as this page has it: its messages, and the answers under way. The server owns both. */
import { SvelteMap } from "svelte/reactivity";
import { oneByOne } from "./again";
import { requestOf } from "./asking";
import { ToolCalls } from "./calls.svelte";
import type { Asked } from "./drafts";
import { newId } from "./ids";
import { keeping, ROOT } from "./keeping.svelte";
import { endAnswer, Live } from "./live.svelte";
import { branch, childrenOf, longer, newestBelow, sound } from "./messages";
import type { Conversation, Message, Settings, Whole } from "./messages";
import { Outbox } from "./outbox.svelte";
import { t } from "./prefs.svelte";
import { summing } from "./summary";
import { toasts } from "./toasts.svelte";

/** Most ms that other tabs give the one that asked to write down what a killed server has not. */
const OTHERS_WAIT = 3_000;

export class Chat {
  info = $state.raw<Conversation>()!;
  messages = $state.raw<ReadonlyMap<string, Message>>(new Map());
  lives = new SvelteMap<string, Live>();
  /** How many questions were sent from here. */
  sent = $state(0);
  /** Further models that the next question goes to, and the question whose answers are shown side by side. */
  also = $state.raw<string[]>([]);
  beside = $state.raw<string>();
  /** False for a new one that the server does not know yet. */
  stored = $state(true);
  readonly outbox: Outbox;
  readonly calls = new ToolCalls(this);
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
  private latest = $state(0);
  /** What somebody has set, but for the model: the browser keeps it of a conversation that is not stored. */
  chosen: Settings = {};
  /** How often the person has stopped what ran. */
  stops = 0;
  /** Changes on their way to the server, and the number of the newest one that it has. */
  private changing = 0;
  private changed = 0;

  /** `open` says which conversation is shown now. */
  constructor(
    info: Conversation,
    stored: boolean,
    private readonly open: () => Chat | undefined,
  ) {
    this.info = info;
    this.stored = stored;
    this.outbox = new Outbox(this, () => open()?.outbox);
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
    return this.underway.length > 0 || this.calls.running.size > 0 || this.outbox.sending;
  }

  siblings(message: Message): Message[] {
    return this.children.get(message.parent ?? null) ?? [];
  }

  /** Read what has changed. */
  readonly refresh = oneByOne(async () => {
    this.take(await keeping.ask<Whole>("GET", `${ROOT}/${this.info.id}?since=${this.latest}`));
  });

  /** Ask a question. Nothing is stored of one that cannot be asked, and what is stored already is not stored again. */
  async send({ id, text, files }: Asked, model: string | undefined) {
    const stored = this.messages.get(id);
    const parent = this.path.at(-1)?.id ?? null;
    const question: Message = stored ?? { id, parent, role: "user", content: text, attachments: files };
    const path = stored ? branch(this.messages, id) : [...this.path, question];
    const wanted = [...new Set([model, ...this.also])];
    const stops = this.stops;
    const requests = await Promise.all(wanted.map((each) => requestOf(path, this.info.settings, each)));
    if (!stored) {
      // The server hears of a new one. It counts as stored when it has a message, and can be made again until then.
      if (!this.stored) await keeping.ask("PUT", `${ROOT}/${this.info.id}`, { settings: this.info.settings });
      await this.write(question);
    }
    this.outbox.arrived();
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

  /** Store an empty answer, and ask for it. */
  async begin(
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
    this.ask(message.id, { ...request, session_id: this.info.id });
  }

  /** End everything that was asked. What is queued waits until the person sends it. */
  async stop() {
    this.stops += 1;
    this.outbox.held = true;
    await Promise.all(this.underway.map(({ id }) => this.lives.get(id)?.stop() ?? endAnswer(id)));
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

  /** Go on with an answer that ended too soon, or ask again for one or for a summary that has no text yet. */
  async goOn(message: Message, model: string | undefined) {
    const path = branch(this.messages, message.id);
    const asks = message.role === "system" ? summing : requestOf;
    const request = await asks(path, this.info.settings, model);
    await this.askFor({ ...message, state: "answering", error: "" }, request);
  }

  show(leaf: string): Promise<void> {
    return this.change({ leaf });
  }

  choose(sibling: string): Promise<void> {
    return this.show(newestBelow(this.children, sibling));
  }

  /** Delete a message alone, so that what answers it answers its parent, or with everything below. */
  async remove(message: Message, alone: boolean) {
    const before = this.info.leaf;
    await this.lives.get(message.id)?.stop();
    const place = `${ROOT}/${this.info.id}/messages`;
    const gone = await keeping.ask<{ ids: string[] }>("DELETE", `${place}/${message.id}${alone ? "?alone=1" : ""}`);
    const back = async () => {
      await keeping.ask("POST", `${place}/restore`, { ...gone, leaf: before });
      await this.refresh();
      this.info = { ...this.info, leaf: before };
    };
    const told = t("messagesDeleted", { count: gone.ids.length });
    toasts.tell(told, "told", { label: t("undo"), run: () => back().catch(toasts.failed) });
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
    const { model: _, ...others } = settings;
    this.chosen = { ...this.chosen, ...others };
    if (!this.stored && Object.keys(others).length) this.outbox.keep();
  }

  leave() {
    for (const live of this.lives.values()) live.leave();
    this.lives.clear();
  }

  private settle() {
    if (this.stored) return;
    this.outbox.forget();
    this.stored = true;
    this.outbox.keep();
    if (this.open() === this) location.replace(`#/chat/${this.info.id}`);
  }

  /** Store a message; one that was changed elsewhere meanwhile becomes a branch. */
  async write(message: Message) {
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
    if (live.mine && done && this.calls.caller?.id === id) await this.calls.proceed().catch(toasts.failed);
  }

  /** What the server does where it keeps conversations: write the answer down at its end. */
  private async keepHere(id: string, live: Live) {
    const { content = "", reasoning = "", ...message } = this.messages.get(id)!;
    const state = live.error ? "failed" : live.finished ? "done" : live.stopped ? "stopped" : "interrupted";
    await this.write({
      ...message,
      content: content + live.content,
      reasoning: reasoning + live.reasoning,
      error: live.error,
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
    if (first) this.outbox.take(whole.conversation.draft, this.path.findLast((each) => each.role === "user")?.content);
    this.outbox.arrived();
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
