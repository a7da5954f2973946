// The browser for the tests of the page: the system's Chromium, or with BROWSER=firefox its Firefox, headless, with every
// request to another host noted.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { look, t } from "./words.mjs";

const require = createRequire(new URL("../../appliance/web/package.json", import.meta.url));
const { chromium, firefox } = require("playwright-core");

export const axe = require("axe-core").source;

export const launch = () =>
  process.env.BROWSER === "firefox"
    ? firefox.launch({
        channel: "moz-firefox",
        executablePath: process.env.FIREFOX ?? "/usr/bin/firefox-esr",
        firefoxUserPrefs: { "layout.css.prefers-color-scheme.content-override": look.colorScheme === "dark" ? 0 : 1 }, // its driver sets none
      })
    : chromium.launch({
        executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
        args: [
          "--no-sandbox",
          "--disable-dev-shm-usage",
          "--disable-gpu",
          ...(process.env.BROWSER_ARGS?.split(" ") ?? []),
        ],
      });

/**
 * Another device: a context of its own. `wrong` gathers errors, violations of the policy, foreign requests, and what the
 * console says, but for what a scenario allows by name.
 */
export async function another(browser, url, options = {}) {
  const context = await browser.newContext({ ...look, ...options });
  const page = await context.newPage();
  const { colorScheme = look.colorScheme } = options;
  assert.equal(await page.evaluate(() => matchMedia("(prefers-color-scheme: dark)").matches), colorScheme === "dark");
  const wrong = [];
  const allowed = [];
  const allow = (...patterns) => {
    allowed.push(...patterns);
    const rest = wrong.filter((told) => !patterns.some((pattern) => pattern.test(told)));
    wrong.splice(0, wrong.length, ...rest); // it may have been said before the scenario began
  };
  page.on("pageerror", (error) => wrong.push(`error: ${error.message}`));
  page.on("console", (message) => {
    const told = `${message.type()}: ${message.text()} ${message.location().url}`;
    if (["error", "warning"].includes(message.type()) && !allowed.some((pattern) => pattern.test(told))) {
      wrong.push(told);
    }
  });
  page.on("dialog", (dialog) => {
    wrong.push(`dialog: ${dialog.message()}`); // the page has its own
    return dialog.dismiss();
  });
  page.on("request", (request) => {
    if (/^(https?|wss?):/.test(request.url()) && new URL(request.url()).origin !== new URL(url).origin) {
      wrong.push(`foreign: ${request.url()}`);
    }
  });
  return { context, page, wrong, allow };
}

/** In ms, for anything that a scenario waits for, on a machine that is far too busy. It only bounds a failure. */
export const PATIENCE = 90_000;

/** Looks again and again until what is found is so, and returns it. It fails with the last thing that was found. */
export async function until(look, isSo, what) {
  for (const end = Date.now() + PATIENCE; ; await new Promise((resolve) => setTimeout(resolve, 50))) {
    const found = await look();
    if (isSo(found)) return found;
    assert.ok(Date.now() < end, `not so within ${PATIENCE} ms: ${what}; ${JSON.stringify(found)}`);
  }
}

/** The list of conversations, which is a drawer on a narrow page: it is opened there, unless it is open. */
export async function conversations(page) {
  const list = page.getByRole("navigation", { name: t("Conversations") });
  const opener = page.getByRole("button", { name: t("Show the conversations") });
  await list.or(opener).waitFor();
  if (await opener.isVisible()) await opener.click();
  await list.waitFor();
  return list;
}

/** What lies over a narrow page is closed there: the list of conversations, or the parameters. */
export async function uncovered(page) {
  const over = page.getByRole("navigation").or(page.getByRole("complementary", { name: t("Parameters") }));
  if (page.viewportSize().width >= 768 || !(await over.isVisible())) return;
  await over.getByRole("button").first().focus();
  await page.keyboard.press("Escape");
  await over.waitFor({ state: "detached" });
}

/** The parameters, which lie over a narrow page; they are opened, unless they are open. */
export async function parameters(page) {
  const panel = page.getByRole("complementary", { name: t("Parameters") });
  if (!(await panel.isVisible())) await page.getByRole("button", { name: t("Parameters") }).click();
  await panel.waitFor();
  return panel;
}

/** The page hears of the server's changes again. */
export async function connected(page) {
  await (await conversations(page)).getByRole("img", { name: t("Connected"), exact: true }).waitFor();
  await uncovered(page);
}

export const newChat = async (page) =>
  (await conversations(page))
    .getByRole("link", { name: t("New chat"), exact: true })
    .first()
    .click();

export const field = (page) => page.getByRole("textbox", { name: t("Ask anything") });

/** Ask, and wait until the question and its answer are there. Messages far from the view may leave the page meanwhile. */
export async function say(page, text) {
  const before = await messages(page).evaluateAll((all) => all.map((each) => each.dataset.message));
  await field(page).fill(text);
  await page.getByRole("button", { name: t("Send"), exact: true }).click();
  await page.waitForFunction(
    (before) =>
      [...document.querySelectorAll("article")].filter((each) => !before.includes(each.dataset.message)).length >= 2,
    before,
  );
}

