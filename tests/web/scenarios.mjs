// What the tests of the page do in the browser. Each is given the page and ways to talk to the test that started it:
// `told(word)` says how far it is and waits until the test has done its part.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createServer, request } from "node:http";
import { another, answered, axe, field, open, say } from "./browser.mjs";

const messages = (page) => page.getByRole("article");
const lastText = (page) => messages(page).last().locator(".prose-chat").last().innerText();
const api = (page, path) => page.evaluate(async (path) => (await fetch(path)).json(), path);
const stored = async (page) => {
  const id = new URL(page.url()).hash.slice("#/chat/".length);
  return (await api(page, `/api/conversations/${id}`)).messages;
};
const press = (page, name) => messages(page).last().getByRole("button", { name, exact: true }).click();

async function accessible(page, where) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const bad = violations.filter((found) => ["serious", "critical"].includes(found.impact));
  assert.deepEqual(
    bad.map((found) => `${where}: ${found.id} at ${found.nodes.map((node) => node.target).join(", ")}`),
    [],
  );
}

const WORDS = "BT /F 12 Tf 50 700 Td (the password is giraffe) Tj ET";
const PDF = `%PDF-1.4
1 0 obj << /Type /Catalog /Pages 2 0 R >> endobj
2 0 obj << /Type /Pages /Kids [3 0 R] /Count 1 >> endobj
3 0 obj << /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents 4 0 R /Resources << /Font << /F 5 0 R >> >> >> endobj
4 0 obj << /Length ${WORDS.length} >> stream
${WORDS}
endstream endobj
5 0 obj << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> endobj
trailer << /Root 1 0 R >>
startxref
0
%%EOF
`;

