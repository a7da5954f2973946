/** Conversations as Markdown, for people and other programs. The branch that is shown is what is written. */
import { branch, isSummary, newestBelow, childrenOf, type Message, type Whole } from "./messages";

export interface Names {
  you: string;
  assistant: string;
  system: string;
  summary: string;
  tool: string;
  untitled: string;
}

/** A fence that is longer than any in the text. */
function fenced(text: string): string {
  const longest = (text.match(/`+/g) ?? []).reduce((most, each) => Math.max(most, each.length), 2);
  const fence = "`".repeat(longest + 1);
  return `${fence}\n${text}\n${fence}`;
}

function speaker(message: Message, names: Names): string {
  if (message.role === "user") return names.you;
  if (message.role === "tool") return `${names.tool} ${message.model ?? ""}`.trim();
  if (message.role === "system") return isSummary(message) ? names.summary : names.system;
  return message.model || names.assistant;
}

export function markdownOf({ conversation, messages }: Whole, names: Names): string {
  const known = new Map(messages.map((each) => [each.id, each]));
  const leaf = conversation.leaf && newestBelow(childrenOf(known), conversation.leaf);
  const { system } = conversation.settings;
  const parts = [`# ${conversation.title.replace(/\s+/g, " ").trim() || names.untitled}`];
  if (system) parts.push(`## ${names.system}`, system);
  for (const message of branch(known, leaf)) {
    const text = message.content ?? "";
    const calls = (message.tool_calls ?? []).map((call) => fenced(`${call.function.name}(${call.function.arguments})`));
    const files = (message.attachments ?? []).map((file) => `- ${file.name}`).join("\n");
    parts.push(`## ${speaker(message, names)}`, files, message.role === "tool" ? fenced(text) : text, ...calls);
  }
  return `${parts.filter(Boolean).join("\n\n")}\n`;
}
