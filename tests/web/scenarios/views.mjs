// Views whose routes fail: each in turn, in every way, at each view.
import assert from "node:assert/strict";
import { put, sentBy, store } from "../browser.mjs";
import { field, messages } from "../chat.mjs";
import { accessible, appears, button, escapes, fits, gone, press, searchHub } from "../steps.mjs";
import { like, size, t } from "../words.mjs";

/** Every view with its routes, and what stands there when they answer. */
const VIEWS = [
  ["machine/attention", "api/doctor", like("lookedAt")],
  ["machine/now", "api/inflight", t("Nothing is under way.")],
  ["machine/why", "api/history", t("Nothing of this kind has happened.")],
  ["machine/memory", "api/memory", t("Main memory")],
  ["machine/activity", "api/metrics/activity", t("No requests yet.")],
  ["machine/speed", "api/speed", t("No request has ended in this time.")],
  ["machine/speed", "api/performance", t("Processor")],
  ["machine/logs", "logs/stream", t("Nothing yet.")],
  ["machine/cache", "api/cache", t("No request has ended in this time.")],
  ["machine/engines", "api/engines", t("Try all untried ones")],
  ["machine/disk", "api/disk", size()],
  ["machine/boxes", "api/pool", like("boxesNone")],
  ["machine/agents", "api/runs", t("No runs yet.")],
  ["machine/agents", "api/workers", t("Agents and plugins")],
  ["machine/agents", "api/agents", "/json"],
  ["machine/playground", "v1/models", t("Longest answer")],
  ["models", "v1/models", t("What it takes")],
  ["models", "api/engines", t("Models")],
  ["models", "api/profiles", t("Models")],
  ["models", "api/recommended", t("Fast")],
];
const WHY = "the table is locked; ask again";
const body = (value) => ({ contentType: "application/json", body: JSON.stringify(value) });
/** Each way to fail, with the reason that the page gives. */
const refused = [(route) => route.fulfill({ status: 503, ...body({ error: { message: WHY } }) }), () => WHY];
const FAULTS = [
  [(route) => route.abort("connectionreset"), () => t("The server cannot be reached.")],
  [(route) => route.fulfill({ status: 502, body: "<h1>Bad gateway</h1>" }), () => "502"],
  ...["<p>Log in", "null", "{}", "[]", '"text"', '{"data": 3}'].map((text) => [
    (route) => route.fulfill({ body: text }),
    () => like("lookOdd"),
  ]),
];
const AT_ONCE = 3; // of these for each route, by turns

export async function failing({ page, url, allow }) {
  allow(/ 50[23] /, / 401 /, /ERR_CONNECTION_RESET/);
  let fault;
  // Whether a view has said that it waits. After five seconds it says that no answer has come.
  await page.addInitScript((asking) => {
    new MutationObserver(() => {
      const told = [...document.querySelectorAll("main [role=status]")].map((each) => each.textContent.trim());
      window.asked ||= told.some((text) => new RegExp(asking).test(text));
    }).observe(document, { childList: true, subtree: true, characterData: true });
  }, like("asking").source);
  await page.reload();
  const main = page.locator("main");
  const trouble = main.getByRole("alert").filter({ has: page.getByRole("button") });
  const go = (hash) => page.evaluate((hash) => void (location.hash = hash), hash);
  for (const [turn, [view, path, content]] of VIEWS.entries()) {
    const where = `${view}, ${path}`;
    const shown = main.getByText(content, { exact: false }).first();
    const pattern = (asked) => asked.href.startsWith(`${url}/${path}`) && !asked.href.includes("line=1");
    const handler = (route) => (fault ? fault(route) : route.continue());
    await page.route(pattern, handler);
    /** The view as it is when somebody comes to it; the list of models is asked for by the page, and not by a view. */
    const enter = async (fails) => {
      await go("#/settings");
      await main.getByRole("heading", { name: t("Settings"), level: 1 }).waitFor();
      fault = fails;
      await page.evaluate(() => (window.asked = false));
      await go(`#/${view}`);
      if (path === "v1/models") await page.reload();
    };
    const recover = async () => {
      fault = undefined;
      const again = trouble.getByRole("button").first();
      await again.click({ timeout: 2000 }).catch(() => undefined); // the next look was first
      await trouble.first().waitFor({ state: "detached" });
      await shown.waitFor();
    };
    const isText = path === "logs/stream"; // whatever it answers is lines
    const place = (turn * AT_ONCE) % FAULTS.length;
    const others = isText ? FAULTS.slice(0, 2) : [...FAULTS, ...FAULTS].slice(place, place + AT_ONCE);
    for (const [fails, why] of [refused, ...others]) {
      await enter(fails);
      await appears(trouble.getByText(like("lookFailed")).first());
      await appears(trouble.getByText(why()).first());
      if (fails === refused[0]) await accessible(page, `${where}: failed`);
      await recover();
    }
    fault = refused[0];
    await page.evaluate(() => document.dispatchEvent(new Event("visibilitychange"))); // a look is made at once
    if (path !== "v1/models" && !isText) {
      await appears(trouble.getByText(like("lookOld")).first());
      await appears(trouble.getByText(WHY).first());
      assert.ok(await shown.isVisible(), `${where}: the last answer is kept`);
      if (!turn) await accessible(page, `${where}: old`); // the same words above what each view has of its own
      await recover();
    }
    let answer;
    const awaited = new Promise((resolve) => (answer = resolve));
    await enter((route) => awaited.then(() => route.continue()));
    await page.waitForFunction(() => window.asked); // it may be over before a busy machine looks
    answer();
    await shown.waitFor();
    await enter((route) => route.fulfill({ status: 401, ...body({ error: { message: "no" } }) }));
    await page.getByLabel(t("API key")).fill("a key");
    fault = undefined;
    await press(page, "Continue");
    await shown.waitFor();
    await page.unroute(pattern, handler);
  }
}

