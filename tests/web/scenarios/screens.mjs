// Every screen as a whole: looks, languages, addresses, and the key.
import assert from "node:assert/strict";
import { createServer, request } from "node:http";
import { another } from "../browser.mjs";
import { accessible, answered, begun, button, field, fits, messages, press, saved, say } from "../steps.mjs";
import { inGerman, t } from "../words.mjs";

/** German and dark, chosen under Settings, hold on every screen and after a reload, and can be taken back. */
export async function german({ page, url }) {
  const shown = () =>
    page.evaluate(() => [document.documentElement.lang, document.documentElement.classList.contains("dark")]);
  const darkness = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
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
    await fits(page, screen);
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
      await fits(page, `${screen} ${dir}`);
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
    await begun(page);
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
  await press(page, "Continue");
  await say(page, "Code");
  await answered(page);
  await press(messages(page).last(), "Copy the code");
  await button(page, "Copied").waitFor();
  await field(page).click();
  await page.keyboard.press("Control+V");
  await page.waitForFunction(() => document.querySelector("form textarea").value.includes("def f"));
  for (const screen of ["models", "settings", "welcome"]) {
    await page.evaluate((screen) => (location.hash = `#/${screen}`), screen);
    await page.getByRole("heading", { level: 1 }).waitFor();
  }
  await page.evaluate(() => (location.hash = "#/settings"));
  const file = await saved(page, button(page, "Export all"));
  assert.match(file.suggestedFilename(), /\.jsonl$/);
}

/** A key is asked for once, and kept for this tab, unless the box is ticked. */
export async function key({ page, allow }) {
  allow(/ 401 /);
  assert.equal(await page.getByRole("checkbox").isChecked(), false);
  await page.getByText("/etc/llama-appliance/key.env").waitFor();
  await page.getByLabel(t("API key")).fill("wrong");
  await press(page, "Continue");
  await page.getByText(t("The server does not accept that key.")).waitFor();
  await accessible(page, "key");
  await page.getByLabel(t("API key")).fill("secret");
  await press(page, "Continue");
  await field(page).waitFor();
  assert.equal(await page.evaluate(() => Object.keys(localStorage).some((name) => /key/.test(name))), false);
  await page.reload();
  await say(page, "Hi");
  await answered(page);
}
