/** The calls of tools at the end of one conversation: what waits for the person, what runs, and how the model goes on. */
import { SvelteSet } from "svelte/reactivity";
import type { Chat } from "./chat.svelte";
import { newId } from "./ids";
import { unanswered, type Message, type ToolCall } from "./messages";
import { tools } from "./tools.svelte";

/** Rounds of tools that follow each other without the person doing anything. */
const ROUNDS = 16;

export class ToolCalls {
  /** The ids of those that run. */
  readonly running = new SvelteSet<string>();

  constructor(private readonly chat: Chat) {}

  /** Those that wait for a decision or run, and the answer that has them. */
  get pending(): ToolCall[] {
    return unanswered(this.chat.path).calls;
  }

  get caller(): Message | undefined {
    return unanswered(this.chat.path).caller;
  }

  /** Run a tool, or tell the model that it may not; when all have answered, the model goes on. */
  async use(call: ToolCall, run: boolean) {
    if (this.running.has(call.id)) return;
    const caller = this.caller!;
    const stops = this.chat.stops;
    this.running.add(call.id);
    try {
      const content = run ? await tools.run(call) : "The user did not allow this call.";
      const place = { id: newId(), parent: this.chat.path.at(-1)!.id, tool_call_id: call.id };
      const result: Message = { ...place, role: "tool", content, model: call.function.name };
      await this.chat.write(result);
      await this.chat.show(result.id);
      if (!this.pending.length && stops === this.chat.stops) await this.chat.answer(result.id, caller.model);
    } finally {
      this.running.delete(call.id);
    }
  }

  /** Run what needs no question. Only the tab that asked for the answer does that. */
  async proceed() {
    await tools.read();
    const asked = this.chat.path.findLastIndex((message) => message.role === "user");
    const rounds = this.chat.path.slice(asked).filter((message) => message.tool_calls?.length).length;
    const stops = this.chat.stops;
    for (const call of rounds > ROUNDS ? [] : this.pending) {
      if (stops === this.chat.stops && tools.allowed(call.function.name, this.chat.info.id)) await this.use(call, true);
    }
  }
}
