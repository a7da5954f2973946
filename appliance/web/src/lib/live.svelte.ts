/**
 * One answer under way, as this page sees it. The generation belongs to the server: a cut connection is taken up again
 * at the byte where it broke off, and leaving ends nothing. State changes at most once per frame.
 */
import { ApiError, ask, askWith, send } from "./api";
import { parsed } from "./ids";
import type { Timings, ToolCall } from "./messages";

interface Chunk {
  choices?: { delta?: { content?: string | null; reasoning_content?: string | null; tool_calls?: Piece[] } }[];
  timings?: Timings;
  prompt_progress?: { total: number; cache: number; processed: number };
  error?: { message: string };
}

interface Piece {
  index?: number;
  id?: string;
  function?: { name?: string; arguments?: string };
}

const RETRIES = 40;

export async function endAnswer(id: string) {
  await ask(`v1/stream?conv_id=${encodeURIComponent(id)}`, { method: "DELETE" });
}

export class Live {
  content = $state.raw("");
  reasoning = $state.raw("");
  calls = $state.raw<ToolCall[]>([]);
  timings = $state.raw<Timings | undefined>();
  /** How much of the prompt has been read, 0 to 1. */
  prompt = $state.raw<number | undefined>();
  error = $state.raw("");
  /** The connection broke, and is being made again. */
  resuming = $state.raw(false);
  over = $state.raw(false);
  /** This tab asked for it. */
  readonly mine: boolean;
  readonly ended: Promise<void>;
  /** All that has come; `content` and `reasoning` follow it once a frame. */
  text = "";
  thoughts = "";
  private frame = 0;
  private received = 0;
  private line = "";
  /** It was read to its end. */
  finished = false;
  /** This tab ended it. */
  stopped = false;
  private leaving = new AbortController();

  /** With a `request` the answer is asked for, without one it is looked for. */
  constructor(
    readonly id: string,
    request?: unknown,
  ) {
    this.mine = request !== undefined;
    this.ended = this.run(request);
  }

  /** Stop looking; the answer goes on. */
  leave() {
    this.leaving.abort();
  }

  /** End the answer for everybody. */
  async stop() {
    this.stopped = true;
    await endAnswer(this.id);
  }

  private async run(request: unknown) {
    try {
      const asked = { headers: { "X-Conversation-Id": this.id }, signal: this.leaving.signal };
      if (request !== undefined) await this.read(await askWith(request, "v1/chat/completions", asked));
      for (let tries = 0; !this.finished && tries < RETRIES && !this.leaving.signal.aborted; tries++) {
        const before = this.received;
        if (!(await this.resume())) break;
        if (this.received > before) tries = 0;
      }
    } catch (error) {
      if (!this.leaving.signal.aborted) this.error = error instanceof Error ? error.message : String(error);
    }
    cancelAnimationFrame(this.frame);
    this.show();
    this.resuming = false;
    this.over = true;
  }

  /** Go on at the byte that was received last; false when there is nothing to go on with. */
  private async resume(): Promise<boolean> {
    this.resuming = this.received > 0;
    const there = await this.there();
    if (there === undefined) return this.wait();
    if (!there || this.stopped) return false; // it may have been stopped while the server was asked
    const path = `v1/stream?conv_id=${encodeURIComponent(this.id)}&from=${this.received}`;
    try {
      await this.read(await ask(path, { signal: this.leaving.signal }));
      return this.finished || (await this.wait());
    } catch (error) {
      if (error instanceof ApiError && error.status !== 0 && error.status !== 503) return false;
      return this.wait();
    }
  }

  /**
   * Whether the server still has the answer; asking for one that is gone would be an error in the browser's console.
   * Undefined: it cannot be reached. It may be there again a moment later, and then it knows nothing of the answer.
   */
  private async there(): Promise<boolean | undefined> {
    try {
      return (await send<unknown[]>("POST", "v1/streams/lookup", { conversation_ids: [this.id] })).length > 0;
    } catch (error) {
      return error instanceof ApiError && error.status === 0 ? undefined : true; // what is wrong is seen when it is read
    }
  }

  private async wait(): Promise<boolean> {
    await new Promise((resolve) => setTimeout(resolve, 500));
    return !this.leaving.signal.aborted;
  }

  private async read(response: Response) {
    const reader = response.body!.getReader();
    const decoder = new TextDecoder();
    let pending = 0; // bytes of a line that is not complete; a resumed stream begins at a line
    this.line = "";
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        this.resuming = false;
        const end = value.lastIndexOf(10);
        this.received += end < 0 ? 0 : pending + end + 1;
        pending = end < 0 ? pending + value.length : value.length - end - 1;
        const lines = (this.line + decoder.decode(value, { stream: true })).split("\n");
        this.line = lines.pop() ?? "";
        for (const line of lines) if (line.startsWith("data:")) this.hear(line.slice(5).trim());
        if (this.finished) return;
        if (!document.hidden) this.frame ||= requestAnimationFrame(() => this.show());
      }
    } catch (error) {
      if (this.leaving.signal.aborted) throw error; // else the connection broke, and `resume` goes on
    }
  }

  private hear(data: string) {
    if (data === "[DONE]") return void (this.finished = true);
    const chunk = parsed(data) as Chunk | undefined;
    if (!chunk) return;
    if (chunk.error && !this.stopped) {
      this.error = chunk.error.message;
      this.finished = true;
    }
    const progress = chunk.prompt_progress;
    if (progress) this.prompt = progress.total > progress.cache ? progress.processed / progress.total : undefined;
    const delta = chunk.choices?.[0]?.delta;
    if (delta?.content) this.text += delta.content;
    if (delta?.reasoning_content) this.thoughts += delta.reasoning_content;
    if (delta?.content || delta?.reasoning_content) this.prompt = undefined;
    for (const piece of delta?.tool_calls ?? []) this.call(piece);
    if (chunk.timings) this.timings = chunk.timings;
  }

  private call(piece: Piece) {
    const index = piece.index ?? this.calls.length;
    const calls = [...this.calls];
    const before = calls[index] ?? { id: "", function: { name: "", arguments: "" } };
    const { name, arguments: args } = before.function;
    const more = piece.function ?? {};
    calls[index] = {
      id: before.id || (piece.id ?? ""),
      function: { name: name + (more.name ?? ""), arguments: args + (more.arguments ?? "") },
    };
    this.calls = calls;
  }

  private show() {
    this.frame = 0;
    this.content = this.text;
    this.reasoning = this.thoughts;
  }
}
