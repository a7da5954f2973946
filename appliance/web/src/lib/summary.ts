/** A summary in place of what was said before. */
import { requestOf } from "./asking";
import type { Chat } from "./chat.svelte";
import { branch, newest, type Message, type Settings } from "./messages";

const SUM_UP =
  "Summarise our conversation so far for yourself, so that we can go on without the text before: goals, facts, decisions, " +
  "names, code and open questions. Write only the summary, in the language of the conversation.";

/** The request for a summary of a branch. */
export function summing(path: Message[], settings: Settings, model: string | undefined): Promise<object> {
  return requestOf(path, { ...settings, schema: "", tools: [] }, model, [{ role: "user", content: SUM_UP }]);
}

/**
 * Put a summary at the end of the branch, in whose place the model is sent nothing else of what came before. With a
 * message, what comes before it is summed up; a question, which no longer fits, is asked again behind the summary.
 */
export async function compact(chat: Chat, model: string | undefined, before?: Message, room = Infinity) {
  const path = before ? newest(branch(chat.messages, before.parent ?? null), room) : chat.path;
  const id = await chat.begin(path.at(-1)!.id, model, await summing(path, chat.info.settings, model), "system");
  if (before?.role !== "user") return;
  await chat.lives.get(id)?.ended;
  await chat.refresh();
  if ((chat.messages.get(id)?.state ?? "done") !== "done") return; // it did not come to its end
  await chat.edit({ ...before, parent: id }, before.content ?? "", model);
}