/** What comes late is dropped: the files of another repository, and the figures of another choice, which are named so. */
export async function late({ page, url }) {
  const held = [];
  const holds = (pattern, answer) =>
    page.route(pattern, (route) => new Promise((go) => held.push(go)).then(() => route.fulfill(answer(route))));
  const release = () => held.splice(0).forEach((go) => go());
  const fit = { verdict: "fits", needed: 1e9, free: 2e9, speed: "fast" };
  const hits = body({ data: ["a/one", "a/two"].map((id) => ({ id, downloads: 1, gated: false })) });
  await page.route("**/api/hub/search?*", (route) => route.fulfill(hits));
  await page.goto(`${url}/#/models`);
  await searchHub(page, "a");
  await holds("**/api/hub/choices?*", (route) => {
    const repo = new URL(route.request().url()).searchParams.get("repo");
    return body({ data: [{ model: `${repo}:Q8_0`, tag: "Q8_0", size: 1e9, vision: false, fit }] });
  });
  await page.getByRole("button", { name: /a\/one/ }).click();
  await page.getByRole("button", { name: /a\/two/ }).click();
  const first = held.shift();
  await page.waitForFunction(() => true);
  release();
  const gets = (name) => page.getByRole("button", { name: like("getSized", { name, size: /.+/ }) });
  await gets("a/two:Q8_0").waitFor();
  first();
  await page.waitForTimeout(300);
  assert.equal(await gets("a/one:Q8_0").count(), 0);
  await page.goto(`${url}/#/machine/speed`);
  await page.getByText(t("No request has ended in this time.")).waitFor();
  const speed = body({ curves: [], marks: [], start: "2026-01-01T00:00:00Z", seconds: 1, points: 0 });
  await holds("**/api/speed?by=client*", () => speed);
  await page.getByLabel(t("A curve for each")).selectOption("client");
  const older = page.getByText(t("What stands here is of your choice before."));
  await older.waitFor();
  release();
  await gone(older);
}

/**
 * A question that is sent before the page knows the models, or what new chats begin with, waits for that, and goes. One
 * that is written before its conversation has come can be sent when it comes, however it is opened.
 */
