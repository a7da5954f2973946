import { expect, test } from "vitest";
import en from "words:en";
import { markdownOf } from "../src/lib/exported";
import type { Conversation, Message } from "../src/lib/messages";

test("the shown branch is written with its speakers, files, calls and results", () => {
  const conversation = { title: " A\nchat ", leaf: "q", settings: { system: "Be brief." } } as Conversation;
  const file = { hash: "h", name: "a.pdf", type: "text/plain", size: 1 };
  const messages: Message[] = [
    { id: "q", role: "user", content: "Why?", attachments: [file] },
    { id: "other", parent: "q", role: "assistant", content: "No.", created: 1 },
    {
      id: "a",
      parent: "q",
      role: "assistant",
      model: "small",
      content: "| a |\n|---|",
      created: 2,
      tool_calls: [{ id: "c", function: { name: "read", arguments: "{}" } }],
    },
    { id: "t", parent: "a", role: "tool", model: "read", content: "```\nx\n```" },
    { id: "s", parent: "t", role: "system", model: "small", content: "In short." },
  ];
  expect(markdownOf({ conversation, messages, deleted: [] }, (word) => en[word])).toBe(
    [
      "# A chat",
      "## System prompt",
      "Be brief.",
      "## You",
      "- a.pdf",
      "Why?",
      "## small",
      "| a |\n|---|",
      "```\nread({})\n```",
      "## Result of read",
      "````\n```\nx\n```\n````",
      "## Summary of what was said before",
      "In short.\n",
    ].join("\n\n"),
  );
});
