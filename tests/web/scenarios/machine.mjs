// The views for the operator of the machine.
import assert from "node:assert/strict";
import { accessible } from "../browser.mjs";
import { t } from "../words.mjs";

/** A load is foretold, done, and then the next one names the model that has to go. */
export async function memory({ page, url }) {
  await page.goto(`${url}/#/machine/memory`);
  const choice = page.getByLabel(t("What would a load stop?"));
  await choice.selectOption("other");
  await page.getByText(t("No model has to go.")).waitFor();
  await page.getByText(t("Its time to load is not known yet.")).waitFor();
  await page.getByRole("button", { name: t("Load"), exact: true }).click();
  await page.getByText(t("It is in memory already.")).waitFor({ timeout: 30_000 });
  const ram = page.getByRole("region", { name: "ram" });
  await ram.getByRole("link", { name: "other", exact: true }).waitFor();
  const [next] = await choice
    .locator("option")
    .evaluateAll((all) => all.map((each) => each.value).filter((value) => value && value !== "other"));
  await choice.selectOption(next);
  await page.getByText(t("It would stop other.")).waitFor();
  const sizes = await ram.locator("span[style]").evaluateAll((all) => all.map((each) => each.offsetWidth));
  assert.ok(sizes.length >= 2 && sizes.every((size) => size >= 0), "what is taken and what is free");
  await accessible(page, "memory");
}

/** The timeline says why a model went, follows what happens, and shows one kind or one model alone. */
export async function why({ page, url }) {
  const load = (model) =>
    page.evaluate(
      (model) =>
        fetch("/models/load", {
          method: "POST",
          headers: { "Content-Type": "application/json" },
          body: JSON.stringify({ model, wait: true }),
        }),
      model,
    );
  await page.goto(`${url}/#/machine/why`);
  await page.getByText(t("Nothing of this kind has happened.")).waitFor();
  await load("small");
  await load("other");
  const entries = page.getByRole("listitem").filter({ has: page.locator("time") });
  await entries.filter({ hasText: "small went for other: 1 model may run at once" }).waitFor();
  await entries.nth(4).waitFor();
  assert.equal(await entries.count(), 5);
  assert.match(await entries.first().textContent(), /other was ready after/, "the newest is at the top");
  await accessible(page, "why");
  await page.getByLabel(t("Which kind")).selectOption("evicted");
  await entries.filter({ hasText: "was ready after" }).first().waitFor({ state: "detached" });
  await entries.first().waitFor();
  assert.equal(await entries.count(), 1);
  await page.getByLabel(t("Which model")).selectOption("third");
  await page.getByText(t("Nothing of this kind has happened.")).waitFor();
  await page.getByLabel(t("Which model")).selectOption("other");
  await entries.filter({ hasText: "small went for other" }).waitFor();
}
