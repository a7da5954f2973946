// The browser for the tests of the page: the system's Chromium, or with BROWSER=firefox its Firefox, headless, with every
// request to another host noted.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { isDeepStrictEqual } from "node:util";
import { look } from "./words.mjs";

const require = createRequire(new URL("../../appliance/web/package.json", import.meta.url));
const { chromium, firefox } = require("playwright-core");

const more = process.env.BROWSER_ARGS?.split(" ") ?? [];
export const launch = () =>
  process.env.BROWSER === "firefox"
    ? firefox.launch({
        channel: "moz-firefox",
        executablePath: process.env.FIREFOX ?? "/usr/bin/firefox-esr",
        firefoxUserPrefs: { "layout.css.prefers-color-scheme.content-override": look.colorScheme === "dark" ? 0 : 1 }, // its driver sets none
      })
    : chromium.launch({
        executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
        args: ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", ...more],
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
    if (/^(error|warning):/.test(told) && !allowed.some((pattern) => pattern.test(told))) wrong.push(told);
  });
  page.on("dialog", (dialog) => {
    wrong.push(`dialog: ${dialog.message()}`); // the page has its own
    return dialog.dismiss();
  });
  page.on("request", (request) => {
    const { protocol, origin, href } = new URL(request.url());
    if (/^(https?|wss?):/.test(protocol) && origin !== new URL(url).origin) wrong.push(`foreign: ${href}`);
  });
  return { context, page, wrong, allow };
}

/** In ms, for anything that a scenario waits for, on a machine that is far too busy. It only bounds a failure. */
export const PATIENCE = 90_000;

/** For `until`. */
export const is = (wanted) => (found) => isDeepStrictEqual(found, wanted);

/** Looks again and again until what is found is so, and returns it. It fails with the last thing that was found. */
export async function until(look, isSo, what) {
  for (const end = Date.now() + PATIENCE; ; await new Promise((resolve) => setTimeout(resolve, 50))) {
    const found = await look();
    if (isSo(found)) return found;
    assert.ok(Date.now() < end, `not so within ${PATIENCE} ms: ${what}; ${JSON.stringify(found)}`);
  }
}

/** What the server of this page answers beside it. */
const beside = (page, path, asked) => page.request.fetch(new URL(path, page.url()).href, asked);
export const put = async (page, path, data) => (await beside(page, path, { method: "PUT", data })).status();
export const api = async (page, path) => (await beside(page, path)).json();
/** Keep a file as a message names it. */
export async function upload(page, name, type, data) {
  const kept = { method: "POST", data: Buffer.from(data), headers: { "Content-Type": type } };
  return { ...(await (await beside(page, "/api/conversations/attachments", kept)).json()), name };
}

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
  await page.getByRole("article").last().waitFor();
}

/** What the page asks models from now on. */
export function sentBy(page) {
  const sent = [];
  page.on("request", (request) => request.url().endsWith("/chat/completions") && sent.push(request.postDataJSON()));
  return sent;
}
/**
 * The next page counts its tasks of more than 50 ms. The result waits for a while, of which MEASURE chooses the seconds, has
 * them in milliseconds, and forgets them.
 */
export async function countTasks(page) {
  await page.goto("about:blank");
  await page.addInitScript(() => {
    if (window.tasks) return;
    window.tasks = [];
    const note = (list) => window.tasks.push(...list.getEntries().map((entry) => entry.duration));
    new PerformanceObserver(note).observe({ entryTypes: ["longtask"] });
  });
  return async () => {
    await page.waitForTimeout(1000 * Number(process.env.MEASURE ?? 1));
    return page.evaluate(() => window.tasks.splice(0).map(Math.round));
  };
}
/** What a task of fixed work takes in this page now, in milliseconds: 2,000 rows are built and laid out. */
export const fixedTask = (page) =>
  page.evaluate(() => {
    const began = performance.now();
    const list = document.createElement("ul");
    list.innerHTML = Array.from({ length: 2000 }, (_, at) => `<li>row <b>${at}</b></li>`).join("");
    document.body.append(list);
    list.getBoundingClientRect();
    list.remove();
    return Math.round(performance.now() - began);
  });
export const stored = async (page) => {
  const id = new URL(page.url()).hash.slice("#/chat/".length);
  return (await api(page, `/api/conversations/${id}`)).messages;
};
