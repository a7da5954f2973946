// Models: the first one, the list, downloads and the hub.
import assert from "node:assert/strict";
import { ask, stored } from "../browser.mjs";
import { answered, exchange, messages } from "../chat.mjs";
import { accessible, appears, button, confirm, fetchModel, press, searchHub, shows } from "../steps.mjs";
import { like, line, seconds, size, t } from "../words.mjs";

/** A model is fetched from the hub, paused, fetched on, and talked to. */
export async function pull({ page, url, told }) {
  await page.goto(`${url}/#/models`);
  await fetchModel(page, "acme/big-GGUF:Q8_0");
  const card = messages(page).filter({ hasText: "acme/big" });
  await card.getByText(t("Downloading"), { exact: true }).waitFor();
  const done = like("progress", { done: size(/MB/), total: /\d+\sMB/ });
  await appears(card.getByText(line(done, like("timeLeft", { time: seconds(/\d+/) }))));
  await told("came");
  await press(card, "Pause");
  await card.getByText(t("paused")).waitFor();
  await told("paused");
  await press(card, "Resume");
  await told("fast");
  await press(card, "Chat");
  await exchange(page, "Hi");
  const [, answer] = await stored(page);
  assert.match(answer.model, /acme\/big/);
  await page.goto(`${url}/#/models`);
  await press(card, "Delete");
  await confirm(page, "Delete");
  await card.waitFor({ state: "detached" });
}

/** A profile is chosen, and its names mean models; then none is. */
export async function profiles({ page, url, allow }) {
  allow(/ 404 .*\/v1\/chat\/completions$/); // the name without its profile
  const asks = async () => (await ask(url, "work-chat")).status;
  await page.goto(`${url}/#/models`);
  const choice = page.getByLabel(t("Profile"));
  assert.equal(await asks(), 404);
  await choice.selectOption("work");
  await page.getByText("What is used at work").waitFor();
  await accessible(page, "profiles");
  assert.equal(await asks(), 200);
  await page.reload();
  await page.getByText("What is used at work").waitFor();
  await choice.selectOption({ label: t("no profile") });
  await page.getByText("What is used at work").waitFor({ state: "detached" });
  assert.equal(await asks(), 404);
}

/** The first model: three cards that say their size, another file than the recommended one is refused, one comes. */
export async function first({ page, told, allow }) {
  allow(/ 409 .*\/models$/, / 503 .*\/v1\/stream/); // the other file; the answer while its model loads
  await page.getByRole("heading", { name: t("Welcome. First you need a model.") }).waitFor();
  const card = page.getByRole("article", { name: t("Fast") });
  await shows(card, like("licence", { name: "Apache-2.0" }), like("needs"));
  assert.ok((await page.getByRole("article").count()) <= 3);
  await accessible(page, "first run");
  await card.getByRole("button", { name: like("getIt", { size: size() }) }).click();
  await page.getByText("the hub has another file").waitFor();
  await fetchModel(page, "acme/big-GGUF:Q8_0");
  await page.getByText(t("Downloading"), { exact: true }).waitFor();
  await told("coming");
  await page.getByRole("heading", { name: t("Welcome. Ask something.") }).waitFor();
  await accessible(page, "first question");
  await page.getByLabel(like("firstQuestion")).fill("Hi");
  await press(page, "Send");
  await answered(page);
  const [, answer] = await stored(page);
  assert.match(answer.model, /acme\/big/);
}

/** A model is loaded, what it takes, how long it stays, unloaded; and a search of the hub down to one quantisation. */
export async function hub({ page, url, allow }) {
  allow(/ 404 .*\/api\/fit/); // nothing can be foretold of it
  await page.goto(`${url}/#/models`);
  const card = messages(page).first();
  await press(card, "Load");
  await card.getByText(t("Loaded"), { exact: true }).waitFor();
  await card.getByLabel(t("Stays loaded")).selectOption("-1");
  await card.getByText(`· ${t("stays loaded")}`).waitFor();
  await press(card, "What it takes");
  await appears(card.getByText(new RegExp(`${t("Fits")}|cannot be foretold`)).first());
  await press(card, "Unload");
  await card.getByText(t("Not loaded")).waitFor();
  await searchHub(page, "big");
  await page.getByRole("button", { name: /acme\/big-GGUF/ }).click();
  await appears(page.getByText(like("needs")).first());
  await accessible(page, "hub");
  const byName = page.getByLabel(t("Get a model from Hugging Face"));
  await byName.fill("acme/half-typed");
  await page.goto(`${url}/#/settings`);
  await byName.waitFor({ state: "detached" });
  await page.goBack();
  await searchHub(page, "big");
  assert.equal(await byName.inputValue(), "acme/half-typed");
  await page.getByRole("button", { name: /acme\/big-GGUF/ }).click();
  await page.getByRole("button", { name: like("getSized", { name: "acme/big-GGUF:Q8_0", size: /\d.*/ }) }).click();
  await button(messages(page).filter({ hasText: "acme/big" }), "Chat").waitFor();
}

/** A card that no engine here can use: what could, how large it is, and the command; a copy of it is one click. */
export async function engines({ page, url }) {
  await page.goto(`${url}/#/models`);
  const offer = page.getByRole("complementary").filter({ hasText: "NVIDIA Fake 1" });
  await offer.getByText(line(like("cardIdle", { card: "NVIDIA Fake 1", size: size(/MB/) }))).waitFor();
  await offer.getByText("llama-appliance engines install vulkan", { exact: true }).waitFor();
  await appears(offer.getByText(/glibc|cuda/).first());
  await press(offer, "Copy");
  await accessible(page);
}
