import fc from "fast-check";
import { expect, test } from "vitest";
import { requestOf } from "../src/lib/asking";
import { branch, childrenOf, isSummary, longer, newest, newestBelow } from "../src/lib/messages";
import { skipped, sound, unanswered, type Message } from "../src/lib/messages";
import { wordsOf } from "../src/lib/drafts";

/** A tree of messages: each has one of those before it above it, or nothing. */
const TREE = fc
  .array(fc.record({ parent: fc.nat(), created: fc.nat(9) }), { minLength: 1, maxLength: 30 })
  .map((rows) => {
    const all = rows.map(({ parent, created }, at): Message => {
      const above = parent % (at + 1);
      return { id: `m${at}`, parent: above ? `m${above - 1}` : null, role: "user", created };
    });
    return new Map(all.map((each) => [each.id, each]));
  });

test("a branch goes from the root to its leaf, whatever else there is", () => {
  fc.assert(
    fc.property(TREE, fc.nat(), (messages, place) => {
      const leaf = `m${place % messages.size}`;
      const path = branch(messages, leaf);
      expect(path.at(-1)!.id).toBe(leaf);
      expect(path.map((each) => each.parent)).toEqual([null, ...path.slice(0, -1).map((each) => each.id)]);
    }),
  );
});

test("a leaf that is gone gives way to the newest message, and a circle has an end", () => {
  fc.assert(
    fc.property(TREE, (messages) => {
      const last = branch(messages, "gone").at(-1)!;
      expect(last.created).toBe(Math.max(...[...messages.values()].map((each) => each.created!)));
    }),
  );
  const circle = ["a", "b"].map((id): [string, Message] => [id, { id, parent: id === "a" ? "b" : "a", role: "user" }]);
  expect(branch(new Map(circle), "a").length).toBeLessThanOrEqual(3);
});

test("each message is among the children of its parent, by age, and the newest below it has none", () => {
  fc.assert(
    fc.property(TREE, (messages) => {
      const children = childrenOf(messages);
      expect([...children.values()].flat().length).toBe(messages.size);
      for (const [parent, list] of children) {
        expect(list.every((each) => (each.parent ?? null) === parent)).toBe(true);
        expect(list.map((each) => each.created!)).toEqual(list.map((each) => each.created!).sort());
      }
      for (const id of messages.keys()) {
        const leaf = newestBelow(children, id);
        expect(children.get(leaf)).toBeUndefined();
        expect(branch(messages, leaf).map((each) => each.id)).toContain(id);
      }
    }),
  );
});

const call = (id: string) => ({ id, function: { name: "f", arguments: "{}" } });
const IDS = fc.uniqueArray(fc.constantFrom("a", "b", "c"));
/** Turns of a conversation: a question, or an answer with calls of which some have results. */
const PATH = fc
  .array(fc.oneof(fc.constant("user" as const), fc.record({ calls: IDS, results: IDS })), { maxLength: 6 })
  .map((turns) =>
    turns.flatMap((turn, at): Message[] => {
      if (turn === "user") return [{ id: `${at}`, role: "user", content: "Go" }];
      const results = turn.results.filter((each) => turn.calls.includes(each));
      return [
        { id: `${at}`, role: "assistant", content: "So", tool_calls: turn.calls.map(call) },
        ...results.map((each): Message => ({ id: `${at}${each}`, role: "tool", tool_call_id: each, content: "1" })),
      ];
    }),
  );

test("calls wait for their results until the conversation goes on without them", () => {
  fc.assert(
    fc.property(PATH, (path) => {
      const { caller, calls } = unanswered(path);
      const last = path.findLast((message) => message.role !== "tool");
      expect(caller).toBe(last?.tool_calls?.length ? last : undefined);
      const results = (at: number) => {
        const next = path.slice(at + 1);
        const end = next.findIndex((message) => message.role !== "tool");
        return next.slice(0, end < 0 ? undefined : end).map((message) => message.tool_call_id);
      };
      for (const [at, message] of path.entries()) {
        const open = (message.tool_calls ?? []).filter((each) => !results(at).includes(each.id));
        expect(message === last ? calls : skipped(path, message)).toEqual(open);
      }
    }),
  );
});

