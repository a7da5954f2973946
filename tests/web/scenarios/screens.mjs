// Every screen as a whole: looks, languages, addresses, and the key.
import assert from "node:assert/strict";
import { createServer, request } from "node:http";
import { begun, exchange, field, messages } from "../chat.mjs";
import { accessible, button, fits, press, saved } from "../steps.mjs";
import { inGerman, t } from "../words.mjs";

/** German and dark, chosen under Settings, hold on every screen and after a reload, and can be taken back. */
export async function german({ page, url }) {
  const shown = () => page.evaluate(() => [document.documentElement.lang, document.documentElement.className]);
  const darkness = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await page.goto(`${url}/#/settings`);
  await page.getByLabel(t("Language")).selectOption("de");
  await page.getByRole("heading", { level: 1, name: inGerman("Settings") }).waitFor();
  await page.getByLabel(inGerman("Appearance")).selectOption("dark");
  const dark = await darkness();
  await page.reload();
  for (const [screen, name] of Object.entries({ settings: "Settings", models: "Models", chat: "New chat" })) {
    await page.goto(`${url}/#/${screen}`);
    await page.getByRole("heading", { level: 1, name: inGerman(name) }).waitFor();
    assert.deepEqual(await shown(), ["de", "scheme-dark"]);
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
  assert.deepEqual(await shown(), ["en", "scheme-light"]);
  assert.notDeepEqual(await darkness(), dark);
}

/** Text from right to left, at 200 % and in a page that is turned round: nothing is cut off or scrolls sideways. */
export async function layouts({ device, url }) {
  const page = await device(url, { viewport: { width: 640, height: 400 }, deviceScaleFactor: 2 });
  await exchange(page, "مرحبا");
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
}

/** Below a path of a proxy that takes the path away. */
export async function prefix({ device, url }) {
  const proxy = createServer((incoming, outgoing) => {
    if (!incoming.url.startsWith("/a/b/")) return outgoing.writeHead(404).end();
    const target = new URL(incoming.url.slice(4), url);
    const options = { method: incoming.method, headers: { ...incoming.headers, host: target.host } };
    const asked = request(target, options, (answer) =>
      answer.pipe(outgoing.writeHead(answer.statusCode, answer.headers)),
    );
    asked.on("error", () => outgoing.destroy()); // also its own end, when the browser leaves before an answer
    outgoing.on("close", () => asked.destroy());
    incoming.pipe(asked);
  });
  await new Promise((resolve) => proxy.listen(0, "127.0.0.1", resolve));
  try {
    const place = `http://127.0.0.1:${proxy.address().port}/a/b/`;
    const page = await device(place);
    await exchange(page, "Hi");
    assert.match(page.url(), /\/a\/b\/(ui\/)?#\/chat\/./);
    await page.reload();
    await begun(page);
    await page.goto(`${place}#/models`);
    await page.getByText(t("Loaded"), { exact: true }).waitFor();
    for (const from of [place, `${place}ui/`]) {
      await page.goto(from);
      const [types, ...places] = await page.evaluate(async () => {
        const { href } = document.querySelector("link[rel=manifest]");
        const manifest = await fetch(href);
        const { start_url, scope, icons } = await manifest.json();
        const [icon, start, within] = [icons[0].src, start_url, scope].map((path) => new URL(path, href).href);
        return [[manifest, await fetch(icon)].map((each) => each.headers.get("Content-Type")).join(), start, within];
      });
      assert.match(types, /^application\/manifest\+json.*,image\/svg\+xml/);
      assert.deepEqual(places, [`${place}ui/`, place]);
    }
    await page.context().close();
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
  await exchange(page, "Code");
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
  await saved(page, button(page, "Export all"), /\.jsonl$/);
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
  await exchange(page, "Hi");
}
