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