/** No answer is on its way. */
export const idle = (page) =>
  page.waitForFunction((stop) => !document.querySelector(`[aria-label="${stop}"]`), t("Stop"));
export const answered = (page) => page.getByText(t("The answer is complete.")).waitFor({ state: "attached" });

/** What is in the clipboard. Not every browser lets a page read it, but each one pastes. */
export async function pasted(page) {
  const box = await page.evaluateHandle(() => document.body.appendChild(document.createElement("textarea")));
  await box.focus();
  await page.keyboard.press("Control+V");
  const text = await box.inputValue();
  await box.evaluate((box) => box.remove());
  return text;
}

export const messages = (page) => page.getByRole("article");
export const lastText = (page) => messages(page).last().locator(".prose-chat").last().innerText();
export const put = (page, path, body) =>
  page.evaluate(
    async ([path, body]) =>
      (
        await fetch(path, {
          method: "PUT",
          body: JSON.stringify(body),
          headers: { "Content-Type": "application/json" },
        })
      ).status,
    [path, body],
  );
export const api = (page, path) => page.evaluate(async (path) => (await fetch(path)).json(), path);

/** Another client than the page asks with a body of JSON. */
export const post = (url, path, body = {}, headers = {}) =>
  fetch(`${url}${path}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers },
    body: JSON.stringify(body),
  });
/** One question of such a client; the answer's head. */
export const ask = (url, model, content = "Hi", more = {}, headers = {}) =>
  post(url, "/v1/chat/completions", { model, messages: [{ role: "user", content }], ...more }, headers);
/** The same, and its whole answer. */
export const asked = async (...words) => (await ask(...words)).text();

/** Store chats as another page's export has them. What is said goes from the root to the shown leaf, unless it says more. */
export async function store(url, ...chats) {
  const lines = chats.flatMap(({ id, name = id, said, leaf = said.length - 1, when }, at) => {
    const told = said.map((words, place) => ({
      id: `${id}${place}`,
      convId: id,
      type: "text",
      role: place % 2 ? "assistant" : "user",
      timestamp: at + place + 1,
      parent: place ? `${id}${place - 1}` : null,
      children: [],
      ...(typeof words === "string" ? { content: words } : words),
    }));
    const head = {
      harness: "llama.app",
      type: "session",
      id,
      name,
      lastModified: when ?? at + 1,
      currNode: told[leaf].id,
    };
    return [head, ...told.map((message) => ({ type: "message", message }))];
  });
  const body = lines.map((line) => JSON.stringify(line)).join("\n");
  const { imported } = await (await fetch(`${url}/api/conversations/import`, { method: "POST", body })).json();
  assert.equal(imported.length, chats.length);
  return imported;
}

/** A stored chat of the page's own is shown, with a message for each of these. */
export async function shown(page, url, id, said) {
  await put(page, `/api/conversations/${id}`, { title: id });
  for (const [at, message] of said.entries()) {
    const stored = { id: `${id}${at}`, role: "assistant", ...(at ? { parent: `${id}${at - 1}` } : {}), ...message };
    assert.equal(await put(page, `/api/conversations/${id}/messages/${stored.id}`, stored), 200);
  }
  await put(page, `/api/conversations/${id}`, { leaf: `${id}${said.length - 1}` });
  await page.goto(`${url}/#/chat/${id}`);
  await messages(page).last().waitFor();
}

/** Nothing lies beside the page. */
export async function fits(page, where = "") {
  const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(over <= 0, `${where} is ${over} px too wide`);
}

/** The file that a button gives. */
export async function saved(page, button) {
  const [file] = await Promise.all([page.waitForEvent("download"), button.click()]);
  return file;
}

/** The page's own question is answered with this button. */
export const confirm = (page, name) => page.getByRole("dialog").getByRole("button", { name, exact: true }).click();

/** What the page asks models from now on. */
export function sentBy(page) {
  const sent = [];
  page.on("request", (request) => request.url().endsWith("/chat/completions") && sent.push(request.postDataJSON()));
  return sent;
}
/** A while in which tasks are counted; MEASURE chooses its seconds. */
export const measuring = (page) => page.waitForTimeout(1000 * Number(process.env.MEASURE ?? 1));
/** The next page counts its tasks of more than 50 ms; the result has them in milliseconds, and forgets them. */
export async function countTasks(page) {
  await page.goto("about:blank");
  await page.addInitScript(() => {
    if (window.tasks) return;
    window.tasks = [];
    new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((entry) => entry.duration))).observe({
      entryTypes: ["longtask"],
    });
  });
  return () => page.evaluate(() => window.tasks.splice(0).map(Math.round));
}
export const stored = async (page) => {
  const id = new URL(page.url()).hash.slice("#/chat/".length);
  return (await api(page, `/api/conversations/${id}`)).messages;
};
export const press = (page, name) => messages(page).last().getByRole("button", { name, exact: true }).click();

export async function accessible(page, where) {
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const bad = violations.filter((found) => ["serious", "critical"].includes(found.impact));
  assert.deepEqual(
    bad.map((found) => `${where}: ${found.id} at ${found.nodes.map((node) => node.target).join(", ")}`),
    [],
  );
}
