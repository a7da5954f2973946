// Models: the first one, the list, downloads and the hub.
import assert from "node:assert/strict";
import { accessible, answered, ask, confirm, messages, say, stored } from "../browser.mjs";
import { like, line, seconds, size, t } from "../words.mjs";

/** A model is fetched from the hub, paused, fetched on, and talked to. */
export async function pull({ page, url, told }) {
  await page.goto(`${url}/#/models`);
  await page.getByLabel(t("Get a model from Hugging Face")).fill("acme/big-GGUF:Q8_0");
  await page.getByRole("button", { name: t("Download"), exact: true }).click();
  const card = messages(page).filter({ hasText: "acme/big" });
  await card.getByText(t("Downloading"), { exact: true }).waitFor();
  await card
    .getByText(
      line(like("progress", { done: size(/MB/), total: /\d+\sMB/ }), like("timeLeft", { time: seconds(/\d+/) })),
    )
    .waitFor();
  await told("came");
  await card.getByRole("button", { name: t("Pause") }).click();
  await card.getByText(t("paused")).waitFor();
  await told("paused");
  await card.getByRole("button", { name: t("Resume") }).click();
  await told("fast");
  await card.getByRole("button", { name: t("Chat") }).click();
  await say(page, "Hi");
  await answered(page);
  const [, answer] = await stored(page);
  assert.match(answer.model, /acme\/big/);
  await page.goto(`${url}/#/models`);
  await card.getByRole("button", { name: t("Delete") }).click();
  await confirm(page, t("Delete"));
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
  await card.getByText(like("licence", { name: "Apache-2.0" })).waitFor();
  await card.getByText(like("needs")).waitFor();
  assert.ok((await page.getByRole("article").count()) <= 3);
  await accessible(page, "first run");
  await card.getByRole("button", { name: like("getIt", { size: size() }) }).click();
  await page.getByText("the hub has another file").waitFor();
  await page.getByLabel(t("Get a model from Hugging Face")).fill("acme/big-GGUF:Q8_0");
  await page.getByRole("button", { name: t("Download"), exact: true }).click();
  await page.getByText(t("Downloading"), { exact: true }).waitFor();
  await told("coming");
  await page.getByRole("heading", { name: t("Welcome. Ask something.") }).waitFor();
  await accessible(page, "first question");
  await page.getByLabel(like("firstQuestion")).fill("Hi");
  await page.getByRole("button", { name: t("Send") }).click();
  await answered(page);
  const [, answer] = await stored(page);
  assert.match(answer.model, /acme\/big/);
}

/** A model is loaded, what it takes, how long it stays, unloaded; and a search of the hub down to one quantisation. */
export async function hub({ page, url, allow }) {
  allow(/ 404 .*\/api\/fit/); // nothing can be foretold of it
  await page.goto(`${url}/#/models`);
  const card = messages(page).first();
  await card.getByRole("button", { name: t("Load"), exact: true }).click();
  await card.getByText(t("Loaded"), { exact: true }).waitFor();
  await card.getByLabel(t("Stays loaded")).selectOption("-1");
  await card.getByText(`· ${t("stays loaded")}`).waitFor();
  await card.getByRole("button", { name: t("What it takes") }).click();
  await card
    .getByText(new RegExp(`${t("Fits")}|cannot be foretold`))
    .first()
    .waitFor();
  await card.getByRole("button", { name: t("Unload") }).click();
  await card.getByText(t("Not loaded")).waitFor();
  await page.getByRole("searchbox", { name: t("Search Hugging Face for models") }).fill("big");
  await page.getByRole("button", { name: t("Search"), exact: true }).click();
  await page.getByRole("button", { name: /acme\/big-GGUF/ }).click();
  await page.getByText(like("needs")).first().waitFor();
  await accessible(page, "hub");
  const byName = page.getByLabel(t("Get a model from Hugging Face"));
  await byName.fill("acme/half-typed");
  await page.goto(`${url}/#/settings`);
  await byName.waitFor({ state: "detached" });
  await page.goBack();
  await page.getByRole("searchbox", { name: t("Search Hugging Face for models") }).fill("big");
  await page.getByRole("button", { name: t("Search"), exact: true }).click();
  assert.equal(await byName.inputValue(), "acme/half-typed");
  await page.getByRole("button", { name: /acme\/big-GGUF/ }).click();
  await page
    .getByRole("button", {
      name: like("getSized", { name: "acme/big-GGUF:Q8_0", size: /\d.*/ }),
    })
    .click();
  await messages(page)
    .filter({ hasText: "acme/big" })
    .getByRole("button", { name: t("Chat") })
    .waitFor();
}

/** A card that no engine here can use: what could, how large it is, and the command; a copy of it is one click. */
export async function engines({ page, url }) {
  await page.goto(`${url}/#/models`);
  const offer = page.getByRole("complementary").filter({ hasText: "NVIDIA Fake 1" });
  await offer.getByText(line(like("cardIdle", { card: "NVIDIA Fake 1", size: size(/MB/) }))).waitFor();
  await offer.getByText("llama-appliance engines install vulkan", { exact: true }).waitFor();
  await offer
    .getByText(/glibc|cuda/)
    .first()
    .waitFor();
  await offer.getByRole("button", { name: t("Copy"), exact: true }).click();
  await accessible(page);
}
