// Conversations of other programs, and several at once.
import assert from "node:assert/strict";
import { api } from "../browser.mjs";
import { conversations } from "../sides.mjs";
import { accessible, button, confirm, fits, press, saved, shows, textFile } from "../steps.mjs";
import { t } from "../words.mjs";

const node = (parent, role, words) => ({
  parent,
  message: { author: { role }, content: { content_type: "text", parts: [words] }, recipient: "all", metadata: {} },
});

/** An export of ChatGPT comes with its branches. Some of the conversations are saved, some deleted and taken back. */
export async function several({ page }) {
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
  const given = { ...textFile("conversations.json", JSON.stringify(theirs)), mimeType: "application/json" };
  await page.getByLabel(t("Import")).setInputFiles(given);
  await page.getByText(t("3 imported, 0 were here already.")).waitFor();
  await press(page, "Choose some");
  const group = page.getByRole("group", { name: t("Choose some") });
  await group.getByLabel(t("All conversations")).check();
  await group.getByText(t("3 chosen")).waitFor();
  await group.getByLabel("Two").uncheck();
  await accessible(page, "chosen");
  await fits(page);
  const file = await saved(page, button(group, "Export"), /^conversations\.zip$/);
  await press(group, "Delete");
  await page.getByText(t("2 conversations were deleted.")).waitFor();
  const titles = async () => (await api(page, "/api/conversations")).conversations.map((each) => each.title).sort();
  assert.deepEqual(await titles(), ["Two"]);
  await press(page, "Undo");
  await group.getByLabel("Three").waitFor();
  await group.getByLabel("One").waitFor();
  assert.deepEqual(await titles(), ["One", "Three", "Two"]);
  await (await conversations(page)).getByRole("link", { name: "Two" }).click();
  await shows(page, "Because of Two.", "2/2");
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
