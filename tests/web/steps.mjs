// What a person does in the page, and sees there. Words are named in English, whatever the language of the run.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { isDeepStrictEqual } from "node:util";
import { until } from "./browser.mjs";
import { t } from "./words.mjs";

const require = createRequire(new URL("../../appliance/web/package.json", import.meta.url));
export const axe = require("axe-core").source;

export const button = (place, words) => place.getByRole("button", { name: t(words), exact: true });
export const press = (place, words) => button(place, words).click();
/** The page's own question is answered with this button. */
export const confirm = (page, words) => press(page.getByRole("dialog"), words);
export const appears = (place) => place.waitFor();
export const gone = (place) => place.waitFor({ state: "detached" });
export const field = (page) => page.getByRole("textbox", { name: t("Ask anything") });
export const messages = (page) => page.getByRole("article");
export const lastText = (page) => messages(page).last().locator(".prose-chat").last().innerText();
/** The ids of the messages that are in the page. */
export const ids = (page) => messages(page).evaluateAll((all) => all.map((each) => each.dataset.message));
/** These are the messages in the page, and no others. */
export const showsOnly = (page, wanted, why) => until(() => ids(page), isDeepStrictEqual.bind(null, wanted), why);

/** The list of conversations, which is a drawer on a narrow page: it is opened there, unless it is open. */
export async function conversations(page) {
  const list = page.getByRole("navigation", { name: t("Conversations") });
  const opener = button(page, "Show the conversations");
  await list.or(opener).waitFor();
  if (await opener.isVisible()) await opener.click();
  await list.waitFor();
  return list;
}

/** What lies over a narrow page is closed there: the list of conversations, or the parameters. */
export async function uncovered(page) {
  const over = page.getByRole("navigation").or(page.getByRole("complementary", { name: t("Parameters") }));
  if (page.viewportSize().width >= 768 || !(await over.isVisible())) return;
  await over.getByRole("button").first().focus();
  await page.keyboard.press("Escape");
  await gone(over);
}

/** The parameters, which lie over a narrow page; they are opened, unless they are open. */
export async function parameters(page) {
  const panel = page.getByRole("complementary", { name: t("Parameters") });
  if (!(await panel.isVisible())) await press(page, "Parameters");
  await panel.waitFor();
  return panel;
}

/** The page hears of the server's changes again. */
export async function connected(page) {
  await (await conversations(page)).getByRole("img", { name: t("Connected"), exact: true }).waitFor();
  await uncovered(page);
}

export async function newChat(page) {
  const links = (await conversations(page)).getByRole("link", { name: t("New chat"), exact: true });
  await links.first().click();
}

/** Ask, and wait until the question and its answer are there. Messages far from the view may leave the page meanwhile. */
export async function say(page, text) {
  const before = await ids(page);
  await field(page).fill(text);
  await press(page, "Send");
  await page.waitForFunction(
    (before) =>
      [...document.querySelectorAll("article")].filter((each) => !before.includes(each.dataset.message)).length >= 2,
    before,
  );
}

/** No answer is on its way. */
export const idle = (page) =>
  page.waitForFunction((stop) => !document.querySelector(`[aria-label="${stop}"]`), t("Stop"));
/** The last answer has its first words. */
export const begun = (page) => messages(page).last().locator(".prose-chat p").first().waitFor();
export const answered = (page) => page.getByText(t("The answer is complete.")).waitFor({ state: "attached" });

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

/** The file that a button gives. */
export async function saved(page, giver) {
  const [file] = await Promise.all([page.waitForEvent("download"), giver.click()]);
  return file;
}

/** A file of text, as it is chosen for a question. */
export const textFile = (name, words) => ({ name, mimeType: "text/plain", buffer: Buffer.from(words) });
export const chooser = (page) => page.getByLabel(t("Attach files")).first();

/** Allow the model these tools, in the menu of a chat. */
export async function useTools(page, ...names) {
  await press(page, "Tools");
  for (const name of names) await page.getByRole("checkbox", { name }).first().check();
  await page.keyboard.press("Escape");
}

/** Keep the parameters that are set under a name. */
export async function keepPreset(panel, name) {
  const page = panel.page();
  await press(panel, "Save");
  await page.getByRole("dialog").getByRole("textbox").fill(name);
  await page.keyboard.press("Enter");
  await appears(button(panel, "Delete the preset"));
}

/** End the answer under way. */
export async function stopAnswer(page) {
  await press(page, "Stop");
  await appears(messages(page).last().getByText(t("You stopped this answer.")));
}

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
