// Every screen as a whole: looks, languages, addresses, the key, and speed.
import assert from "node:assert/strict";
import { createServer, request } from "node:http";
import { accessible, another, answered, api, countTasks, field, measuring, messages, say, until } from "../browser.mjs";
import { inGerman, t } from "../words.mjs";

/** Every screen in both themes and both languages, at phone width as well, and nothing scrolls sideways. */
export async function screens({ browser, url }) {
  for (const [colorScheme, locale, viewport] of [
    ["light", "en-GB", { width: 1280, height: 800 }],
    ["dark", "de-DE", { width: 320, height: 640 }],
  ]) {
    const { page, context, wrong } = await another(browser, url, { colorScheme, locale, viewport });
    for (const screen of [
      "chat",
      "models",
      "settings",
      "welcome",
      "machine/attention",
      "machine/memory",
      "machine/now",
      "machine/why",
      "machine/activity",
      "machine/logs",
    ]) {
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
}

/** German and dark, chosen under Settings, hold on every screen and after a reload, and can be taken back. */
export async function german({ page, url }) {
  const shown = () =>
    page.evaluate(() => [document.documentElement.lang, document.documentElement.classList.contains("dark")]);
  const darkness = () =>
    page.evaluate(() =>
      getComputedStyle(document.body)
        .backgroundColor.match(/[\d.]+/g)
        .slice(0, 3)
        .map(Number),
    );
  await page.goto(`${url}/#/settings`);
  await page.getByLabel(t("Language")).selectOption("de");
  await page.getByRole("heading", { level: 1, name: inGerman("Settings") }).waitFor();
  await page.getByLabel(inGerman("Appearance")).selectOption("dark");
  const dark = await darkness();
  await page.reload();
  for (const [screen, name] of [
    ["settings", "Settings"],
    ["models", "Models"],
    ["chat", "New chat"],
  ]) {
    await page.goto(`${url}/#/${screen}`);
    await page.getByRole("heading", { level: 1, name: inGerman(name) }).waitFor();
    assert.deepEqual(await shown(), ["de", true]);
    assert.deepEqual(await darkness(), dark);
    assert.ok((await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)) <= 0, screen);
    await accessible(page, `${screen} in German`);
  }
  await page.getByRole("textbox", { name: inGerman("Ask anything") }).fill("Hallo");
  await page.getByRole("button", { name: inGerman("Send"), exact: true }).click();
  await page.getByText(inGerman("The answer is complete.")).waitFor({ state: "attached" });
  await page.goto(`${url}/#/settings`);
  await page.getByLabel(inGerman("Language")).selectOption("en");
  await page.getByLabel("Appearance").selectOption("light");
  await page.getByRole("heading", { level: 1, name: "Settings" }).waitFor();
  assert.deepEqual(await shown(), ["en", false]);
  assert.notDeepEqual(await darkness(), dark);
}

/** Text from right to left, at 200 % and in a page that is turned round: nothing is cut off or scrolls sideways. */
export async function layouts({ browser, url }) {
  const { page, wrong } = await another(browser, url, { viewport: { width: 640, height: 400 }, deviceScaleFactor: 2 });
  await page.goto(url);
  await say(page, "مرحبا");
  await answered(page);
  const answer = messages(page).last().locator(".prose-chat");
  const direction = (place) => place.evaluate((element) => getComputedStyle(element).direction);
  assert.equal(await direction(answer.locator("p").first()), "rtl");
  assert.equal(await direction(answer.locator("pre")), "ltr");
  const edge = (await answer.boundingBox()).x + (await answer.boundingBox()).width;
  for (const part of ["blockquote", "ul", "table", "details", "div:has(> div > p)"]) {
    const place = answer.locator(part).last();
    assert.equal(await direction(place), "rtl", part);
    const { x, width } = await place.boundingBox();
    assert.ok(Math.abs(x + width - edge) < 2, `${part} ends at ${x + width} and not at ${edge}`);
  }
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
}

/** Below a path of a proxy that takes the path away. */
export async function prefix({ browser, url }) {
  const proxy = createServer((incoming, outgoing) => {
    if (!incoming.url.startsWith("/a/b/")) return outgoing.writeHead(404).end();
    const target = new URL(incoming.url.slice(4), url);
    const asked = request(
      target,
      { method: incoming.method, headers: { ...incoming.headers, host: target.host } },
      (answer) => {
        outgoing.writeHead(answer.statusCode, answer.headers);
        answer.pipe(outgoing);
      },
    );
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
    await page.getByText(t("Loaded"), { exact: true }).waitFor();
    for (const from of [place, `${place}ui/`]) {
      await page.goto(from);
      const { type, start, scope, icon } = await page.evaluate(async () => {
        const { href } = document.querySelector("link[rel=manifest]");
        const answer = await fetch(href);
        const { start_url, scope, icons } = await answer.json();
        const address = (path) => new URL(path, href).href;
        return {
          type: answer.headers.get("Content-Type"),
          start: address(start_url),
          scope: address(scope),
          icon: (await fetch(address(icons[0].src))).headers.get("Content-Type"),
        };
      });
      assert.match(type, /^application\/manifest\+json/);
      assert.match(icon, /^image\/svg\+xml/);
      assert.deepEqual([start, scope], [`${place}ui/`, place]);
    }
    assert.deepEqual(wrong, []);
    await context.close();
  } finally {
    proxy.closeAllConnections();
    proxy.close();
  }
}

/** Plain http on an address that is not this machine's own, in a network with nothing else in it. */
export async function lan({ page, allow }) {
  assert.equal(await page.evaluate(() => isSecureContext), false);
  allow(/ 401 /, /Cross-Origin-Opener-Policy/);
  await page.getByLabel(t("API key")).fill("secret");
  await page.getByRole("button", { name: t("Continue") }).click();
  await say(page, "Code");
  await answered(page);
  await messages(page)
    .last()
    .getByRole("button", { name: t("Copy the code") })
    .click();
  await page.getByText(t("Copied")).waitFor();
  await field(page).click();
  await page.keyboard.press("Control+V");
  await page.waitForFunction(() => document.querySelector("form textarea").value.includes("def f"));
  for (const screen of ["models", "settings", "welcome"]) {
    await page.evaluate((screen) => (location.hash = `#/${screen}`), screen);
    await page.getByRole("heading", { level: 1 }).waitFor();
  }
  await page.evaluate(() => (location.hash = "#/settings"));
  const [file] = await Promise.all([
    page.waitForEvent("download"),
    page.getByRole("button", { name: t("Export all") }).click(),
  ]);
  assert.match(file.suggestedFilename(), /\.jsonl$/);
}

/** A key is asked for once, and kept. */
export async function key({ page, allow }) {
  allow(/ 401 /);
  await page.getByLabel(t("API key")).fill("wrong");
  await page.getByRole("button", { name: t("Continue") }).click();
  await page.getByText(t("The server does not accept that key.")).waitFor();
  await accessible(page, "key");
  await page.getByLabel(t("API key")).fill("secret");
  await page.getByRole("button", { name: t("Continue") }).click();
  await field(page).waitFor();
  await page.reload();
  await say(page, "Hi");
  await answered(page);
}

/** Store a chat of so many messages, every second one an answer; its id. */
async function store(page, id, count, answer) {
  const lines = [
    { harness: "llama.app", type: "session", id, name: id, lastModified: 1, currNode: `${id}${count - 1}` },
  ];
  for (let at = 0; at < count; at++) {
    const message = {
      id: `${id}${at}`,
      convId: id,
      type: "text",
      role: at % 2 ? "assistant" : "user",
      timestamp: at + 1,
      content: at % 2 ? answer(at) : `Question ${at}?`,
      parent: at ? `${id}${at - 1}` : null,
      children: [],
    };
    lines.push({ type: "message", message });
  }
  const body = lines.map((line) => JSON.stringify(line)).join("\n");
  const { imported } = await page.evaluate(
    async (body) => (await fetch("/api/conversations/import", { method: "POST", body })).json(),
    body,
  );
  assert.equal(imported.length, 1);
  return imported[0];
}

const LONG = (at) =>
  `## Part ${at}\n\nA **bold** word, \`code\`, [a link](https://example.org) and $\\frac{a}{b_${at}}$.\n\n- one\n- two\n  - deeper\n\n` +
  `| a | b |\n|---|--:|\n${"| row | *9* |\n".repeat(6)}\n\`\`\`python\n${"def f(x: int) -> str:  # note\n    return str(x)\n".repeat(8)}\`\`\`\n\n`;

/** 100 answers of 32 kB open at their end in pieces, few of which are in the page; a hit stays where it is. */
export async function years({ page, url }) {
  const id = await store(
    page,
    "y",
    200,
    (at) => `Answer ${at}\n\n${LONG(at).repeat(Math.ceil(32_000 / LONG(at).length))}`,
  );
  const told = await countTasks(page);
  await page.goto(`${url}/#/chat/${id}`);
  const view = page.getByRole("region", { name: t("Messages") });
  const size = () => page.evaluate(() => document.querySelectorAll("*").length);
  const still = async () => {
    let before;
    await until(
      () => page.evaluate(() => document.body.innerHTML.length),
      (now) => now === before || (before = now) === undefined,
      "nothing is built any more",
    );
  };
  await messages(page).last().locator(".hljs-keyword").last().waitFor();
  await still();
  const end = () => view.evaluate((each) => each.scrollHeight - each.scrollTop - each.clientHeight);
  assert.ok((await end()) < 5);
  const tasks = await told();
  const opened = await size();
  console.log(`100 long answers: ${opened} elements; tasks over 50 ms: ${tasks}`);
  assert.ok(tasks === "none" || Math.max(...tasks.split(", ").map(Number)) < 400, tasks); // it took 25 s in one task
  await page.mouse.move(300, 300);
  for (let at = 0; at < 25; at++) {
    await page.mouse.wheel(0, -1500);
    await page.waitForTimeout(50);
  }
  await still();
  assert.ok((await size()) < 2 * opened + 2000, `${await size()} elements`);
  const top = () => view.evaluate((each) => each.scrollTop);
  const reading = await top();
  await page.waitForTimeout(300);
  assert.equal(await top(), reading);
  await accessible(page, "a long chat");
  const far = (await api(page, `/api/conversations/${id}`)).messages[101].id;
  await page.goto(`${url}/#/chat/${id}?at=${far}`);
  await page.waitForFunction((far) => document.activeElement.dataset.message === far, far);
  await still();
  await page.waitForFunction((far) => document.activeElement.dataset.message === far, far); // however much is built around it
  await page.keyboard.press("Home");
  await page
    .getByRole("button", { name: t("Show {count} earlier messages").replace("{count}", "71") })
    .waitFor({ state: "attached" });
}

/** 10,000 messages open at once and few of them are in the page; an answer at 200 tokens a second blocks nothing. */
export async function large({ page, url }) {
  const id = await store(
    page,
    "m",
    10_000,
    (at) => `Answer ${at} with **words**, \`code\` and a list:\n\n- one\n- two\n\n${"more text ".repeat(20)}`,
  );
  const place = `${url}/#/chat/${id}`;
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
  assert.ok(shown <= 60 && shown >= 5, `${shown} messages`);
  assert.ok(nodes <= 2000, `${nodes} nodes`);
  await page.evaluate(() => {
    window.tasks = [];
    new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((entry) => entry.duration))).observe({
      entryTypes: ["longtask"],
    });
  });
  await field(page).fill("Count");
  await page.getByRole("button", { name: t("Send"), exact: true }).click();
  await page.getByRole("button", { name: t("Stop") }).waitFor();
  await messages(page).last().getByText("Once upon a time").waitFor();
  await page.evaluate(() => (window.tasks.length = 0));
  await measuring(page);
  const tasks = await page.evaluate(() => window.tasks);
  await page.getByRole("button", { name: t("Stop") }).click();
  await page.getByText(t("You stopped this answer.")).waitFor();
  const rounded = (all) => all.map((each) => Math.round(each)).join(", ");
  console.log(
    `opens in ${rounded(times)} ms, with ${shown} messages and ${nodes} nodes; tasks over 50 ms: ${rounded(tasks) || "none"}`,
  );
}
