/** Conversations as Markdown, for people and other programs. The branch that is shown is what is written. */
import { branch, isSummary, newestBelow, childrenOf, type Message, type Whole } from "./messages";
import type { Word } from "./prefs.svelte";

type Say = (word: Word) => string;

/** A fence that is longer than any in the text. */
function fenced(text: string): string {
  const longest = (text.match(/`+/g) ?? []).reduce((most, each) => Math.max(most, each.length), 2);
  const fence = "`".repeat(longest + 1);
  return `${fence}\n${text}\n${fence}`;
}

function speaker(message: Message, t: Say): string {
  if (message.role === "user") return t("you");
  if (message.role === "tool") return `${t("toolResult")} ${message.model ?? ""}`.trim();
  if (message.role === "system") return t(isSummary(message) ? "summary" : "system");
  return message.model || t("assistant");
}

export function markdownOf({ conversation, messages }: Whole, t: Say): string {
  const known = new Map(messages.map((each) => [each.id, each]));
  const leaf = conversation.leaf && newestBelow(childrenOf(known), conversation.leaf);
  const { system } = conversation.settings;
  const parts = [`# ${conversation.title.replace(/\s+/g, " ").trim() || t("newChat")}`];
  if (system) parts.push(`## ${t("system")}`, system);
  for (const message of branch(known, leaf)) {
    const text = message.content ?? "";
    const calls = (message.tool_calls ?? []).map((call) => fenced(`${call.function.name}(${call.function.arguments})`));
    const files = (message.attachments ?? []).map((file) => `- ${file.name}`).join("\n");
    parts.push(`## ${speaker(message, t)}`, files, message.role === "tool" ? fenced(text) : text, ...calls);
  }
  return `${parts.filter(Boolean).join("\n\n")}\n`;
}
