// Downloads and disk: what comes, what is taken, and what a removal frees.
import assert from "node:assert/strict";
import { api, post } from "../browser.mjs";
import { accessible, appears, confirm, press, shows } from "../steps.mjs";
import { like, line, seconds, size, t } from "../words.mjs";

const BIG = "acme/big-GGUF:Q8_0";
const EIGHT = "acme/pair-GGUF:Q8_0";
const SIXTEEN = "acme/pair-GGUF:F16";
const any = size(/[kMGT]?B/);

/** Two models with the same contents go one after the other, and what each frees is said before. A third one comes. */
export async function disk({ page, url, told }) {
  const card = page.getByRole("article", { name: BIG });
  const list = page.getByRole("region", { name: t("Models"), exact: true });
  const act = (word, model) => page.getByRole("button", { name: `${t(word)}: ${model}` }).click();
  const begin = () => post(url, "/models", { model: BIG });

  await page.goto(`${url}/#/machine/disk`);
  await list.getByText(EIGHT, { exact: true }).waitFor();
  await shows(page, t("Hugging Face cache"), like("freeOf", { free: any, total: any }));
  await list.getByLabel(t("Sort by")).selectOption({ label: t("Last use") });
  await appears(list.getByText(t("no use is known")).first());
  await accessible(page, "disk");

  for (const model of [EIGHT, SIXTEEN]) {
    await told("before");
    const { frees } = (await api(page, "api/disk")).models.find((each) => each.model === model);
    assert.equal(frees > 1e6, model === SIXTEEN, "the last one frees what both had");
    await act("Delete", model);
    const question = page.getByRole("dialog");
    await question.getByText(like("diskAsk", { name: model, size: any })).waitFor();
    await press(question, "Delete");
    await list.getByText(model, { exact: true }).waitFor({ state: "detached" });
    await told("after");
  }

  await begin();
  const figures = [like("progress", { done: any, total: any }), like("diskSpeed", { size: any })];
  await appears(card.getByText(line(...figures, like("timeLeft", { time: seconds(/\d+/) }))));
  await accessible(page, "a download");
  await act("Pause", BIG);
  await card.getByText(t("paused")).waitFor();
  await act("Resume", BIG);
  await card.getByText(like("diskSpeed", { size: any })).waitFor();
  await act("Cancel", BIG);
  await card.getByText(t("unfinished")).waitFor();
  await act("Delete", BIG);
  await confirm(page, "Delete");
  await card.waitFor({ state: "detached" });
  await told("nothing");
  await told("fast");
  await begin();
  await list.getByText(BIG, { exact: true }).waitFor();
}
