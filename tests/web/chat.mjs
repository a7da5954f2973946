// A conversation: what is asked there, and what has come.
import { is, until } from "./browser.mjs";
import { appears, button, gone, press } from "./steps.mjs";
import { t } from "./words.mjs";

export const field = (page) => page.getByRole("textbox", { name: t("Ask anything") });
export const messages = (page) => page.getByRole("article");
export const lastText = (page) => messages(page).last().locator(".prose-chat").last().innerText();
/** The ids of the messages that are in the page. */
export const ids = (page) => messages(page).evaluateAll((all) => all.map((each) => each.dataset.message));
/** These are the messages in the page, and no others. */
export const showsOnly = (page, wanted, why) => until(() => ids(page), is(wanted), why);

/** Write this, and send it by the keyboard. */
export async function enter(page, text) {
  await field(page).fill(text);
  await page.keyboard.press("Enter");
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

/** The last answer has its first words. */
export const begun = (page) => messages(page).last().locator(".prose-chat p").first().waitFor();
export const answered = (page) => page.getByText(t("The answer is complete.")).waitFor({ state: "attached" });
/** A question and its whole answer. */
export async function exchange(page, text) {
  await say(page, text);
  await answered(page);
  await gone(button(page, "Stop"));
}

export const attach = (page, ...files) => page.getByLabel(t("Attach files")).first().setInputFiles(files);

/** Allow the model these tools, in the menu of a chat. */
export async function useTools(page, ...names) {
  await press(page, "Tools");
  for (const name of names) await page.getByRole("checkbox", { name }).first().check();
  await page.keyboard.press("Escape");
}

/** End the answer under way. */
export async function stopAnswer(page) {
  await press(page, "Stop");
  await appears(messages(page).last().getByText(t("You stopped this answer.")));
}
