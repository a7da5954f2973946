// The views for the operator of the machine.
import assert from "node:assert/strict";
import { accessible } from "../browser.mjs";
import { like, narrow, t } from "../words.mjs";

/** A damaged file is marked beside "Machine", named with what to do, and gone once it is away. */
export async function attention({ page, url, told }) {
  if (narrow) await page.getByRole("button", { name: t("Show the conversations") }).click();
  await page.getByRole("img", { name: like("attentionCount", { count: /\d+/ }) }).waitFor();
  await page.goto(`${url}/#/machine`);
  const finding = page.getByRole("article").filter({ hasText: "torn.gguf" });
  await finding.getByText(t("Warning"), { exact: true }).waitFor();
  await finding.getByText(like("sinceWhen", { when: /.+/ })).waitFor();
  await finding.getByText("llama-appliance ls", { exact: true }).waitFor();
  await finding.getByRole("button", { name: t("Copy"), exact: true }).click();
  await page.getByText(like("attentionCount", { count: /\d+/ })).waitFor();
  await accessible(page, "attention");
  await told("mended");
  await page.getByRole("button", { name: t("Look again") }).click();
  await finding.waitFor({ state: "detached" });
  const { ok } = await page.evaluate(async (line) => (await fetch(line)).json(), `${url}/api/doctor?line=1`);
  if (ok) await page.getByText(t("All is well. Nothing needs your attention.")).waitFor();
  await accessible(page, "nothing to do");
}

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
