// Models: the first one, the list, downloads and the hub.
import assert from "node:assert/strict";
import { accessible, answered, field, messages, say, stored } from "../browser.mjs";

/** A model is fetched from the hub, paused, fetched on, and talked to. */
export async function pull({ page, url, told }) {
  await page.goto(`${url}/#/models`);
  await page.getByLabel("Get a model from Hugging Face").fill("acme/big-GGUF:Q8_0");
  await page.getByRole("button", { name: "Download", exact: true }).click();
  const card = messages(page).filter({ hasText: "acme/big" });
  await card.getByText("Downloading", { exact: true }).waitFor();
  await card.getByText(/^[\d.]+ MB of \d+ MB · \d+ sec left$/).waitFor();
  await told("came");
  await card.getByRole("button", { name: "Pause" }).click();
  await card.getByText("paused").waitFor();
  await told("paused");
  await card.getByRole("button", { name: "Resume" }).click();
  await told("fast");
  await card.getByRole("button", { name: "Chat" }).click();
  await say(page, "Hi");
  await answered(page);
  const [, answer] = await stored(page);
  assert.match(answer.model, /acme\/big/);
  await page.goto(`${url}/#/models`);
  await card.getByRole("button", { name: "Delete" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
  await card.waitFor({ state: "detached" });
}

/** The first model: three cards that say their size, another file than the recommended one is refused, one comes. */
export async function first({ page, told, allow }) {
  allow(/ 409 .*\/models$/, / 503 .*\/v1\/stream/); // the other file; the answer while its model loads
  await page.getByRole("heading", { name: "Welcome. First you need a model." }).waitFor();
  const card = page.getByRole("article", { name: "Fast" });
  await card.getByText(/Licence: Apache-2.0/).waitFor();
  await card.getByText(/needs .* of .* free/).waitFor();
  assert.ok((await page.getByRole("article").count()) <= 3);
  await accessible(page, "first run");
  await card.getByRole("button", { name: /Download [\d.]+ [GM]B/ }).click();
  await page.getByText("the hub has another file").waitFor();
  await page.getByLabel("Get a model from Hugging Face").fill("acme/big-GGUF:Q8_0");
  await page.getByRole("button", { name: "Download", exact: true }).click();
  await page.getByText("Downloading", { exact: true }).waitFor();
  await told("coming");
  await page.getByRole("heading", { name: "Welcome. Ask something." }).waitFor();
  await accessible(page, "first question");
  await page.getByLabel(/What do you want to ask/).fill("Hi");
  await page.getByRole("button", { name: "Send" }).click();
  await answered(page);
  const [, answer] = await stored(page);
  assert.match(answer.model, /acme\/big/);
}

/** Without a hub there is nothing to download, and the page says what to do. */
export async function offline({ page }) {
  await page.getByText("This server reaches no hub at the moment", { exact: false }).waitFor();
  await page.getByText("Use a file of your own", { exact: true }).waitFor();
  assert.equal(await page.getByRole("button", { name: /Download/ }).count(), 0);
  await accessible(page, "offline");
}

/** What fits, how long a model stays, and a search of the hub down to one quantisation. */
export async function hub({ page, url, allow }) {
  allow(/ 404 .*\/api\/fit/); // nothing can be foretold of it
  await page.goto(`${url}/#/models`);
  const card = messages(page).first();
  await card.getByRole("button", { name: "Load", exact: true }).click();
  await card.getByText("Loaded", { exact: true }).waitFor({ timeout: 30_000 });
  await card.getByLabel("Stays loaded").selectOption("-1");
  await card.getByText(/· stays loaded/).waitFor();
  await card.getByRole("button", { name: "What it takes" }).click();
  await card.getByText(/Fits|cannot be foretold/).first().waitFor();
  await page.getByRole("searchbox", { name: "Search Hugging Face for models" }).fill("big");
  await page.getByRole("button", { name: "Search", exact: true }).click();
  await page.getByRole("button", { name: /acme\/big-GGUF/ }).click();
  await page.getByText(/needs .* of .* free/).first().waitFor();
  await accessible(page, "hub");
  await page.getByRole("button", { name: /Download acme\/big-GGUF:Q8_0, \d/ }).click();
  await messages(page).filter({ hasText: "acme/big" }).getByRole("button", { name: "Chat" }).waitFor();
}

/** Load, unload, and a name that the hub does not have. */
export async function models({ page, url }) {
  await page.goto(`${url}/#/models`);
  const card = messages(page).first();
  await card.getByRole("button", { name: "Load", exact: true }).click();
  await card.getByText("Loaded", { exact: true }).waitFor({ timeout: 30_000 });
  await card.getByRole("button", { name: "Unload" }).click();
  await card.getByText("Not loaded").waitFor();
  await card.getByRole("button", { name: "Chat" }).click();
  await field(page).waitFor();
}