export async function early({ page, url }) {
  let answer;
  await put(page, "/api/conversations/presets", { name: "*", settings: { system: "Be brief." } });
  const sent = sentBy(page);
  for (const late of ["**/v1/models", "**/api/conversations"]) {
    const come = new Promise((resolve) => (answer = resolve));
    await page.route(late, (route) => come.then(() => route.continue()));
    await page.goto("about:blank");
    await page.goto(`${url}/#/chat?q=Ho`);
    await field(page).press("Enter");
    await page.getByText(t("Next:"), { exact: true }).waitFor();
    answer();
    await messages(page).nth(1).waitFor();
    assert.deepEqual(sent.pop().messages[0], { role: "system", content: "Be brief." });
    await page.unroute(late);
  }
  const awaited = new Promise((resolve) => (answer = resolve));
  await page.route("**/v1/models", (route) => awaited.then(() => route.continue()));
  await page.goto("about:blank");
  await page.goto(`${url}/#/chat?q=Hi`);
  await page.getByRole("button", { name: t("Asking for the models …"), exact: false }).waitFor();
  assert.equal(await page.getByText(t("No model yet")).count(), 0);
  await field(page).press("Enter");
  await page.getByText(t("Next:"), { exact: true }).waitFor();
  await accessible(page, "a question that waits");
  answer();
  await messages(page).nth(1).waitFor();
  const [one, other] = await store(url, { id: "one", said: ["Hi", "Yes"] }, { id: "other", said: ["Ho", "No"] });
  const ways = [
    () => page.goto(`${url}/#/chat/${one}`),
    () => page.reload(),
    () => page.evaluate((other) => void (location.hash = `#/chat/${other}`), other),
  ];
  const conversation = /conversations\/[a-z0-9]+\?since=0$/;
  for (const open of ways) {
    const come = new Promise((resolve) => (answer = resolve));
    await page.route(conversation, (route) => come.then(() => route.continue()));
    const asked = page.waitForRequest(conversation);
    await open();
    await asked;
    await field(page).fill("Written early");
    assert.ok(await button(page, "Send").isDisabled());
    answer();
    await press(page, "Send");
    await appears(messages(page).filter({ hasText: "Written early" }).first());
    await gone(button(page, "Stop"));
    await page.unroute(conversation);
  }
}

/** Every view is in a list that shows all of them, by Ctrl-K, and has a title of its own. Nonsense is named as such. */
export async function found({ page, url, allow }) {
  allow(/ 403 .*\/api\/config/);
  const nav = page.getByRole("navigation", { name: t("Machine"), exact: true });
  const fold = button(page, "All views");
  await page.goto(`${url}/#/machine`);
  await nav.or(fold).waitFor();
  const list = async () => (await fold.isVisible()) && (await fold.click());
  await list();
  const names = await nav.getByRole("link").allInnerTexts();
  assert.equal(names.length, 14);
  await accessible(page, "the list of views");
  for (const name of names) {
    if (!(await nav.isVisible())) await list();
    const link = nav.getByRole("link", { name, exact: true });
    assert.ok(await link.evaluate((node) => node.getBoundingClientRect().right <= innerWidth), `${name} is in sight`);
    await link.click();
    await page.getByRole("heading", { level: 1, name, exact: true }).waitFor();
    assert.equal(await page.title(), `${name} · ${t("Machine")} · Llama Appliance`);
    await fits(page, name);
  }
  await page.getByText(/start the server with --admin/).waitFor(); // the last view shows nothing of the file without it
  assert.equal(await page.locator("textarea").count(), 0);
  for (const word of ["logs", "protokoll", "console", t("Logs").toLowerCase()]) {
    await page.goto(`${url}/#/settings`);
    await page.getByRole("heading", { level: 1, name: t("Settings") }).waitFor();
    await page.keyboard.press("Control+k");
    await page.getByRole("dialog").getByRole("combobox").fill(word);
    await page.getByRole("option", { name: `${t("Machine")}: ${t("Logs")}`, exact: true }).click();
    await page.getByRole("heading", { level: 1, name: t("Logs"), exact: true }).waitFor();
  }
  for (const place of ["#/nonsense", "#/machine/nonsense", "#/machines", "#/chat/a/b"]) {
    await page.goto(`${url}/#/settings`);
    await page.getByText("Llama Appliance 0.", { exact: false }).waitFor();
    await page.evaluate((place) => void (location.hash = place), place);
    await page.getByRole("heading", { level: 1, name: t("There is no such page.") }).waitFor();
    await page.getByText(place, { exact: true }).waitFor();
    assert.equal(await page.title(), `${t("There is no such page.")} · Llama Appliance`);
    await accessible(page, place);
    await press(page, "Back");
    await page.getByRole("heading", { level: 1, name: t("Settings") }).waitFor();
  }
  assert.equal(await page.title(), `${t("Settings")} · Llama Appliance`);
  const keys = page.getByRole("dialog", { name: t("Keys") });
  await page.locator("body").press("?");
  await keys.getByText(t("Show or hide the conversations")).waitFor();
  await accessible(page, "the list of keys");
  await escapes(page, keys);
  await press(page, "Keys");
  await keys.waitFor();
  await page.keyboard.press("Escape");
  await page.goto(`${url}/#/chat`);
  await field(page).press("?");
  assert.equal(await field(page).inputValue(), "?", "a question mark in a text is one");
  assert.equal(await keys.count(), 0);
}