export const scenarios = {
  /** A conversation with the starter model: stream, edit, branch, regenerate, fork, delete, undo, search. */
  async chat({ page, browser, url }) {
    await say(page, "Hello! What can you do?");
    await answered(page);
    const first = await lastText(page);
    assert.ok(first.length > 10, first);
    await page.waitForURL(/#\/chat\/[0-9a-f-]{36}$/);
    await press(page, "Another answer");
    await page.getByText("2/2").waitFor();
    await answered(page);
    await messages(page).last().getByRole("button", { name: "Previous version" }).click();
    await page.getByText("1/2").waitFor();
    await messages(page).first().hover();
    await messages(page).first().getByRole("button", { name: "Edit" }).click();
    await page.getByRole("textbox", { name: "Edit" }).fill("What is a llama?");
    await messages(page).first().getByRole("button", { name: "Send" }).click();
    await messages(page).first().getByText("2/2").waitFor();
    await answered(page);
    const tree = await stored(page);
    assert.equal(tree.length, 5);
    assert.deepEqual(new Set(tree.map((each) => each.state ?? "done")), new Set(["done"]));
    const device = await another(browser, page.url());
    await device.page.goto(page.url());
    await device.page.getByText("What is a llama?").first().waitFor();
    await press(page, "Delete");
    await page.getByRole("button", { name: "Undo" }).click();
    await page.waitForFunction(() => document.querySelectorAll("article").length === 2);
    await press(page, "New chat from here");
    await page.waitForFunction((before) => location.href !== before, device.page.url());
    await page.getByRole("searchbox", { name: "Search conversations" }).fill("llam");
    await page.locator("nav mark").first().waitFor();
    assert.deepEqual(device.wrong, []);
    const title = await page.evaluate(() => document.title);
    assert.match(title, /Llama Appliance/);
    await page.goto(url);
  },

  /** Every screen in both themes and both languages, at phone width as well, and nothing scrolls sideways. */
  async screens({ browser, url }) {
    for (const [colorScheme, locale, viewport] of [
      ["light", "en-GB", { width: 1280, height: 800 }],
      ["dark", "de-DE", { width: 320, height: 640 }],
    ]) {
      const { page, context, wrong } = await another(browser, url, { colorScheme, locale, viewport });
      for (const screen of ["chat", "models", "settings", "welcome"]) {
        await page.goto(`${url}/#/${screen}`);
        await page.getByRole("heading", { level: 1 }).waitFor();
        await accessible(page, `${screen} ${colorScheme} ${locale}`);
        const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert.ok(over <= 0, `${screen} is ${over} px too wide`);
        assert.equal(await page.evaluate(() => document.documentElement.lang), locale.slice(0, 2));
      }
      assert.deepEqual(wrong, []);
      await context.close();
    }
  },

  /** An answer goes on through a reload, is the same in another browser, and is stopped from there. */
  async resume({ page, browser, url }) {
    await say(page, "Count");
    await messages(page).last().locator(".prose-chat p").waitFor();
    await page.waitForURL(/#\/chat\/./);
    await page.reload();
    await messages(page).last().locator(".prose-chat p").waitFor();
    const before = (await lastText(page)).length;
    await page.waitForFunction((before) => document.querySelector("article:last-of-type .prose-chat").innerText.length > before + 20, before);
    const device = await another(browser, url);
    const tab = await page.context().newPage();
    await tab.goto(page.url());
    await messages(tab).last().locator(".prose-chat p").waitFor();
    await tab.close(); // ends nothing
    await device.page.goto(page.url());
    await messages(device.page).last().locator(".prose-chat p").waitFor();
    await field(page).fill("Afterwards");
    await page.keyboard.press("Enter");
    await page.getByText("Next:").waitFor();
    await page.getByRole("button", { name: "Do not send it" }).click();
    await device.page.getByRole("button", { name: "Stop" }).click();
    await page.getByText("You stopped this answer.").waitFor();
    const shown = await lastText(page);
    const [, kept] = await stored(page);
    assert.equal(kept.state, "stopped");
    assert.equal(kept.content.trim().replace(/\s+/g, " "), shown.trim().replace(/\s+/g, " "));
    assert.deepEqual(device.wrong, []);
  },

  /** The page is closed in mid-answer; the answer is complete when somebody comes back. */
  async closed({ page, browser, url }) {
    await say(page, "Count");
    await messages(page).last().locator(".prose-chat p").waitFor();
    await page.waitForURL(/#\/chat\/./);
    const place = page.url();
    await page.close();
    const device = await another(browser, url);
    await device.page.goto(place);
    await answered(device.page);
    const [, answer] = await stored(device.page);
    assert.equal(answer.state ?? "done", "done");
    assert.equal((answer.content.match(/\S+/g) ?? []).length, answer.content.split(" ").filter(Boolean).length);
    assert.ok(answer.content.length > 50);
  },

  /** The program is killed in mid-answer and started again: the page catches up by itself, and what was there is. */
  async killed({ page, told }) {
    await say(page, "Count");
    await messages(page).last().locator(".prose-chat p").waitFor();
    await page.waitForTimeout(2500); // longer than an answer may go unnoted
    await told("kill");
    await page.getByText("The server cannot be reached.", { exact: false }).first().waitFor();
    assert.ok((await lastText(page)).length > 5);
    await told("start");
    await page.getByText("The answer was cut short.", { exact: false }).waitFor();
    assert.ok((await lastText(page)).length > 5);
    await press(page, "Continue the answer");
    await answered(page);
  },

  /** The only engine dies in mid-answer: what was there stays, the reason is said, and the answer can be continued. */
  async engine({ page, told }) {
    await say(page, "Count");
    await messages(page).last().getByText("Once upon a").waitFor();
    await told("kill");
    await page.getByText("The answer failed").waitFor();
    await page.getByText("killed by SIGKILL", { exact: false }).waitFor();
    const before = (await lastText(page)).trim();
    assert.ok(before.length > 5);
    await press(page, "Continue the answer");
    await page.getByRole("button", { name: "Stop" }).waitFor();
    await page.getByRole("button", { name: "Stop" }).waitFor({ state: "detached", timeout: 60_000 });
    const [, answer] = await stored(page);
    assert.ok(answer.content.startsWith(before), answer.content);
    assert.ok(answer.content.length > before.length);
    assert.equal(answer.state ?? "done", "done");
  },

  /** A server that keeps no conversations: this browser does, and another one knows nothing of them. */
  async here({ page, browser, url }) {
    await say(page, "Count");
    await messages(page).last().locator(".prose-chat p").waitFor();
    await page.waitForURL(/#\/chat\/./);
    await page.reload(); // in mid-answer
    await answered(page);
    const text = await lastText(page);
    assert.ok(text.length > 50);
    await press(page, "Another answer");
    await page.getByText("2/2").waitFor();
    await answered(page);
    await messages(page).last().getByRole("button", { name: "Previous version" }).click();
    await page.getByText("1/2").waitFor();
    const tab = await page.context().newPage();
    await tab.goto(page.url());
    await messages(tab).last().getByText("1/2").waitFor();
    assert.equal(await lastText(tab), text);
    await press(tab, "Delete");
    await tab.getByRole("button", { name: "Undo" }).click();
    await page.waitForFunction(() => document.querySelectorAll("article").length === 2);
    const chooser = page.getByLabel("Attach files").first();
    await chooser.setInputFiles({ name: "note.txt", mimeType: "text/plain", buffer: Buffer.from("zebra") });
    await page.getByText("note.txt").waitFor();
    await say(page, "Read it");
    await answered(page);
    await page.getByRole("searchbox", { name: "Search conversations" }).fill("read");
    await page.locator("nav mark").first().waitFor();
    await page.getByRole("searchbox", { name: "Search conversations" }).fill("");
    await page.getByRole("button", { name: "Parameters" }).click();
    page.once("dialog", (dialog) => dialog.accept("careful"));
    await page.getByRole("button", { name: "Save" }).click();
    await page.getByRole("button", { name: "Delete the preset" }).waitFor();
    await page.reload();
    await page.getByRole("button", { name: "Parameters" }).click();
    await page.getByLabel("Preset").selectOption("careful");
    await page.getByRole("complementary", { name: "Parameters" }).getByRole("button", { name: "Close" }).click();
    const shown = await messages(page).evaluateAll((all) => all.map((each) => each.dataset.message));
    const device = await another(browser, url);
    await device.page.goto(url);
    await device.page.getByText("Your conversations will be listed here.").waitFor();
    await page.goto(`${url}/#/settings`);
    await page.getByText("this browser keeps them", { exact: false }).waitFor();
    const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Export all" }).click()]);
    const file = { name: download.suggestedFilename(), mimeType: "", buffer: readFileSync(await download.path()) };
    assert.match(file.name, /^Count_.*\.jsonl$/);
    for (const said of ["1 imported, 0 were here already.", "0 imported, 1 were here already."]) {
      await device.page.goto(`${url}/#/settings`);
      await device.page.getByLabel("Import").setInputFiles(file);
      await device.page.getByText(said).waitFor();
    }
    await device.page.getByRole("link", { name: "Count" }).click();
    await messages(device.page).first().waitFor();
    assert.deepEqual(await messages(device.page).evaluateAll((all) => all.map((each) => each.dataset.message)), shown);
    await device.page.getByText("note.txt").waitFor();
    await messages(device.page).nth(1).getByText("1/2").waitFor();
    const asked = device.page.waitForRequest((request) => request.url().endsWith("/chat/completions"));
    await press(device.page, "Another answer");
    assert.match((await asked).postData(), /zebra/); // the file came along
    assert.deepEqual(device.wrong, []);
    page.once("dialog", (dialog) => dialog.accept());
    await page.getByRole("button", { name: "Delete all" }).click();
    await page.getByText("Your conversations will be listed here.").waitFor();
  },

  /** A random walk through a conversation: what is shown and what is stored is what a small model of the tree says. */
  async walk({ page, seed }) {
    let state = seed;
    const random = (count) => (state = (state * 1103515245 + 12345) % 2147483648) % count;
    const nodes = new Map(); // id: { parent, role }, in the order in which they were made
    let leaf = null;
    const below = (id) => [...nodes].filter(([, node]) => node.parent === id).map(([child]) => child);
    const path = () => {
      const found = [];
      for (let at = leaf; at !== null; at = nodes.get(at).parent) found.unshift(at);
      return found;
    };
    const settled = async () => {
      for (;;) {
        const all = await stored(page);
        if (all.every((each) => each.state !== "answering")) return all;
        await page.waitForTimeout(100);
      }
    };
    /** What is new, which must be these roles in a line below `parent`; its end is shown. */
    const grew = async (parent, ...roles) => {
      const fresh = (await settled()).filter((each) => !nodes.has(each.id));
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
        await say(page, `question ${nodes.size}`);
        await page.getByRole("button", { name: "Stop" }).click({ timeout: 5_000 }).catch(() => undefined); // it may be done
        await grew(parent, "user", "assistant");
      },
      async edit() {
        const id = some("user");
        await click(id, "Edit");
        await page.getByRole("textbox", { name: "Edit" }).fill(`edited ${nodes.size}`);
        await article(id).getByRole("button", { name: "Send" }).click();
        await page.waitForFunction((id) => !document.querySelector(`article[data-message="${id}"]`), id);
        await grew(nodes.get(id).parent, "user", "assistant");
      },
      async again() {
        const id = some("assistant");
        await click(id, "Another answer");
        await page.waitForFunction((id) => !document.querySelector(`article[data-message="${id}"]`), id);
        await grew(nodes.get(id).parent, "assistant");
      },
      async branch() {
        const id = pick(path().filter((each) => below(nodes.get(each).parent).length > 1));
        if (!id) return;
        const siblings = below(nodes.get(id).parent);
        const at = siblings.indexOf(id);
        await click(id, at ? "Previous version" : "Next version");
        leaf = siblings[at ? at - 1 : at + 1];
        while (below(leaf).length) leaf = below(leaf).at(-1);
      },
      async remove() {
        const id = pick(path());
        await click(id, "Delete");
        await page.getByRole("button", { name: "Undo" }).last().click();
        await page.getByRole("status").filter({ hasText: "Undo" }).waitFor({ state: "hidden" }).catch(() => undefined);
      },
      async reload() {
        await page.reload();
      },
    };
    await steps.ask();
    for (let step = 0; step < 25; step++) {
      const name = pick(Object.keys(steps));
      await steps[name]();
      const wanted = path();
      await page.waitForFunction(
        (wanted) => JSON.stringify([...document.querySelectorAll("article")].map((each) => each.dataset.message)) === JSON.stringify(wanted),
        wanted,
      ).catch(() => assert.fail(`step ${step}, ${name}, seed ${seed}: the shown branch is another`));
      const kept = Object.fromEntries((await settled()).map((each) => [each.id, { parent: each.parent ?? null, role: each.role }]));
      assert.deepEqual(kept, Object.fromEntries(nodes), `step ${step}, ${name}, seed ${seed}`);
    }
  },

  /** A line without an end: it is shown, and the page can be used. */
  async long({ page }) {
    await say(page, "Go on");
    await answered(page);
    assert.ok((await messages(page).last().locator(".prose-chat").innerText()).length > 1_000_000);
    await field(page).fill("still here");
    await page.reload();
    await messages(page).last().locator(".prose-chat p").waitFor();
    await page.getByRole("link", { name: "New chat" }).click();
    await page.getByRole("heading", { name: "What can I do for you?" }).waitFor();
  },

  /** Text from right to left, at 200 % and in a page that is turned round: nothing is cut off or scrolls sideways. */
  async layouts({ browser, url }) {
    const { page, wrong } = await another(browser, url, { viewport: { width: 640, height: 400 }, deviceScaleFactor: 2 });
    await page.goto(url);
    await say(page, "مرحبا");
    await answered(page);
    const answer = messages(page).last().locator(".prose-chat");
    const direction = (place) => place.evaluate((element) => getComputedStyle(element).direction);
    assert.equal(await direction(answer.locator("p").first()), "rtl");
    assert.equal(await direction(answer.locator("pre")), "ltr");
    for (const dir of ["ltr", "rtl"]) {
      await page.evaluate((dir) => document.documentElement.setAttribute("dir", dir), dir);
      for (const screen of ["", "#/models", "#/settings"]) {
        if (screen) await page.evaluate((screen) => (location.hash = screen), screen);
        await page.getByRole("heading", { level: 1 }).waitFor();
        const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert.ok(over <= 0, `${screen} ${dir} is ${over} px too wide`);
        await accessible(page, `${screen} ${dir}`);
      }
      await page.goBack();
      await page.goBack();
      await answer.waitFor();
      await field(page).click(); // it is in view
    }
    assert.deepEqual(wrong, []);
  },

  /** Below a path of a proxy that takes the path away. */
  async prefix({ browser, url }) {
    const proxy = createServer((incoming, outgoing) => {
      if (!incoming.url.startsWith("/a/b/")) return outgoing.writeHead(404).end();
      const target = new URL(incoming.url.slice(4), url);
      const asked = request(target, { method: incoming.method, headers: { ...incoming.headers, host: target.host } }, (answer) => {
        outgoing.writeHead(answer.statusCode, answer.headers);
        answer.pipe(outgoing);
      });
      asked.on("error", () => outgoing.destroy()); // also its own end, when the browser leaves before an answer
      outgoing.on("close", () => asked.destroy());
      incoming.pipe(asked);
    });
    await new Promise((resolve) => proxy.listen(0, "127.0.0.1", resolve));
    try {
      const place = `http://127.0.0.1:${proxy.address().port}/a/b/`;
      const { page, context, wrong } = await another(browser, place);
      await page.goto(place);
      await say(page, "Hi");
      await answered(page);
      assert.match(page.url(), /\/a\/b\/(ui\/)?#\/chat\/./);
      await page.reload();
      await messages(page).last().locator(".prose-chat p").waitFor();
      await page.goto(`${place}#/models`);
      await page.getByText("Loaded", { exact: true }).waitFor();
      assert.deepEqual(wrong, []);
      await context.close();
    } finally {
      proxy.closeAllConnections();
      proxy.close();
    }
  },

  /** Plain http on an address that is not this machine's own, in a network with nothing else in it. */
  async lan({ page }) {
    await page.getByLabel("API key").fill("secret");
    await page.getByRole("button", { name: "Continue" }).click();
    await say(page, "Code");
    await answered(page);
    await messages(page).last().getByRole("button", { name: "Copy the code" }).click();
    await page.getByText("Copied").waitFor();
    await field(page).click();
    await page.keyboard.press("Control+V");
    await page.waitForFunction(() => document.querySelector("form textarea").value.includes("def f"));
    for (const screen of ["models", "settings", "welcome"]) {
      await page.evaluate((screen) => (location.hash = `#/${screen}`), screen);
      await page.getByRole("heading", { level: 1 }).waitFor();
    }
    await page.evaluate(() => (location.hash = "#/settings"));
    const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "Export all" }).click()]);
    assert.match(file.suggestedFilename(), /\.jsonl$/);
  },

  /** A model is fetched from the hub, paused, fetched on, and talked to. */
  async pull({ page, url, told }) {
    await page.goto(`${url}/#/models`);
    await page.getByLabel("Get a model from Hugging Face").fill("acme/big-GGUF:Q8_0");
    await page.getByRole("button", { name: "Download" }).click();
    const card = messages(page).filter({ hasText: "acme/big" });
    await card.getByText("Downloading", { exact: true }).waitFor();
    await told("came");
    await card.getByRole("button", { name: "Pause" }).click();
    await card.getByText("paused").waitFor();
    await told("paused");
    await card.getByRole("button", { name: "Resume" }).click();
    await told("fast");
    await card.getByRole("button", { name: "Chat" }).click();
    await say(page, "Hi");
    await answered(page);
    const [, answer] = await stored(page);
    assert.match(answer.model, /acme\/big/);
    await page.goto(`${url}/#/models`);
    page.once("dialog", (dialog) => dialog.accept());
    await card.getByRole("button", { name: "Delete" }).click();
    await card.waitFor({ state: "detached" });
  },

  /** The first model: three cards that say their size, another file than the recommended one is refused, one comes. */
  async first({ page, told }) {
    await page.getByRole("heading", { name: "Welcome. First you need a model." }).waitFor();
    const card = page.getByRole("article", { name: "Fast" });
    await card.getByText(/Licence: Apache-2.0/).waitFor();
    await card.getByText(/needs .* of .* free/).waitFor();
    assert.ok((await page.getByRole("article").count()) <= 3);
    await accessible(page, "first run");
    await card.getByRole("button", { name: /Download [\d.]+ [GM]B/ }).click();
    await page.getByText("the hub has another file").waitFor();
    await page.getByLabel("Get a model from Hugging Face").fill("acme/big-GGUF:Q8_0");
    await page.getByRole("button", { name: "Download", exact: true }).click();
    await page.getByText("Downloading", { exact: true }).waitFor();
    await told("coming");
    await page.getByRole("heading", { name: "Welcome. Ask something." }).waitFor();
    await accessible(page, "first question");
    await page.getByLabel(/What do you want to ask/).fill("Hi");
    await page.getByRole("button", { name: "Send" }).click();
    await answered(page);
    const [, answer] = await stored(page);
    assert.match(answer.model, /acme\/big/);
  },

  /** Without a hub there is nothing to download, and the page says what to do. */
  async offline({ page }) {
    await page.getByText("This server reaches no hub at the moment", { exact: false }).waitFor();
    await page.getByText("Use a file of your own", { exact: true }).waitFor();
    assert.equal(await page.getByRole("button", { name: /Download/ }).count(), 0);
    await accessible(page, "offline");
  },

  /** What fits, how long a model stays, and a search of the hub down to one quantisation. */
  async hub({ page, url }) {
    await page.goto(`${url}/#/models`);
    const card = messages(page).first();
    await card.getByRole("button", { name: "Load", exact: true }).click();
    await card.getByText("Loaded", { exact: true }).waitFor({ timeout: 30_000 });
    await card.getByLabel("Stays loaded").selectOption("-1");
    await card.getByText(/· stays loaded/).waitFor();
    await card.getByRole("button", { name: "What it takes" }).click();
    await card.getByText(/Fits|cannot be foretold/).first().waitFor();
    await page.getByRole("searchbox", { name: "Search Hugging Face for models" }).fill("big");
    await page.getByRole("button", { name: "Search", exact: true }).click();
    await page.getByRole("button", { name: /acme\/big-GGUF/ }).click();
    await page.getByText(/needs .* of .* free/).first().waitFor();
    await accessible(page, "hub");
    await page.getByRole("button", { name: /Download acme\/big-GGUF:Q8_0, \d/ }).click();
    await messages(page).filter({ hasText: "acme/big" }).getByRole("button", { name: "Chat" }).waitFor();
  },

  /** 10,000 messages open at once and few of them are in the page; an answer at 200 tokens a second blocks nothing. */
  async large({ page, url }) {
    const lines = [{ harness: "llama.app", type: "session", id: "large", name: "Large", lastModified: 1, currNode: "m9999" }];
    for (let at = 0; at < 10_000; at++) {
      const content = at % 2 ? `Answer ${at} with **words**, \`code\` and a list:\n\n- one\n- two\n\n${"more text ".repeat(20)}` : `Question ${at}?`;
      const message = { id: `m${at}`, convId: "large", type: "text", role: at % 2 ? "assistant" : "user", timestamp: at + 1, content, parent: at ? `m${at - 1}` : null, children: [] };
      lines.push({ type: "message", message });
    }
    const body = lines.map((line) => JSON.stringify(line)).join("\n");
    const imported = await page.evaluate(async (body) => (await fetch("/api/conversations/import", { method: "POST", body })).json(), body);
    assert.equal(imported.imported.length, 1);
    const place = `${url}/#/chat/${imported.imported[0]}`;
    const times = [];
    for (let round = 0; round < 3; round++) {
      await page.goto("about:blank");
      const began = performance.now();
      await page.goto(place);
      await messages(page).last().getByText("Answer 9999").waitFor();
      times.push(performance.now() - began);
    }
    const nodes = await page.evaluate(() => document.querySelectorAll("*").length);
    const shown = await messages(page).count();
    assert.ok(shown <= 150 && shown >= 20, `${shown} messages`);
    assert.ok(nodes <= 5000, `${nodes} nodes`);
    await page.evaluate(() => {
      window.tasks = [];
      new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((entry) => entry.duration))).observe({ entryTypes: ["longtask"] });
    });
    await field(page).fill("Count");
    await page.getByRole("button", { name: "Send", exact: true }).click();
    await page.getByRole("button", { name: "Stop" }).waitFor();
    await messages(page).last().getByText("Once upon a time").waitFor();
    await page.waitForTimeout(1000);
    await page.evaluate(() => (window.tasks.length = 0));
    await page.waitForTimeout(10_000);
    const tasks = await page.evaluate(() => window.tasks);
    await page.getByRole("button", { name: "Stop" }).click();
    await page.getByText("You stopped this answer.").waitFor();
    const rounded = (all) => all.map((each) => Math.round(each)).join(", ");
    console.log(`opens in ${rounded(times)} ms, with ${shown} messages and ${nodes} nodes; tasks over 50 ms in ten seconds: ${rounded(tasks) || "none"}`);
  },

  /** Model output that wants to be more than text. */
  async hostile({ page, browser }) {
    await page.evaluate(() => {
      window.hit = 0;
    });
    page.on("dialog", () => assert.fail("a dialog opened"));
    await say(page, "Attack");
    await answered(page);
    const answer = messages(page).last().locator(".prose-chat");
    assert.equal(await answer.locator("script, iframe, object, embed, form, svg:not(button svg), style, img").count(), 0);
    const links = await answer.locator("a").evaluateAll((all) => all.map((a) => a.getAttribute("href")));
    assert.ok(links.length >= 1);
    assert.ok(links.every((href) => /^(https?|mailto):/.test(href)), links.join(" "));
    assert.equal(await answer.locator("*").evaluateAll((all) => all.filter((e) => [...e.attributes].some((a) => /^on|^style$/.test(a.name))).length), 0);
    assert.equal(await page.evaluate(() => window.hit), 0);
    assert.match(await answer.innerText(), /<script>/);
    assert.match(await answer.innerText(), /⟨U\+202E⟩/);
    assert.equal(await answer.locator("math").count(), 1);
    assert.ok((await answer.locator(".hljs-keyword").count()) > 0);
    await accessible(page, "hostile");
    assert.ok(browser.isConnected());
  },

  /** HTML of a model is shown as it looks. Whatever a person does in it, nothing is asked of anybody. */
  async preview({ page, url, told, wrong }) {
    await say(page, "Draw");
    await answered(page);
    const block = messages(page).last().locator(".code").first();
    const source = await block.locator("pre").innerText();
    await block.getByRole("button", { name: "Preview", exact: true }).click();
    const inside = block.frameLocator("iframe");
    const heading = inside.getByRole("heading", { name: "A page" });
    await heading.waitFor();
    assert.equal(await heading.evaluate((element) => getComputedStyle(element).color), "rgb(1, 2, 3)");
    const things = inside.locator("a, area, button, input, td, text");
    assert.ok((await things.count()) > 5);
    for (const thing of await things.all()) {
      await thing.hover({ force: true, timeout: 1000 }).catch(() => undefined);
      await thing.click({ force: true, timeout: 1000, button: "middle" }).catch(() => undefined);
      await thing.click({ force: true, timeout: 1000 }).catch(() => undefined);
    }
    await page.waitForTimeout(1000); // what was begun without being waited for
    assert.equal(await inside.locator("html").getAttribute("data-ran"), null);
    assert.equal(await heading.innerText(), "A page"); // it is still there
    // A link within the preview may be opened in a tab, which is the empty sandbox then.
    for (const each of page.context().pages()) assert.ok(each.url().startsWith(url), each.url());
    assert.equal(await page.evaluate(() => window.hit), undefined);
    await accessible(page, "preview");
    await told("nothing");
    await block.getByRole("button", { name: "Close the preview" }).click();
    await block.locator("iframe").waitFor({ state: "detached" });
    wrong.length = 0; // it has what the preview was refused
    const stays = source.replace(/<meta[^>]+>/g, "").replace("top.location =", "").replaceAll("preview.example", "control.example");
    const [control, scripted] = [await page.context().newPage(), await page.context().newPage()];
    for (const each of [control, scripted]) await each.goto(`${url}/health`); // of the same server, without a policy
    // By itself: in the page it waits for styles, which nobody answers.
    await scripted.evaluate(/<script>\n([^]*?)<\/script>/.exec(stays)[1]);
    await control.evaluate((stays) => (document.open(), document.write(stays), document.close()), stays);
    await told("everything");
  },

  /** A key is asked for once, and kept. */
  async key({ page }) {
    await page.getByLabel("API key").fill("wrong");
    await page.getByRole("button", { name: "Continue" }).click();
    await page.getByText("does not accept that key").waitFor();
    await accessible(page, "key");
    await page.getByLabel("API key").fill("secret");
    await page.getByRole("button", { name: "Continue" }).click();
    await field(page).waitFor();
    await page.reload();
    await say(page, "Hi");
    await answered(page);
  },

  /** A model that sees nothing is not sent a picture; a text file is told. One that sees and hears is sent both. */
  async files({ page }) {
    const chooser = page.getByLabel("Attach files").first();
    const pixel = Buffer.from("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==", "base64");
    await chooser.setInputFiles({ name: "dot.png", mimeType: "image/png", buffer: pixel });
    await page.getByText("cannot look at images").waitFor();
    assert.ok(await page.getByRole("button", { name: "Send", exact: true }).isDisabled());
    await page.getByRole("button", { name: "Remove dot.png" }).click();
    await chooser.setInputFiles({ name: "note.txt", mimeType: "text/plain", buffer: Buffer.from("the magic word is zebra") });
    await page.getByText("note.txt").waitFor();
    await say(page, "Read it");
    await answered(page);
    assert.match(await lastText(page), /zebra/); // this engine says what it was sent
    await chooser.setInputFiles({ name: "broken.pdf", mimeType: "application/pdf", buffer: Buffer.from("%PDF-1.4 and no more") });
    await page.getByText("the file cannot be read", { exact: false }).waitFor();
    await chooser.setInputFiles({ name: "paper.pdf", mimeType: "application/pdf", buffer: Buffer.from(PDF) });
    await page.getByText("paper.pdf").waitFor();
    await say(page, "Read that");
    await answered(page);
    assert.match(await lastText(page), /the password is giraffe/);
    await page.getByRole("button", { name: "Parameters" }).click();
    await page.getByLabel("Temperature").fill("0.3");
    await page.getByLabel("System prompt").fill("Be brief.");
    await page.getByRole("heading", { name: "Parameters" }).click();
    await say(page, "Again");
    await answered(page);
    const sent = await lastText(page);
    assert.match(sent, /"temperature":\s?0.3/);
    assert.match(sent, /Be brief/);
    assert.doesNotMatch(sent, /top_p/);
    await page.getByRole("button", { name: /Choose a model/ }).click();
    await page.getByRole("button", { name: "watcher" }).click();
    const beep = Buffer.from("RIFF\x24\0\0\0WAVEfmt ", "latin1");
    await chooser.setInputFiles([
      { name: "dot.png", mimeType: "image/png", buffer: pixel },
      { name: "beep.wav", mimeType: "audio/wav", buffer: beep },
    ]);
    await page.getByText("beep.wav").waitFor();
    await say(page, "Look and listen");
    await answered(page);
    const { messages: told } = JSON.parse((await stored(page)).at(-1).content);
    assert.deepEqual(told.at(-1).content, [
      { type: "text", text: "Look and listen" },
      { type: "image_url", image_url: { url: `data:image/png;base64,${pixel.toString("base64")}` } },
      { type: "input_audio", input_audio: { data: beep.toString("base64"), format: "wav" } },
    ]);
  },

  /** What a conversation is asked with beside its words, under a name for the next one; and commands by their first letters. */
  async settings({ page, browser, url }) {
    const sent = [];
    page.on("request", (request) => request.url().endsWith("/chat/completions") && sent.push(request.postDataJSON()));
    await page.getByRole("button", { name: "Parameters" }).click();
    const panel = page.getByRole("complementary", { name: "Parameters" });
    await panel.getByLabel("Thinking").selectOption("low");
    await panel.getByLabel("Seed").fill("7");
    await panel.getByLabel("JSON schema of answers").fill("{");
    await panel.getByRole("heading").click();
    await panel.getByText("The schema is not JSON").waitFor();
    await accessible(page, "parameters");
    await panel.getByLabel("JSON schema of answers").fill('{"type": "object"}');
    await panel.getByRole("heading").click();
    page.once("dialog", (dialog) => dialog.accept("careful"));
    await panel.getByRole("button", { name: "Save" }).click();
    await panel.getByRole("button", { name: "Delete the preset" }).waitFor();
    await say(page, "Hi");
    await answered(page);
    await page.goto(`${url}/#/chat`);
    await page.reload();
    await page.getByRole("button", { name: "Parameters" }).click();
    await panel.getByLabel("Preset").selectOption("careful");
    await say(page, "Hello");
    await answered(page);
    assert.equal(sent.length, 2);
    for (const body of sent) {
      assert.deepEqual(body.chat_template_kwargs, { enable_thinking: true, reasoning_effort: "low" });
      assert.deepEqual(body.response_format.json_schema.schema, { type: "object" });
      assert.equal(body.seed, 7);
      assert.ok(!("top_k" in body) && !("tools" in body));
    }
    const device = await another(browser, url);
    await device.page.goto(url);
    await device.page.getByRole("button", { name: "Parameters" }).click();
    const theirs = device.page.getByRole("complementary", { name: "Parameters" }).getByLabel("Preset");
    await theirs.selectOption("careful");
    await panel.getByRole("button", { name: "Delete the preset" }).click();
    await theirs.getByText("careful").waitFor({ state: "detached" });
    assert.deepEqual(device.wrong, []);
    await panel.getByRole("button", { name: "Close" }).click();
    await field(page).fill("/su");
    await page.getByRole("option", { name: "/summarize" }).waitFor();
    await accessible(page, "commands");
    await page.keyboard.press("Tab");
    assert.equal(await field(page).inputValue(), "/summarize ");
    await field(page).pressSequentially("/j");
    await page.keyboard.press("Enter");
    assert.equal(await field(page).inputValue(), "/summarize /json ");
    await field(page).fill("a/su");
    assert.equal(await page.getByRole("option").count(), 0);
  },

  /** The context's gauge, and the summary in place of what was said. */
  async compact({ page }) {
    const sent = [];
    page.on("request", (request) => request.url().endsWith("/chat/completions") && sent.push(request.postDataJSON()));
    for (const text of ["Hello! What can you do?", "Thank you."]) {
      await say(page, text);
      await answered(page);
      await page.waitForFunction(() => !document.querySelector("[aria-label=Stop]"));
    }
    await page.getByRole("button", { name: /tokens of the context are in use/ }).click();
    await accessible(page, "context");
    await page.getByRole("button", { name: "Summarise what was said" }).click();
    await messages(page).last().getByRole("heading", { name: "Summary of what was said before" }).waitFor();
    const summary = (await stored(page)).at(-1);
    assert.equal(summary.role, "system");
    await say(page, "And now?");
    await answered(page);
    assert.equal(sent.at(-2).messages.length, 5); // two questions with their answers, and what is wanted
    const [first, ...rest] = sent.at(-1).messages;
    assert.equal(first.role, "system");
    assert.ok(first.content.includes(summary.content));
    assert.deepEqual(rest, [{ role: "user", content: "And now?" }]);
    await page.getByText("Thank you.").first().waitFor(); // it stays readable
  },

  /** Two models answer one question side by side, and one of them goes on. */
  async compare({ page }) {
    await page.getByRole("button", { name: "Models that answer too" }).click();
    await page.getByRole("checkbox").first().check();
    await page.keyboard.press("Escape");
    await field(page).fill("Who are you?");
    await page.getByRole("button", { name: "Send", exact: true }).click();
    const group = page.getByRole("group", { name: "Side by side" });
    await page.waitForFunction(() => document.querySelectorAll("[role=group] article").length === 2);
    await answered(page);
    await accessible(page, "side by side");
    const other = await group.getByRole("heading").nth(1).innerText();
    await group.getByRole("button", { name: "Go on with this answer" }).nth(1).click();
    await messages(page).last().getByText("2/2").waitFor();
    await page.getByRole("button", { name: `Choose a model: ${other}` }).waitFor();
    await page.getByRole("img", { name: "Answering" }).waitFor({ state: "detached" });
    const [, one, two] = await stored(page);
    assert.notEqual(one.model, two.model);
    assert.deepEqual([one.state ?? "done", two.state ?? "done"], ["done", "done"]);
    assert.equal(one.parent, two.parent);
    await messages(page).last().getByRole("button", { name: "Side by side" }).click();
    await group.waitFor();
  },

  /** A tool that writes is asked for: once, for a chat, always, or not; one that reads is not. */
  async tools({ page, url, told }) {
    const question = page.getByRole("group", { name: "May write_file run?" });
    const begin = async () => {
      await page.getByRole("button", { name: "Tools" }).click();
      for (const name of ["Write file", "Read file"]) await page.getByRole("checkbox", { name }).check();
      await page.keyboard.press("Escape");
      await field(page).fill("Write it down");
      await page.getByRole("button", { name: "Send", exact: true }).click();
    };
    await begin();
    await question.waitFor();
    await messages(page).last().getByText('"note.txt"').waitFor();
    await accessible(page, "question");
    await page.reload();
    await question.waitFor();
    await told("asked");
    await question.getByRole("button", { name: "In this chat" }).click();
    await page.getByText("All is written.").waitFor(); // what reads, and the second writing, were not asked for
    await told("written");
    const tree = await stored(page);
    assert.deepEqual(tree.map((each) => each.role), ["user", "assistant", "tool", "assistant", "tool", "assistant", "tool", "assistant"]);
    assert.equal(tree[2].tool_call_id, tree[1].tool_calls[0].id);
    assert.match(tree[4].content, /hi/);
    for (const word of ["No", "Always", ""]) {
      await page.goto(`${url}/#/chat`);
      await page.getByRole("heading", { name: "What can I do for you?" }).waitFor();
      await begin();
      if (word) await question.getByRole("button", { name: word, exact: true }).click();
      if (word === "No") {
        await page.waitForFunction(() => document.querySelectorAll("article").length === 6); // it asks for the next one
        await question.waitFor();
        assert.match((await stored(page))[2].content, /not allow/);
      } else {
        await page.getByText("All is written.").waitFor();
      }
    }
    await page.goto(`${url}/#/settings`);
    await page.getByRole("button", { name: "Ask again before write_file runs" }).click();
    await page.getByText("Tools that run without a question").waitFor({ state: "detached" });
  },

  /** A prompt of an MCP server becomes the question, and a resource an attached text; its tools are asked for. */
  async mcp({ page }) {
    const open = () => page.getByRole("button", { name: "Prompts and resources" }).click();
    await open();
    await page.getByRole("button", { name: "poem" }).click();
    await accessible(page, "offers");
    await page.getByLabel("topic").fill("zebras");
    await page.getByRole("button", { name: "Insert" }).click();
    await page.waitForFunction(() => document.querySelector("form textarea").value === "Write a poem about zebras.");
    await open();
    await page.getByRole("button", { name: "notes" }).click();
    await page.getByText("notes.txt").waitFor();
    await page.getByRole("button", { name: "Tools" }).click();
    await page.getByRole("checkbox", { name: /echo/i }).first().check();
    await page.keyboard.press("Escape");
    await page.getByRole("button", { name: "Send", exact: true }).click();
    const question = page.getByRole("group", { name: "May s_echo run?" });
    await question.getByRole("button", { name: "Once" }).click();
    await page.getByText("All is said.").waitFor();
    const [asked, , result] = await stored(page);
    assert.equal(asked.content, "Write a poem about zebras.");
    assert.equal(asked.attachments[0].name, "notes.txt");
    assert.match(result.content, /echo: hello/);
  },

  /** Load, unload, and a name that the hub does not have. */
  async models({ page, url }) {
    await page.goto(`${url}/#/models`);
    const card = messages(page).first();
    await card.getByRole("button", { name: "Load", exact: true }).click();
    await card.getByText("Loaded", { exact: true }).waitFor({ timeout: 30_000 });
    await card.getByRole("button", { name: "Unload" }).click();
    await card.getByText("Not loaded").waitFor();
    await card.getByRole("button", { name: "Chat" }).click();
    await field(page).waitFor();
  },
};

const [name, url] = process.argv.slice(2);
const insecure = process.argv.includes("--insecure");
if (name) {
  const { browser, page, wrong } = await open(url);
  const told = async (word) => {
    console.log(`>> ${word}`);
    await new Promise((resolve) => process.stdin.once("data", resolve));
  };
  try {
    page.setDefaultTimeout(20_000);
    await page.goto(url);
    if (insecure) assert.equal(await page.evaluate(() => isSecureContext), false);
    await scenarios[name]({ page, browser, url, told, wrong, seed: Number(process.env.SEED ?? 1) });
    assert.deepEqual(wrong, []);
    console.log(">> passed");
  } catch (error) {
    console.log(error);
    await page.screenshot({ path: process.env.PICTURE ?? "failed.png" }).catch(() => undefined);
    process.exitCode = 1;
  } finally {
    await browser.close();
    process.stdin.destroy();
  }
}
