// Conversations: what is said, kept, stopped and branched.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { isDeepStrictEqual } from "node:util";
import { stored, until } from "../browser.mjs";
import { answered, attach, begun, enter, exchange, field, ids, lastText, messages, say, showsOnly } from "../chat.mjs";
import { conversations, keepPreset, newChat, parameters, searchChats, uncovered } from "../sides.mjs";
import { accessible, appears, button, confirm, gone, press, saved, shows, textFile } from "../steps.mjs";
import { like, t } from "../words.mjs";

/** A conversation with the starter model: stream, edit, branch, fork, search. */
export async function chat({ page }) {
  await page.getByRole("link", { name: t("Not now, go to the chat") }).click();
  await exchange(page, "Hello! What can you do?");
  const first = await lastText(page);
  assert.ok(first.length > 10, first);
  await page.waitForURL(/#\/chat\/[0-9a-f-]{36}$/);
  const edit = page.getByRole("textbox", { name: t("Edit") });
  const begin = async () => {
    await messages(page).first().hover();
    await press(messages(page).first(), "Edit");
  };
  await begin();
  await edit.fill("What is a llama?");
  await page.reload();
  await begin();
  assert.equal(await edit.inputValue(), "What is a llama?", "words that were begun outlive a reload");
  await press(messages(page).first(), "Send");
  await appears(messages(page).first().getByText("2/2"));
  await answered(page);
  const tree = await stored(page);
  assert.equal(tree.length, 4);
  assert.deepEqual(new Set(tree.map((each) => each.state ?? "done")), new Set(["done"]));
  const before = page.url();
  await press(messages(page).last(), "New chat from here");
  await page.waitForFunction((before) => location.href !== before, before);
  await searchChats(page, "llam");
  await appears(page.locator("nav mark").first());
}

/** An answer goes on through a reload, is the same in another browser, and is stopped from there. */
export async function resume({ page, device }) {
  await say(page, "Count");
  await begun(page);
  await page.waitForURL(/#\/chat\/./);
  await page.reload();
  await begun(page);
  const before = (await lastText(page)).length;
  const grows = (text) => text.length > before + 20;
  await until(() => lastText(page), grows, "it goes on");
  const tab = await page.context().newPage();
  await tab.goto(page.url());
  await begun(tab);
  await tab.close(); // ends nothing
  const other = await device(page.url());
  await begun(other);
  await enter(page, "Afterwards");
  await page.getByText(t("Next:")).waitFor();
  await press(page, "Do not send it");
  await press(other, "Stop");
  await page.getByText(t("You stopped this answer.")).waitFor();
  const shown = await lastText(page);
  const [, kept] = await stored(page);
  assert.equal(kept.state, "stopped");
  assert.equal(kept.content.trim().replace(/\s+/g, " "), shown.trim().replace(/\s+/g, " "));
}

/** The page is closed in mid-answer; the answer is complete when somebody comes back. */
export async function closed({ page, device }) {
  await say(page, "Count");
  await begun(page);
  await page.waitForURL(/#\/chat\/./);
  const place = page.url();
  await page.close();
  const other = await device(place);
  const isOver = ([, answer]) => answer.state !== "answering"; // it may be over before this page is there to tell it
  const [, answer] = await until(() => stored(other), isOver, "the answer is complete");
  await gone(button(other, "Stop"));
  assert.equal(answer.state ?? "done", "done");
  assert.ok(answer.content.length > 50);
}

/** The only engine dies in mid-answer: what was there stays, the reason is said, and the answer can be continued. */
export async function engine({ page, told }) {
  await say(page, "Count");
  await appears(messages(page).last().getByText("Once upon a"));
  await told("kill");
  await shows(page, t("The answer failed"), "killed by SIGKILL");
  const before = (await lastText(page)).trim();
  assert.ok(before.length > 5);
  await press(messages(page).last(), "Continue the answer");
  await button(page, "Stop").waitFor();
  await button(page, "Stop").waitFor({ state: "detached" });
  const [, answer] = await stored(page);
  assert.ok(answer.content.startsWith(before), answer.content);
  assert.ok(answer.content.length > before.length);
  assert.equal(answer.state ?? "done", "done");
}

/** A server that keeps no conversations: this browser does, and another one knows nothing of them. */
export async function here({ page, device, url }) {
  await say(page, "Count");
  await begun(page);
  await page.waitForURL(/#\/chat\/./);
  await page.reload(); // in mid-answer
  await answered(page);
  const text = await lastText(page);
  assert.ok(text.length > 50);
  await press(messages(page).last(), "Another answer");
  await page.getByText("2/2").waitFor();
  await answered(page);
  await press(messages(page).last(), "Previous version");
  await page.getByText("1/2").waitFor();
  const tab = await page.context().newPage();
  await tab.goto(page.url());
  await appears(messages(tab).last().getByText("1/2"));
  assert.equal(await lastText(tab), text);
  await press(messages(tab).last(), "Delete");
  await press(messages(tab).last(), "This message alone");
  await press(tab, "Undo");
  await page.waitForFunction(() => document.querySelectorAll("article").length === 2);
  await attach(page, textFile("note.txt", "zebra"));
  await page.getByText("note.txt").waitFor();
  await exchange(page, "Read it");
  await searchChats(page, "read");
  await appears(page.locator("nav mark").first());
  await searchChats(page, "");
  await uncovered(page);
  const panel = await parameters(page);
  await keepPreset(panel, "careful");
  await page.reload();
  await (await parameters(page)).getByLabel(t("Preset")).selectOption("careful");
  await press(panel, "Close");
  const shown = await ids(page);
  const other = await device();
  await (await conversations(other)).getByText(t("Your conversations will be listed here.")).waitFor();
  await page.goto(`${url}/#/settings`);
  await page.getByText(t("This server keeps no conversations; this browser keeps them, for itself alone.")).waitFor();
  const download = await saved(page, button(page, "Export all"), /^Count_.*\.jsonl$/);
  const exported = textFile(download.suggestedFilename(), readFileSync(await download.path()));
  for (const said of ["1 imported, 0 were here already.", "0 imported, 1 were here already."].map(t)) {
    await other.goto(`${url}/#/settings`);
    await other.getByLabel(t("Import")).setInputFiles({ ...exported, mimeType: "" });
    await other.getByText(said).waitFor();
  }
  await (await conversations(other)).getByRole("link", { name: "Count" }).click();
  await messages(other).first().waitFor();
  assert.deepEqual(await ids(other), shown);
  await other.getByText("note.txt").waitFor();
  await appears(messages(other).nth(1).getByText("1/2"));
  const asked = other.waitForRequest((request) => request.url().endsWith("/chat/completions"));
  await press(messages(other).last(), "Another answer");
  assert.match((await asked).postData(), /zebra/); // the file came along
  await press(page, "Delete all");
  await confirm(page, "Delete");
  await page.waitForURL("**/#/chat"); // it closes the list of a narrow page
  await (await conversations(page)).getByText(t("Your conversations will be listed here.")).waitFor();
}

/** A random walk through a conversation: what is shown and what is stored is what a small model of the tree says. */
export async function walk({ page, seed }) {
  let state = seed;
  const random = (count) => (state = (state * 1103515245 + 12345) % 2147483648) % count;
  const nodes = new Map(); // id: { parent, role }, in the order in which they were made
  let leaf = null;
  await page.addInitScript(() => {
    const { fetch } = window; // no route: Firefox asks with the body that it had
    window.fetch = (url, asked) => {
      const fake = { script: '[{"text": "so far", "stall": true}]' };
      const stalls = window.stalls && String(url).endsWith("chat/completions");
      return fetch(url, stalls ? { ...asked, body: JSON.stringify({ ...JSON.parse(asked.body), fake }) } : asked);
    };
  });
  await page.reload();
  const below = (id) => [...nodes].filter(([, node]) => node.parent === id).map(([child]) => child);
  const path = () => {
    const found = [];
    for (let at = leaf; at !== null; at = nodes.get(at).parent) found.unshift(at);
    return found;
  };
  /** The page shows what it asks the server for before the server has it. */
  const settled = (isSo, what) => {
    const isThere = (all) => all.every((each) => each.state !== "answering") && isSo(all);
    return until(() => stored(page), isThere, what);
  };
  /** What is new, which must be these roles in a line below `parent`; its end is shown. */
  const grew = async (parent, ...roles) => {
    const all = await settled((all) => all.length >= nodes.size + roles.length, `it has ${roles} more`);
    const fresh = all.filter((each) => !nodes.has(each.id));
    assert.deepEqual(fresh.map((each) => each.role).sort(), [...roles].sort());
    for (const role of roles) {
      const one = fresh.find((each) => each.role === role);
      assert.equal(one.parent ?? null, parent);
      nodes.set(one.id, { parent, role });
      leaf = parent = one.id;
    }
  };
  const article = (id) => page.locator(`article[data-message="${id}"]`);
  const pick = (list) => list[random(list.length)];
  const some = (role) => pick(path().filter((id) => nodes.get(id).role === role));
  const click = async (id, name) => {
    await article(id).hover();
    await article(id).getByRole("button", { name, exact: true }).click();
  };
  const steps = {
    async ask() {
      const parent = leaf;
      await say(page, `question ${nodes.size}`);
      await grew(parent, "user", "assistant");
    },
    async stop() {
      const parent = leaf;
      await page.evaluate(() => (window.stalls = true));
      await say(page, `question ${nodes.size}`);
      await appears(messages(page).last().getByText("so far")); // one that has not begun is refused when it is stopped
      await press(page, "Stop");
      await page.evaluate(() => (window.stalls = false));
      await grew(parent, "user", "assistant");
    },
    async edit() {
      const id = some("user");
      await click(id, t("Edit"));
      await page.getByRole("textbox", { name: t("Edit") }).fill(`edited ${nodes.size}`);
      await press(article(id), "Send");
      await page.waitForFunction((id) => !document.querySelector(`article[data-message="${id}"]`), id);
      await grew(nodes.get(id).parent, "user", "assistant");
    },
    async again() {
      const id = some("assistant");
      await click(id, t("Another answer"));
      await page.waitForFunction((id) => !document.querySelector(`article[data-message="${id}"]`), id);
      await grew(nodes.get(id).parent, "assistant");
    },
    async branch() {
      const id = pick(path().filter((each) => below(nodes.get(each).parent).length > 1));
      if (!id) return;
      const siblings = below(nodes.get(id).parent);
      const at = siblings.indexOf(id);
      await click(id, t(at ? "Previous version" : "Next version"));
      leaf = siblings[at ? at - 1 : at + 1];
      while (below(leaf).length) leaf = below(leaf).at(-1);
    },
    async remove() {
      const id = pick(path());
      await click(id, t("Delete"));
      const ways = await article(id).locator("[data-item]").all();
      const one = pick(ways);
      const more = Number(/\d+/.exec(await one.innerText())?.[0] ?? 0);
      await one.click();
      const news = t(more ? "{count} messages were deleted." : "The message was deleted.");
      await appears(page.getByText(news.replace("{count}", more + 1)).last());
      await settled((all) => all.length === nodes.size - more - 1, `${more + 1} are gone, and no other`);
      await button(page, "Undo").last().click();
      const toast = page.getByRole("status").filter({ hasText: t("Undo") });
      await toast.waitFor({ state: "hidden" }).catch(() => undefined);
    },
    async reload() {
      await page.reload();
    },
  };
  await steps.ask();
  for (let step = 0; step < 25; step++) {
    const name = pick(Object.keys(steps));
    await steps[name]();
    await showsOnly(page, path(), `step ${step}, ${name}, seed ${seed}: the shown branch is another`);
    const tree = (all) => new Map(all.map((each) => [each.id, { parent: each.parent ?? null, role: each.role }]));
    await settled((all) => isDeepStrictEqual(tree(all), nodes), `step ${step}, ${name}, seed ${seed}: what is stored`);
  }
}

/** A line without an end: it is shown, and the page can be used. */
export async function long({ page }) {
  await exchange(page, "Go on");
  assert.ok((await messages(page).last().locator(".prose-chat").innerText()).length > 1_000_000);
  await field(page).fill("still here");
  await page.reload();
  await begun(page);
  await newChat(page);
}

/** Two models answer one question side by side, and one of them goes on. */
export async function compare({ page }) {
  await press(page, "Models that answer too, side by side");
  await page.getByRole("checkbox").first().check();
  await page.keyboard.press("Escape");
  await enter(page, "Who are you?");
  const group = page.getByRole("group", { name: t("Side by side") });
  await page.waitForFunction(() => document.querySelectorAll("[role=group] article").length === 2);
  await answered(page);
  await accessible(page, "side by side");
  const other = await group.getByRole("heading").nth(1).innerText();
  await button(group, "Go on with this answer").nth(1).click();
  await appears(messages(page).last().getByText("2/2"));
  await page.getByRole("button", { name: `${t("Choose a model")}: ${other}` }).waitFor();
  await page.getByRole("img", { name: t("Answering") }).waitFor({ state: "detached" });
  const [, one, two] = await stored(page);
  assert.notEqual(one.model, two.model);
  assert.deepEqual([one.state ?? "done", two.state ?? "done"], ["done", "done"]);
  assert.equal(one.parent, two.parent);
  await press(messages(page).last(), "Side by side");
  await group.waitFor();
}

const used = (page) => page.getByRole("button", { name: like("context") });

/** A context that is full is not full any more after a summary; a summary that failed can be asked for again. */
export async function summed({ page, allow }) {
  allow(/ 500 .*\/chat\/completions$/);
  const sent = [];
  let broken = false;
  await page.route(/chat\/completions/, (route) => {
    const body = route.request().postDataJSON();
    sent.push(body.messages.at(-1).content);
    return route.continue({ postData: JSON.stringify({ ...body, fake: broken ? { status: 500 } : {} }) });
  });
  for (const text of ["Hi", "long ".repeat(900)]) await exchange(page, text);
  const meter = page.locator("[data-meter]").locator("..");
  await appears(meter.filter({ hasText: "100 %" }));
  const full = await used(page).evaluate((each) => getComputedStyle(each).color);
  const summarise = async () => {
    await used(page).click();
    await press(page, "Summarise what was said");
  };
  broken = true;
  await summarise();
  const again = button(messages(page).last(), "Again");
  await again.waitFor();
  assert.equal((await stored(page)).at(-1).state, "failed");
  broken = false;
  await again.click();
  await appears(messages(page).last().getByText("Once upon"));
  assert.equal(sent.at(-1), sent.at(-2)); // it is a summary that is asked for
  const all = await stored(page);
  const roles = all.map((each) => each.role);
  assert.deepEqual(roles, ["user", "assistant", "user", "assistant", "system"]);
  assert.equal(all.at(-1).state ?? "done", "done");
  await appears(meter.filter({ hasText: /^\s*\d %\s*$/ }));
  assert.notEqual(await used(page).evaluate((each) => getComputedStyle(each).color), full);
  await used(page).click();
  await page.getByText(new RegExp(`^${like("contextParts", { before: 0, answer: /\d/ }).source}`)).waitFor();
}
