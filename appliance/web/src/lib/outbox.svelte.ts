/** What the person writes in one conversation, until the server has it: the field, its draft, and the queue. */
import { ApiError } from "./api";
import type { Chat } from "./chat.svelte";
import { drafts, keepDraft, NEW, readDraft, wordsOf, type Asked } from "./drafts";
import { newId } from "./ids";
import { keeping, ROOT } from "./keeping.svelte";
import type { Attachment } from "./messages";
import { toasts } from "./toasts.svelte";

const DRAFT_AFTER = 600; // ms
/** How often a question is sent again by itself when the server seems to be back. */
const RESENT = 3;

export class Outbox {
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
  private drafting: ReturnType<typeof setTimeout> | undefined;
  private tried = "";
  private synced = "";

  /** `open` is that of the conversation which is shown now. */
  constructor(
    private readonly chat: Chat,
    private readonly open: () => Outbox | undefined,
  ) {
    const kept = readDraft(this.name);
    if (!kept) return;
    ({ text: this.text, files: this.files, tried: this.tried, queue: this.queue, synced: this.synced } = kept);
    this.held = kept.queue.length > 0;
  }

  /** Under which the browser keeps the draft. */
  private get name(): string {
    return this.chat.stored ? this.chat.info.id : NEW;
  }

  /** Send what is in the field: at once, after the answer under way, when a model is known, or when the server is back. */
  async submit(model: string | undefined) {
    if (this.sending && this.tried) return; // it is these words that are on their way
    const asked = { id: this.tried || newId(), text: this.text.trim(), files: this.files };
    if (!this.queue.length) this.held = false;
    if (!model || this.chat.busy || (this.queue.length && !this.held)) {
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
      await this.chat.send(asked, model);
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
    if (this.chat.stored || this.tried) await this.chat.refresh().catch(() => undefined);
    const { asked, model, tries } = this.waiting ?? {};
    if (asked) await this.post(asked, model, tries).catch(toasts.failed);
  }

  /** Change what is in the field. The browser has it at once, and the server a moment after the last letter. */
  fill(text: string, files = this.files) {
    Object.assign(this, { text, files, tried: "", waiting: undefined });
    this.keep();
  }

  /** Take a file out of the field. */
  detach(file: Attachment) {
    const others = this.files.filter((each) => each !== file);
    this.fill(this.text, others);
  }

  private async sync() {
    const { text } = this;
    try {
      await keeping.ask("PUT", `${ROOT}/${this.chat.info.id}`, { draft: text });
    } catch {
      return; // the browser has it, and it goes with the next letter, or when the chat is opened again
    }
    this.synced = text;
    this.keep();
  }

  /** A later look at the same conversation has its own record of it. */
  keep() {
    const open = this.open();
    if (open && open !== this && open.name === this.name) return;
    const { text, files, tried, queue, synced } = this;
    const settings = this.chat.stored ? {} : this.chat.chosen;
    keepDraft(this.name, { text, files, tried, queue, synced, chat: this.chat.info.id, settings });
    clearTimeout(this.drafting);
    if (this.chat.stored && text !== synced) this.drafting = setTimeout(() => void this.sync(), DRAFT_AFTER);
  }

  /** Take what the server has out of the field and the queue. */
  arrived() {
    const late = this.queue.some((each) => this.chat.messages.has(each.id));
    if (late) this.queue = this.queue.filter((each) => !this.chat.messages.has(each.id));
    const { tried, waiting } = this;
    if (tried && this.chat.messages.has(tried)) {
      this.fill("", []);
      this.waiting = waiting; // its answer may still have to be asked for
    } else if (late) this.keep();
  }

  /** The draft and the last question that the server has, when the conversation comes from there. */
  take(draft: string, asked: string | undefined) {
    const kept = readDraft(this.name);
    if (this.text !== (kept?.text ?? "")) return; // the person has begun to write
    this.text = wordsOf(kept, draft, asked);
    this.synced = draft;
    this.keep();
  }

  /** Drop what the browser keeps under this name; the conversation gets another one. */
  forget() {
    drafts.drop(this.name);
  }
}
