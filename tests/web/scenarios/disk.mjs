// Downloads and disk: what comes, what is taken, and what a removal frees.
import assert from "node:assert/strict";
import { accessible, api, confirm, post } from "../browser.mjs";
import { like, line, seconds, size, t } from "../words.mjs";

const BIG = "acme/big-GGUF:Q8_0";
const EIGHT = "acme/pair-GGUF:Q8_0";
const SIXTEEN = "acme/pair-GGUF:F16";
const any = size(/[kMGT]?B/);

/** Two models with the same contents go one after the other, and what each frees is said before. A third one comes. */
export async function disk({ page, url, told }) {
  const card = page.getByRole("article", { name: BIG });
  const list = page.getByRole("region", { name: t("Models"), exact: true });
  const press = (word, model) => page.getByRole("button", { name: `${t(word)}: ${model}` }).click();
  const begin = () => post(url, "/models", { model: BIG });

  await page.goto(`${url}/#/machine/disk`);
  await list.getByText(EIGHT, { exact: true }).waitFor();
  await page.getByText(t("Hugging Face cache")).waitFor();
  await page.getByText(like("freeOf", { free: any, total: any })).waitFor();
  await list.getByLabel(t("Sort by")).selectOption({ label: t("Last use") });
  await list.getByText(t("no use is known")).first().waitFor();
  await accessible(page, "disk");

  for (const model of [EIGHT, SIXTEEN]) {
    await told("before");
    const { frees } = (await api(page, "api/disk")).models.find((each) => each.model === model);
    assert.equal(frees > 1e6, model === SIXTEEN, "the last one frees what both had");
    await press("Delete", model);
    const question = page.getByRole("dialog");
    await question.getByText(like("diskAsk", { name: model, size: any })).waitFor();
    await question.getByRole("button", { name: t("Delete"), exact: true }).click();
    await list.getByText(model, { exact: true }).waitFor({ state: "detached" });
    await told("after");
  }

  await begin();
  await card
    .getByText(
      line(
        like("progress", { done: any, total: any }),
        like("diskSpeed", { size: any }),
        like("timeLeft", { time: seconds(/\d+/) }),
      ),
    )
    .waitFor();
  await accessible(page, "a download");
  await press("Pause", BIG);
  await card.getByText(t("paused")).waitFor();
  await press("Resume", BIG);
  await card.getByText(like("diskSpeed", { size: any })).waitFor();
  await press("Cancel", BIG);
  await card.getByText(t("unfinished")).waitFor();
  await press("Delete", BIG);
  await confirm(page, t("Delete"));
  await card.waitFor({ state: "detached" });
  await told("nothing");
  await told("fast");
  await begin();
  await list.getByText(BIG, { exact: true }).waitFor();
}
