// Every screen as a whole: looks, languages, addresses, the key, and speed.
import assert from "node:assert/strict";
import { createServer, request } from "node:http";
import { accessible, another, answered, field, measuring, messages, say } from "../browser.mjs";
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

/** 10,000 messages open at once and few of them are in the page; an answer at 200 tokens a second blocks nothing. */
export async function large({ page, url }) {
  const lines = [
    { harness: "llama.app", type: "session", id: "large", name: "Large", lastModified: 1, currNode: "m9999" },
  ];
  for (let at = 0; at < 10_000; at++) {
    const content =
      at % 2
        ? `Answer ${at} with **words**, \`code\` and a list:\n\n- one\n- two\n\n${"more text ".repeat(20)}`
        : `Question ${at}?`;
    const message = {
      id: `m${at}`,
      convId: "large",
      type: "text",
      role: at % 2 ? "assistant" : "user",
      timestamp: at + 1,
      content,
      parent: at ? `m${at - 1}` : null,
      children: [],
    };
    lines.push({ type: "message", message });
  }
  const body = lines.map((line) => JSON.stringify(line)).join("\n");
  const imported = await page.evaluate(
    async (body) => (await fetch("/api/conversations/import", { method: "POST", body })).json(),
    body,
  );
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
