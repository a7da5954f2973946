// What lies beside a chat, and over it on a narrow page: the list of conversations, and the parameters.
import { appears, button, gone, press } from "./steps.mjs";
import { t } from "./words.mjs";

/** The list of conversations, which is a drawer on a narrow page: it is opened there, unless it is open. */
export async function conversations(page) {
  const list = page.getByRole("navigation", { name: t("Conversations") });
  const opener = button(page, "Show the conversations");
  await list.or(opener).waitFor();
  if (await opener.isVisible()) await opener.click();
  await list.waitFor();
  return list;
}

/** Search them. */
export const searchChats = async (page, words) =>
  (await conversations(page)).getByRole("searchbox", { name: t("Search conversations") }).fill(words);

/** What lies over a narrow page is closed there. */
export async function uncovered(page) {
  const over = page.getByRole("navigation").or(page.getByRole("complementary", { name: t("Parameters") }));
  if (page.viewportSize().width >= 768 || !(await over.isVisible())) return;
  await over.getByRole("button").first().focus();
  await page.keyboard.press("Escape");
  await gone(over);
}

/** The parameters are opened, unless they are open. */
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

/** What an empty chat says. */
export const greeting = (page) => page.getByRole("heading", { name: t("What can I do for you?") });

export async function emptyChat(page, url) {
  await page.goto(`${url}/#/chat`);
  await greeting(page).waitFor();
}

export async function newChat(page) {
  const links = (await conversations(page)).getByRole("link", { name: t("New chat"), exact: true });
  await links.first().click();
  await greeting(page).waitFor();
}

/** Keep the parameters that are set under a name. */
export async function keepPreset(panel, name) {
  const page = panel.page();
  await press(panel, "Save");
  await page.getByRole("dialog").getByRole("textbox").fill(name);
  await page.keyboard.press("Enter");
  await appears(button(panel, "Delete the preset"));
}
