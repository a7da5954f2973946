// Files of other programs, several conversations at once, and voices.
import assert from "node:assert/strict";
import { answered, field, lastText, messages, say, stored } from "../browser.mjs";

const [file] = process.argv.slice(5);

/** A Word document goes into the question as its text; another ZIP under its name is refused in words. */
export async function documents({ page }) {
  const chooser = page.getByLabel("Attach files").first();
  await chooser.setInputFiles({ name: "other.docx", mimeType: "", buffer: Buffer.from("PK\x03\x04 and no more", "latin1") });
  await page.getByText("the Word document cannot be read", { exact: false }).waitFor();
  await chooser.setInputFiles(file);
  await page.getByText("paper.docx").waitFor();
  await say(page, "Read it");
  await answered(page);
  assert.match(await lastText(page), /# Zebra\\n\\nGrüße/); // this engine says what it was sent, as JSON
  const [{ attachments }] = await stored(page);
  assert.deepEqual([attachments[0].name, attachments[0].type], ["paper.docx", "text/plain"]);
}
