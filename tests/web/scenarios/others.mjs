// Conversations of other programs, and several at once.
import assert from "node:assert/strict";
import { another, api } from "../browser.mjs";
import { accessible, button, confirm, conversations, fits, press, saved } from "../steps.mjs";
import { t } from "../words.mjs";

const node = (parent, role, words) => ({
  parent,
  message: { author: { role }, content: { content_type: "text", parts: [words] }, recipient: "all", metadata: {} },
});

/** An export of ChatGPT comes with its branches. Some of the conversations are saved, some deleted and taken back. */
export async function several({ page, browser, url }) {
  const theirs = ["One", "Two", "Three"].map((title, at) => ({
    title,
    conversation_id: `00000000-0000-4000-8000-00000000000${at}`,
    current_node: "a2",
    update_time: 1_700_000_000 + at,
    mapping: {
      top: { parent: null, message: null },
      q: node("top", "user", "Why?"),
      a1: node("q", "assistant", "So."),
      t: node("q", "tool", "?"),
      a2: node("t", "assistant", `Because of ${title}.`),
    },
  }));
  await page.evaluate(() => (location.hash = "#/settings"));
  await page.getByLabel(t("Import")).setInputFiles({
    name: "conversations.json",
    mimeType: "application/json",
    buffer: Buffer.from(JSON.stringify(theirs)),
  });
  await page.getByText(t("3 imported, 0 were here already.")).waitFor();
  await press(page, "Choose some");
  const group = page.getByRole("group", { name: t("Choose some") });
  await group.getByLabel(t("All conversations")).check();
  await group.getByText(t("3 chosen")).waitFor();
  await group.getByLabel("Two").uncheck();
  await accessible(page, "chosen");
  const file = await saved(page, button(group, "Export"));
  assert.equal(file.suggestedFilename(), "conversations.zip");
  await press(group, "Delete");
  await page.getByText(t("2 conversations were deleted.")).waitFor();
  const titles = async () => (await api(page, "/api/conversations")).conversations.map((each) => each.title).sort();
  assert.deepEqual(await titles(), ["Two"]);
  await press(page, "Undo");
  await group.getByLabel("Three").waitFor();
  await group.getByLabel("One").waitFor();
  assert.deepEqual(await titles(), ["One", "Three", "Two"]);
  await (await conversations(page)).getByRole("link", { name: "Two" }).click();
  await page.getByText("Because of Two.").waitFor();
  await page.getByText("2/2").waitFor();
  const other = await another(browser, url, { viewport: { width: 320, height: 640 } });
  await other.page.goto(`${url}/#/settings`);
  await press(other.page, "Choose some");
  await other.page.getByLabel(t("All conversations")).check();
  await accessible(other.page, "chosen, 320 px");
  await fits(other.page);
  if (process.env.PICTURES) await other.page.screenshot({ path: `${process.env.PICTURES}/chosen-320.png` });
  assert.deepEqual(other.wrong, []);
  // The file has the two that were chosen, as another server sees that has none of them.
  await page.evaluate(() => (location.hash = "#/settings"));
  await press(page, "Delete all");
  await confirm(page, "Delete");
  await (await conversations(page)).getByText(t("Your conversations will be listed here.")).waitFor();
  await page.evaluate(() => (location.hash = "#/settings"));
  await page.getByLabel(t("Import")).setInputFiles(await file.path());
  await page.getByText(t("2 imported, 0 were here already.")).waitFor();
  assert.deepEqual(await titles(), ["One", "Three"]);
}
