// What goes to the model beside the words of a question.
import assert from "node:assert/strict";
import { api, sentBy, stored } from "../browser.mjs";
import { attach, enter, exchange, field, lastText, messages, useTools } from "../chat.mjs";
import { emptyChat, keepPreset, parameters, uncovered } from "../sides.mjs";
import { accessible, appears, button, escapes, focused, press, textFile } from "../steps.mjs";
import { like, t } from "../words.mjs";

const WORDS = "BT /F 12 Tf 50 700 Td (the password is giraffe) Tj ET";
const PDF = `%PDF-1.4
1 0 obj << /Type /Catalog /Pages 2 0 R >> endobj
2 0 obj << /Type /Pages /Kids [3 0 R] /Count 1 >> endobj
3 0 obj << /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents 4 0 R /Resources << /Font << /F 5 0 R >> >> >> endobj
4 0 obj << /Length ${WORDS.length} >> stream
${WORDS}
endstream endobj
5 0 obj << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> endobj
trailer << /Root 1 0 R >>
startxref
0
%%EOF
`;

/** A model that sees nothing is not sent a picture; the words of text, PDF and Word are told. One that sees and hears is sent both. */
export async function files({ page, allow, more: [paper] }) {
  allow(/ 400 .*\/text$/);
  const pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg==";
  const dot = { name: "dot.png", mimeType: "image/png", buffer: Buffer.from(pixel, "base64") };
  await attach(page, dot);
  await page.getByText(like("noImages")).waitFor();
  assert.ok(await button(page, "Send").isDisabled());
  await press(page, "Remove dot.png");
  await attach(page, textFile("note.txt", "the magic word is zebra"));
  await page.getByText("note.txt").waitFor();
  await exchange(page, "Read it");
  assert.match(await lastText(page), /zebra/); // this engine says what it was sent
  await attach(page, { ...textFile("broken.pdf", "%PDF-1.4 and no more"), mimeType: "application/pdf" });
  await page.getByText("the file cannot be read", { exact: false }).waitFor();
  await attach(page, { ...textFile("paper.pdf", PDF), mimeType: "application/pdf" });
  await page.getByText("paper.pdf").waitFor();
  await exchange(page, "Read that");
  assert.match(await lastText(page), /the password is giraffe/);
  await attach(page, paper);
  await page.getByText("paper.docx").waitFor();
  await exchange(page, "And this");
  assert.match(await lastText(page), /# Zebra\\n\\nGrüße/);
  const panel = await parameters(page);
  await panel.getByLabel(t("Temperature")).fill("0.3");
  await panel.getByLabel(t("System prompt")).fill("Be brief.");
  await escapes(page, panel); // which takes nothing back
  await exchange(page, "Again");
  const sent = await lastText(page);
  assert.match(sent, /"temperature":\s?0.3/);
  assert.match(sent, /Be brief/);
  assert.doesNotMatch(sent, /top_p/);
  await page.getByRole("button", { name: t("Choose a model") }).click();
  await page.getByRole("button", { name: "watcher" }).click();
  const beep = Buffer.from("RIFF\x24\0\0\0WAVEfmt ", "latin1");
  await attach(page, dot, { name: "beep.wav", mimeType: "audio/wav", buffer: beep });
  await page.getByText("beep.wav").waitFor();
  await exchange(page, "Look and listen");
  const { messages: told } = JSON.parse((await stored(page)).at(-1).content);
  assert.deepEqual(told.at(-1).content, [
    { type: "text", text: "Look and listen" },
    { type: "image_url", image_url: { url: `data:image/png;base64,${pixel}` } },
    { type: "input_audio", input_audio: { data: beep.toString("base64"), format: "wav" } },
  ]);
}

/** What a conversation is asked with beside its words, under a name for the next one; and commands by their first letters. */
export async function settings({ page, device, url }) {
  const sent = sentBy(page);
  const panel = await parameters(page);
  await panel.getByLabel(t("Thinking")).selectOption("low");
  await panel.getByLabel(t("Seed")).fill("7");
  await accessible(page, "parameters");
  await panel.getByLabel(t("JSON schema of answers")).fill('{"type": "object"}');
  await panel.getByRole("heading").click();
  await keepPreset(panel, "careful");
  await uncovered(page);
  await exchange(page, "Hi");
  await page.goto(`${url}/#/chat`);
  await page.reload();
  await (await parameters(page)).getByLabel(t("Preset")).selectOption("careful");
  await uncovered(page);
  await exchange(page, "Hello");
  assert.equal(sent.length, 2);
  for (const body of sent) {
    assert.deepEqual(body.chat_template_kwargs, { enable_thinking: true, reasoning_effort: "low" });
    assert.deepEqual(body.response_format.json_schema.schema, { type: "object" });
    assert.equal(body.seed, 7);
    assert.ok(!("top_k" in body) && !("tools" in body));
  }
  await page.goto(`${url}/#/settings`);
  const kept = () => page.waitForResponse((answer) => answer.url().endsWith("/presets"));
  // The page hears of the first change after the second.
  const late = (route) => new Promise((resolve) => setTimeout(resolve, 500)).then(() => route.continue());
  await page.route("**/api/conversations?since=*", late);
  await page.getByLabel(t("System prompt")).fill("Be brief.");
  await Promise.all([kept(), page.getByRole("heading", { level: 1 }).click()]);
  await Promise.all([kept(), page.getByLabel(t("Parameters")).selectOption("careful")]);
  await page.unroute("**/api/conversations?since=*");
  await accessible(page, "what new chats begin with");
  const other = await device();
  const theirs = sentBy(other);
  await exchange(other, "Hi");
  assert.deepEqual([theirs[0].messages[0], theirs[0].seed], [{ role: "system", content: "Be brief." }, 7]);
  await page.goto(`${url}/#/chat`);
  const preset = (await parameters(other)).getByLabel(t("Preset"));
  await preset.selectOption("careful");
  await (await parameters(page)).getByRole("combobox", { name: t("Preset") }).selectOption("careful");
  await press(panel, "Delete the preset");
  await preset.getByText("careful").waitFor({ state: "detached" });
  await press(panel, "Close");
  await field(page).fill("/su");
  await page.getByRole("option", { name: "/summarize" }).waitFor();
  await accessible(page, "commands");
  await page.keyboard.press("Tab");
  assert.equal(await field(page).inputValue(), "/summarize ");
  await field(page).pressSequentially("/j");
  await page.keyboard.press("Enter");
  assert.equal(await field(page).inputValue(), "/summarize /json ");
  await field(page).fill("a/su");
  assert.equal(await page.getByRole("option").count(), 0);
}

/** A tool that writes is asked for: once, for a chat, always, or not; one that reads is not. */
export async function tools({ page, url, told }) {
  const question = page.getByRole("group", { name: like("mayRun", { name: "write_file" }) });
  const begin = async () => {
    await useTools(page, "Write file", "Read file");
    await enter(page, "Write it down");
  };
  await begin();
  await question.waitFor();
  await appears(messages(page).last().getByText('"note.txt"'));
  await accessible(page, "question");
  await page.reload();
  await question.waitFor();
  await told("asked");
  await press(question, "In this chat");
  await page.getByText("All is written.").waitFor(); // what reads, and the second writing, were not asked for
  await told("written");
  const tree = await stored(page);
  const roles = tree.map((each) => each.role).join(" ");
  assert.equal(roles, "user assistant tool assistant tool assistant tool assistant");
  assert.equal(tree[2].tool_call_id, tree[1].tool_calls[0].id);
  assert.match(tree[4].content, /hi/);
  for (const word of [t("No"), t("Always"), ""]) {
    await emptyChat(page, url);
    await begin();
    if (word) await question.getByRole("button", { name: word, exact: true }).click();
    if (word === t("No")) {
      await page.waitForFunction(() => document.querySelectorAll("article").length === 6); // it asks for the next one
      await question.waitFor();
      assert.match((await stored(page))[2].content, /not allow/);
    } else {
      await page.getByText("All is written.").waitFor();
    }
  }
  await page.goto(`${url}/#/settings`);
  await press(page, "Ask again before write_file runs");
  await page.getByText(t("Tools that run without a question")).waitFor({ state: "detached" });
}

/** A prompt of an MCP server becomes the question, and a resource an attached text; its tools are asked for. */
export async function mcp({ page }) {
  const open = () => press(page, "Prompts and resources");
  await open();
  await page.getByRole("button", { name: "poem" }).click();
  await accessible(page, "offers");
  await page.getByLabel("topic").fill("zebras");
  await press(page, "Insert");
  await page.waitForFunction(() => document.querySelector("form textarea").value === "Write a poem about zebras.");
  await open();
  await page.getByRole("button", { name: "notes" }).click();
  await page.getByText("notes.txt").waitFor();
  await useTools(page, /echo/i);
  await press(page, "Send");
  const question = page.getByRole("group", { name: like("mayRun", { name: "s_echo" }) });
  await press(question, "Once");
  await page.getByText("All is said.").waitFor();
  const [asked, , result] = await stored(page);
  assert.equal(asked.content, "Write a poem about zebras.");
  assert.equal(asked.attachments[0].name, "notes.txt");
  assert.match(result.content, /echo: hello/);
}

/** Each dialog is the page's own: Escape leaves it and changes nothing, and the focus is where it was. */
export async function dialogs({ page, url, told }) {
  const dialog = page.getByRole("dialog");
  const opened = async (button) => {
    await button.focus();
    const before = await focused(page);
    await page.keyboard.press("Enter");
    await dialog.waitFor();
    await accessible(page, before);
    return before;
  };
  const left = async (button) => {
    const before = await opened(button);
    await escapes(page, dialog);
    assert.equal(await focused(page), before);
  };
  const panel = await parameters(page);
  await left(button(panel, "Save"));
  assert.deepEqual((await api(page, "/api/conversations")).presets, {});
  const before = await opened(button(panel, "Save"));
  await page.keyboard.type("careful");
  await page.keyboard.press("Enter");
  await button(panel, "Delete the preset").waitFor();
  assert.equal(await focused(page), before);
  assert.deepEqual(Object.keys((await api(page, "/api/conversations")).presets), ["careful"]);
  await press(panel, "Close");
  await exchange(page, "Hi");
  await page.goto(`${url}/#/settings`);
  await left(button(page, "Delete all"));
  assert.equal((await api(page, "/api/conversations")).conversations.length, 1);
  await page.goto(`${url}/#/models`);
  const card = messages(page).filter({ hasText: "acme/big" });
  await left(button(card, "Delete"));
  await told("kept");
  await opened(button(card, "Delete"));
  await press(dialog, "Delete");
  await card.waitFor({ state: "detached" });
}

/**
 * The question has the focus and is read out, no key on its way answers it, and "Always" stands apart from "Once". A call
 * that is passed over by writing on is named as not run. A file may be dropped anywhere.
 */
export async function permission({ page, told }) {
  await useTools(page, "Write file");
  await enter(page, "Write it down");
  const question = page.getByRole("group", { name: like("mayRun", { name: "write_file" }) });
  await question.waitFor();
  await appears(page.locator("[role=group]:focus [role=alert]"));
  assert.match(await page.getByRole("alert").innerText(), /write_file/);
  await page.keyboard.press("Enter");
  await page.keyboard.press("Space");
  await question.waitFor();
  await told("asked");
  const order = [];
  for (let stop = 0; stop < 4; stop++) {
    await page.keyboard.press("Tab");
    order.push(await focused(page));
  }
  const buttons = ["Once", "In this chat", "No", "Always"].map((name) => button(question, name));
  assert.deepEqual(order, await Promise.all(buttons.map((each) => each.innerText())));
  const boxes = await Promise.all(buttons.map((each) => each.boundingBox()));
  for (const box of boxes.slice(0, 3)) assert.ok(boxes[3].y > box.y + box.height + 8, "Always stands beside another");
  await question.getByText(like("allowAlwaysWhy")).waitFor();
  await page.keyboard.press("Shift+Tab");
  await page.keyboard.press("Enter"); // No
  await appears(messages(page).last().getByText("Fine."));
  await told("asked");
  await enter(page, "Write it down");
  await field(page).fill("And then"); // the focus stays with somebody who writes
  await question.waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.tagName), "TEXTAREA");
  await page.keyboard.press("Enter");
  await page.getByText(t("Not run, because the conversation went on: write_file")).waitFor();
  await told("asked");
  await page.evaluate(() => {
    const data = new DataTransfer();
    data.items.add(new File(["zebra"], "dropped.txt", { type: "text/plain" }));
    const given = { bubbles: true, cancelable: true, dataTransfer: data };
    for (const kind of ["dragover", "drop"]) document.querySelector("h1").dispatchEvent(new DragEvent(kind, given));
  });
  await button(page, "Remove dropped.txt").waitFor();
}
