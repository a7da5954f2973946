// What a person does in any screen, and sees there. Words are named in English, whatever the language of the run.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { t } from "./words.mjs";

const require = createRequire(new URL("../../appliance/web/package.json", import.meta.url));
export const axe = require("axe-core").source;

export const button = (place, words) => place.getByRole("button", { name: t(words), exact: true });
export const press = (place, words) => button(place, words).click();
/** The page's own question is answered with this button. */
export const confirm = (page, words) => press(page.getByRole("dialog"), words);
export const appears = (place) => place.waitFor();
export const gone = (place) => place.waitFor({ state: "detached" });

/** Each of these stands there once. */
export async function shows(place, ...all) {
  for (const words of all) await place.getByText(words).waitFor();
}

/** Escape closes what is open. */
export async function escapes(page, open) {
  await page.keyboard.press("Escape");
  await gone(open);
}

/** The name of what has the focus; nothing, where only the page as a whole has it. */
export const focused = (page) =>
  page.evaluate(({ activeElement: it } = document) =>
    it === document.body ? "" : it.getAttribute("aria-label") || it.innerText,
  );

/** What is in the clipboard. Not every browser lets a page read it, but each one pastes. */
export async function pasted(page) {
  const box = await page.evaluateHandle(() => document.body.appendChild(document.createElement("textarea")));
  await box.focus();
  await page.keyboard.press("Control+V");
  const text = await box.inputValue();
  await box.evaluate((box) => box.remove());
  return text;
}

/** Nothing lies beside the page. */
export async function fits(page, where = "") {
  const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(over <= 0, `${where} is ${over} px too wide`);
}

/** The file that a button gives, under this name. */
export async function saved(page, giver, name) {
  const [file] = await Promise.all([page.waitForEvent("download"), giver.click()]);
  assert.match(file.suggestedFilename(), name);
  return file;
}

/** A file of text, as it is chosen in the page. */
export const textFile = (name, words) => ({ name, mimeType: "text/plain", buffer: Buffer.from(words) });

export async function searchHub(page, words) {
  await page.getByRole("searchbox", { name: t("Search Hugging Face for models") }).fill(words);
  await press(page, "Search");
}

/** Ask for a model by its name. */
export async function fetchModel(page, name) {
  await page.getByLabel(t("Get a model from Hugging Face")).fill(name);
  await press(page, "Download");
}

export async function accessible(page, where) {
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const bad = violations.filter((found) => ["serious", "critical"].includes(found.impact));
  assert.deepEqual(
    bad.map((found) => `${where}: ${found.id} at ${found.nodes.map((node) => node.target).join(", ")}`),
    [],
  );
}
