// What the tests of the page do in the browser. Each is given the page and ways to talk to the test that started it:
// `told(word)` says how far it is and waits until the test has done its part.
import assert from "node:assert/strict";
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

  /** A model that sees nothing is not sent a picture; a text file is told. */
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
    await scenarios[name]({ page, browser, url, told });
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
