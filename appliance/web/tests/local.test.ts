import fc from "fast-check";
import { afterAll, beforeEach, expect, test } from "vitest";
import type { Carton, Conversation, Deleted, Hit, Message, Whole } from "../src/lib/messages";
import { carton, local, news, unpack } from "../src/lib/local";

const ROOT = "/api/conversations";
const ask = (method: string, path: string, body?: unknown) => local(method, ROOT + path, body);
const whole = async (id: string) => (await ask("GET", `/${id}`)) as Whole;
const listed = async () => ((await ask("GET", "")) as { conversations: Conversation[] }).conversations;
const write = (id: string, parent: string | null, content: string, chat = "c") =>
  ask("PUT", `/${chat}/messages/${id}`, { id, parent, role: "user", content } satisfies Message);

beforeEach(async () => {
  await ask("DELETE", "?all=1");
  await ask("PUT", "/c", {});
});
afterAll(() => news.close());

/** What a person does to the tree of one conversation; the places say to which message. */
const STEP = fc.record({ does: fc.constantFrom("write", "write", "remove", "remove and take back"), at: fc.nat() });

test("what is there is what a small model of the tree says", async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(STEP, { maxLength: 15 }), async (steps) => {
      await ask("DELETE", "?all=1");
      await ask("PUT", "/c", {});
      const parents = new Map<string, string | null>();
      for (const [number, { does, at }] of steps.entries()) {
        const there = [...parents.keys()];
        const chosen = there[at % there.length] ?? null;
        if (does === "write") {
          await write(`m${number}`, chosen, "x");
          parents.set(`m${number}`, chosen);
        } else if (chosen) {
          const below = there.filter((id) => ancestors(parents, id).includes(chosen));
          const { ids } = (await ask("DELETE", `/c/messages/${chosen}`)) as { ids: string[] };
          expect([...ids].sort()).toEqual(below.sort());
          expect((await whole("c")).conversation.leaf).toBe(parents.get(chosen));
          if (does === "remove") for (const id of below) parents.delete(id);
          else await ask("POST", "/c/messages/restore", { ids, leaf: chosen });
        }
      }
      const { messages } = await whole("c");
      expect(new Map(messages.map(({ id, parent }) => [id, parent ?? null]))).toEqual(parents);
      expect(messages.every((each) => (each.revision ?? 0) > 0)).toBe(true);
    }),
    { numRuns: 20 },
  );
});

function ancestors(parents: Map<string, string | null>, id: string): string[] {
  const parent = parents.get(id);
  return parent ? [id, ...ancestors(parents, parent)] : [id];
}

test("the first question is the title, and a deleted conversation comes back", async () => {
  await write("q", null, "  Hello there\nsecond line");
  expect((await listed()).map((each) => each.title)).toEqual(["Hello there"]);
  expect(await ask("DELETE", "", { ids: ["c", "unknown"] })).toEqual({ ids: ["c"] });
  expect(await listed()).toEqual([]);
  await expect(whole("c")).rejects.toThrow("no such conversation");
  await ask("POST", "/restore", { ids: ["c"] });
  expect((await whole("c")).messages.length).toBe(1);
});

test("a message is deleted alone or with all below it, and comes back to its place", async () => {
  await write("a", null, "1");
  await write("b", "a", "2");
  await write("c1", "b", "3");
  await write("c2", "b", "4");
  await ask("PUT", "/c", { leaf: "c2" });
  const tree = async () => {
    const { messages, conversation } = await whole("c");
    return [Object.fromEntries(messages.map(({ id, parent }) => [id, parent])), conversation.leaf];
  };
  const before = await tree();
  for (const [query, left] of [
    ["?alone=1", [{ a: null, c1: "a", c2: "a" }, "c2"]],
    ["", [{ a: null }, "a"]],
  ] as const) {
    const gone = await ask("DELETE", `/c/messages/b${query}`);
    expect(await tree()).toEqual(left);
    await ask("POST", "/c/messages/restore", { ...(gone as object), leaf: "c2" });
    expect(await tree()).toEqual(before);
  }
});

test("a list since a change has what is new, and what was deleted can be taken back for a while", async () => {
  interface Found {
    change: number;
    conversations: Conversation[];
    deleted: Deleted[];
  }
  const since = (change: number) => ask("GET", `?since=${change}`) as Promise<Found>;
  await ask("PUT", "/old", { title: "Old" });
  await new Promise((resolve) => setTimeout(resolve, 2));
  await ask("PUT", "/new", { title: "New" });
  const { change, conversations } = await since(0);
  expect(conversations.map(({ id }) => id)).toEqual(expect.arrayContaining(["old", "new"]));
  await ask("DELETE", "", { ids: ["old"] });
  const news = await since(change);
  expect(news.conversations.map(({ id }) => id)).toEqual(["new"]);
  expect(news.deleted).toMatchObject([{ id: "old", title: "Old" }]);
  expect(news.deleted[0]!.left).toBeGreaterThan(50_000);
  await ask("POST", "/restore", { ids: ["old"] });
  expect((await since(news.change)).conversations.map(({ id }) => id)).toContain("old");
});

test("a fork is the branch alone, under ids of its own", async () => {
  await write("a", null, "1");
  await write("b", "a", "2");
  await write("other", "a", "3");
  const { id } = (await ask("POST", "/c/fork", { message: "b" })) as Conversation;
  const { conversation, messages } = await whole(id);
  const [first, second] = ["1", "2"].map((text) => messages.find((each) => each.content === text)!);
  expect(messages.length).toBe(2);
  expect([first!.parent, second!.parent, conversation.leaf]).toEqual([null, first!.id, second!.id]);
  expect((await whole("c")).messages.map((each) => each.id).sort()).toEqual(["a", "b", "other"]);
});

test("a search finds every word, without case and accents, and marks the first", async () => {
  await write("q", null, "Über die Brücke gehen");
  const found = async (text: string) =>
    ((await ask("GET", `/search?q=${encodeURIComponent(text)}`)) as { data: Hit[] }).data;
  expect((await found("BRUCKE uber")).map((each) => each.message)).toEqual([null, "q"]);
  expect((await found("gehen"))[1]!.excerpt).toBe("Über die Brücke \u0002gehen\u0003");
  expect(await found("brücke fahren")).toEqual([]);
  expect(await found(" ")).toEqual([]);
});

test("a carton goes out and comes in as it was, and twice is once", async () => {
  await write("q", null, "Hello");
  const packed = JSON.parse(JSON.stringify(await carton([]))) as Carton;
  expect(await unpack(packed)).toEqual({ imported: [], skipped: ["c"] });
  await ask("DELETE", "?all=1");
  expect(await unpack(packed)).toEqual({ imported: ["c"], skipped: [] });
  expect((await whole("c")).messages[0]).toMatchObject({ id: "q", content: "Hello" });
  packed.conversations[0]!.conversation.id = "d";
  await expect(unpack(packed)).rejects.toThrow("another conversation");
});

test("settings are kept under a name until null takes their place", async () => {
  const presets = async () => ((await ask("GET", "")) as { presets: object }).presets;
  await ask("PUT", "/presets", { name: "brief", settings: { system: "Be brief" } });
  expect(await presets()).toEqual({ brief: { system: "Be brief" } });
  await ask("PUT", "/presets", { name: "brief", settings: null });
  expect(await presets()).toEqual({});
});
