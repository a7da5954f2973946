// The view of speed over time.
import assert from "node:assert/strict";
import { asked, until } from "../browser.mjs";
import { accessible, appears } from "../steps.mjs";
import { like, number, size, t } from "../words.mjs";

/** The charts, and the curves that nothing covers: the scripted engine says the same speed of each answer. */
const CHARTS = {
  "Answer, tokens/s": ["other"],
  "Prompt, tokens/s": ["other"],
  "First token, p50": ["other", "small"],
  "First token, p95": ["other"],
};
const table = (page) => page.getByRole("region", { name: t("Speed"), exact: true });
const row = (page, name) => table(page).getByRole("row").filter({ hasText: name });

/** The dots of a chart that have the colour of the curve in this row. */
async function drawn(page, title, name) {
  const colour = await row(page, name)
    .locator("th span span")
    .evaluate((swatch) => {
      const dot = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d");
      dot.fillStyle = getComputedStyle(swatch).backgroundColor;
      dot.fillRect(0, 0, 1, 1);
      return [...dot.getImageData(0, 0, 1, 1).data];
    });
  const canvas = page.getByRole("figure", { name: title }).locator("canvas");
  return canvas.evaluate((canvas, colour) => {
    const { width, height } = canvas;
    const copy = Object.assign(document.createElement("canvas"), { width, height }).getContext("2d");
    copy.drawImage(canvas, 0, 0); // the chart's own is not for reading
    const { data } = copy.getImageData(0, 0, width, height);
    let count = 0;
    for (let at = 0; at < data.length; at += 4) {
      if (data[at + 3] === 255 && [0, 1, 2].every((part) => Math.abs(data[at + part] - colour[part]) < 4)) count++;
    }
    return count;
  }, colour);
}

/** Real requests have a curve for each model and each client, and the table says what the charts show. */
export async function curves({ page, url, allow }) {
  await page.goto(`${url}/#/machine/speed`);
  await page.getByText(t("No request has ended in this time.")).waitFor();
  for (const each of ["small one/1.0", "small two/1.0", "other two/1.0"]) {
    const [model, client] = each.split(" ");
    await asked(url, model, "Hi", { stream: true }, { "User-Agent": client });
  }
  await page.getByLabel(t("How far back")).selectOption("1h");
  for (const [name, count] of Object.entries({ small: 2, other: 1 })) {
    const cells = row(page, name).getByRole("cell");
    await appears(cells.first().getByText(number(count), { exact: true }));
    assert.match(await cells.nth(1).innerText(), /^[\d.,]+$/, "tokens a second");
    assert.match(await cells.nth(3).innerText(), /^[\d.,]+\s\S+$/, "the first token, in seconds");
  }
  for (const [title, names] of Object.entries(CHARTS)) {
    for (const name of names) {
      const dots = () => drawn(page, t(title), name);
      await until(dots, (count) => count > 4, `${title} of ${name} is drawn`);
    }
  }
  await accessible(page, "speed");
  const caption = table(page).locator("caption");
  const figure = page.getByRole("figure", { name: t("Answer, tokens/s") });
  await figure.locator(".u-over").hover();
  await caption.filter({ hasText: /\d/ }).waitFor();
  await page.getByRole("heading", { level: 1 }).hover();
  await caption.getByText(t("Last hour")).waitFor();
  await page.getByLabel(t("A curve for each")).selectOption("client");
  await row(page, "two/1.0, 127").getByText(number(2), { exact: true }).waitFor();
  await page.getByLabel(t("Which model")).selectOption("other");
  await row(page, "one/1.0").waitFor({ state: "detached" });
  await row(page, "two/1.0, 127").getByText(number(1), { exact: true }).waitFor();
  const machine = page.getByRole("region", { name: t("The machine in the last hour") });
  await appears(machine.locator("canvas").nth(1));
  await appears(machine.getByText(size()).first());
  await accessible(page, "the machine's charts");
  allow(/ 503 /);
  await page.route("**/api/performance*", (route) => route.fulfill({ status: 503, body: '{"enabled": false}' }));
  await page.reload();
  await page.getByText(like("machineOff")).waitFor();
  assert.equal(await page.getByRole("alert").count(), 0, "what is switched off has not failed");
}
