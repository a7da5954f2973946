// The view of the prompts' cache.
import assert from "node:assert/strict";
import { api, asked } from "../browser.mjs";
import { exchange } from "../chat.mjs";
import { accessible, appears, shows } from "../steps.mjs";
import { hundredth, like, number, size, t } from "../words.mjs";

/**
 * A context in a file. Real requests: the shares of each client, who sits where, and each miss with its reason, which
 * leads to its row.
 */
export async function reasons({ page, url }) {
  const ask = (conversation, client, cached, content) =>
    asked(url, "small", content, { prompt_cache_key: conversation, fake: { cached } }, { "User-Agent": client });
  await page.goto(`${url}/#/machine/cache`);
  await page.getByText(t("No request has ended in this time.")).waitFor();
  const files = page.getByRole("region", { name: t("Contexts in files") });
  await shows(files, new RegExp(`: 1, ${size(/[kK]B/).source}`), t(`Tokens that came back: ${number(1234)}`));
  await shows(files, like("cacheAbout", { time: /2[.,]1\smin/ }));
  for (const cached of [0, 9999]) await ask("first", "one/1.0", cached);
  await ask("second", "two/1.0", 0, "Hi ".repeat(40));
  await ask("first", "one/1.0", 0);
  await page.getByLabel(t("How far back")).selectOption("1h");
  const shares = page.getByRole("region", { name: t("Prompt cache"), exact: true });
  const one = shares.locator("div", { hasText: "one/1.0, 127" }).last();
  await appears(one.locator("xpath=..").getByText(hundredth(/33/)).first());
  const sessions = page.getByRole("region", { name: t("Conversations and their slots") });
  const cells = sessions.getByRole("row").filter({ hasText: "first" }).getByRole("cell");
  await appears(cells.nth(2).getByText("first", { exact: true }));
  assert.equal(await cells.nth(1).innerText(), "0", "its tokens are in the slot that was used last");
  assert.equal(await sessions.getByRole("row").count(), 3);
  const misses = page.getByRole("region", { name: t("Why prompts were read again") });
  const entries = misses.getByRole("listitem");
  await entries.nth(2).waitFor();
  for (const [place, word] of ["Others in between", "New conversation", "Newly loaded"].entries()) {
    await appears(entries.nth(place).getByText(t(word), { exact: true }));
  }
  await appears(entries.first().getByText("conversation 'second' came in between", { exact: false }));
  await accessible(page, "prompt cache");
  await page.getByLabel(t("A bar for each")).selectOption("model");
  await shares.getByText("small", { exact: true }).waitFor();
  await entries.first().getByRole("link").click();
  await page.getByRole("region", { name: `${t("Open request")} 4` }).waitFor();
  await page.goto(`${url}/#/machine/disk`);
  await page.getByText(t("Contexts in files")).waitFor();
  await page.goto(`${url}/#/chat`);
  await exchange(page, "Hi");
  const { sessions: latest } = await api(page, "api/cache");
  assert.equal(`#/chat/${latest[0].conversation}`, await page.evaluate(() => location.hash), "the page names its own");
}
