// What a model writes, as the page shows it.
import assert from "node:assert/strict";
import { accessible, answered, messages, say } from "../browser.mjs";

/** Model output that wants to be more than text. */
export async function hostile({ page, browser }) {
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
}

/** HTML of a model is shown as it looks. Whatever a person does in it, nothing is asked of anybody. */
export async function preview({ page, url, told, wrong }) {
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
}