test("a model is told one result for each call, and no words from before a summary", async () => {
  const summary: Message = { id: "s", role: "system", model: "m", content: "In short" };
  await fc.assert(
    fc.asyncProperty(PATH, PATH, async (before, after) => {
      const path = before.length ? [...before, summary, ...after] : after;
      const { messages } = (await requestOf(path, {}, "m")) as { messages: Partial<Message>[] };
      const told = messages.filter((each) => each.role !== "tool").map((each) => each.role);
      expect(told).toEqual([
        ...(before.length ? ["system"] : []),
        ...after.filter((each) => each.role !== "tool").map((each) => each.role),
      ]);
      for (const [at, { tool_calls: calls = [] }] of messages.entries()) {
        const results = messages.slice(at + 1, at + 1 + calls.length);
        expect(results.map((each) => each.role)).toEqual(calls.map(() => "tool"));
        expect(results.map((each) => each.tool_call_id).sort()).toEqual(calls.map((each) => each.id).sort());
      }
    }),
  );
});

test("what is not set is not sent, and a schema has to be one", async () => {
  const path: Message[] = [{ id: "q", role: "user", content: "Go" }];
  expect(Object.keys(await requestOf(path, {}, undefined)).sort()).toEqual(
    ["messages", "return_progress", "stream", "timings_per_token"].sort(),
  );
  expect(await requestOf(path, { effort: "off", params: { top_k: 3 }, schema: "{}" }, "m")).toMatchObject({
    model: "m",
    top_k: 3,
    chat_template_kwargs: { enable_thinking: false },
    response_format: { type: "json_schema", json_schema: { schema: {} } },
  });
  for (const schema of ["[1]", "{", "null", "5"]) await expect(requestOf(path, { schema }, "m")).rejects.toThrow();
});

test("anything that a stored message has is of the shape that the page counts on", () => {
  fc.assert(
    fc.property(fc.array(fc.jsonValue()), fc.dictionary(fc.string(), fc.jsonValue()), (calls, timings) => {
      const given = { id: "m", role: "assistant", tool_calls: calls, timings } as unknown as Message;
      const { tool_calls: kept, timings: figures } = sound(given);
      for (const { id, function: called } of kept!) {
        expect([id, called.name, called.arguments].map((each) => typeof each)).toEqual(["string", "string", "string"]);
      }
      expect(Object.values(figures!).every(Number.isFinite)).toBe(true);
      expect(sound(sound(given))).toEqual(sound(given));
    }),
  );
  const whole: Message = { id: "m", role: "assistant", tool_calls: [call("c")], timings: { prompt_n: 3 } };
  expect(sound(whole)).toEqual(whole);
});

test("what was read of an answer is kept if it goes on from what is stored, and only then", () => {
  fc.assert(
    fc.property(fc.string(), fc.string(), fc.string(), (content, more, other) => {
      const stored: Message = { id: "m", role: "assistant", content };
      expect(longer(stored, { content: content + more })?.content).toBe(more ? content + more : undefined);
      if (!other.startsWith(content)) expect(longer(stored, { content: other })).toBeUndefined();
    }),
  );
});

test("the end of a branch that has room, and its last message always", () => {
  const path = fc
    .array(fc.nat(20), { minLength: 1 })
    .map((sizes) => sizes.map((size, at): Message => ({ id: `${at}`, role: "user", content: "x".repeat(size) })));
  const size = (messages: Message[]) => messages.reduce((sum, each) => sum + each.content!.length, 0);
  fc.assert(
    fc.property(path, fc.nat(200), (path, room) => {
      const end = newest(path, room);
      expect(end).toEqual(path.slice(-end.length));
      if (end.length > 1) expect(size(end)).toBeLessThanOrEqual(room);
      if (end.length < path.length) expect(size(path.slice(-end.length - 1))).toBeGreaterThan(room);
    }),
  );
});

test("a system prompt of a person is not a summary", () => {
  expect(isSummary({ id: "s", role: "system", content: "Be brief" })).toBe(false);
  expect(isSummary({ id: "s", role: "system", content: "In short", model: "m", state: "failed" })).toBe(false);
});

test("the words in a field are those of this browser until the server has them", () => {
  const kept = { files: [], tried: "", queue: [], chat: "c" };
  expect(wordsOf({ ...kept, text: "new", synced: "old" }, "old", undefined)).toBe("new");
  expect(wordsOf({ ...kept, text: "old", synced: "old" }, "of another device", undefined)).toBe("of another device");
  expect(wordsOf(undefined, "asked", "asked")).toBe("");
});
