// Finding and moving: search, keys, focus, and what lies where.
import assert from "node:assert/strict";
import { is, put, store, until } from "../browser.mjs";
import { attach, begun, field, messages, say, stopAnswer } from "../chat.mjs";
import { conversations, searchChats, uncovered } from "../sides.mjs";
import { accessible, appears, button, escapes, focused, gone, press, textFile } from "../steps.mjs";
import { like, narrow, t } from "../words.mjs";

/** These keys, one after the other, lead to what has this name. */
async function keysTo(page, name, ...typed) {
  for (const key of typed) await page.keyboard.press(key);
  await until(() => focused(page), is(name), typed.join());
}

/** A part of a word finds a message far above and one on another branch, and a title; each opens where it was found. */
export async function hits({ page, url }) {
  const said = Array.from({ length: 600 }, (_, at) => (at === 20 ? "Eine Wärmepumpe" : `line ${at}`));
  const walnuts = [
    { content: "the other walnut", parent: "long300" },
    { content: "after the walnut", parent: "long600" },
  ];
  await store(url, { id: "long", name: "Tax 2026", said: [...said, ...walnuts], leaf: 599 });
  for (const [query, text, more] of [
    ["mpe", "Eine Wärmepumpe", "line 21"],
    ["other alnut", "the other walnut", "after the walnut"],
  ]) {
    await searchChats(page, query);
    const found = page.locator("nav a", { has: page.locator("mark") });
    await found.filter({ hasText: text }).click();
    await appears(messages(page).filter({ hasText: text }));
    await appears(page.locator("[data-found]:focus", { hasText: text }));
    await page.waitForFunction(() => {
      const { top, bottom } = document.activeElement.getBoundingClientRect();
      return top > 0 && bottom < innerHeight;
    });
    await page.getByText(more, { exact: true }).waitFor();
    assert.ok((await messages(page).count()) <= 60);
  }
  await page.evaluate(() => dispatchEvent(new Event("beforeprint"))); // a browser takes what is there when that is over
  assert.equal(await messages(page).count(), 303); // the branch
  await page.evaluate(() => dispatchEvent(new Event("afterprint")));
  await page.waitForFunction(() => document.querySelectorAll("article").length <= 60);
  await accessible(page, "a hit");
  await searchChats(page, "TAX");
  await page.locator("nav a", { has: page.locator("mark", { hasText: "Tax" }) }).click();
  await messages(page).last().waitFor();
  await page.goto(`${url}/#/chat`);
}

/** A thousand conversations are there soon, and are one stop of Tab; arrows, menus and dialogs need no mouse. */
export async function keys({ page, device, url }) {
  const made = Array.from({ length: 1000 }, (_, at) => ({ id: `k${at}`, name: `Chat ${at}`, said: ["Hi"] }));
  const imported = await store(url, ...made);
  const some = (await (await fetch(`${url}/api/conversations/${imported[429]}`)).json()).conversation;
  assert.equal(some.title, "Chat 429");
  const asked = [];
  page.on("request", (request) => asked.push(new URL(request.url()).pathname));
  await page.goto("about:blank");
  await page.goto(`${url}/#/chat`);
  await (await conversations(page)).getByRole("link", { name: "Chat 999" }).waitFor();
  const [first] = asked.filter((path) => path !== "/" && !path.includes("/assets/"));
  assert.equal(first, "/api/conversations"); // it waits for no other answer
  const seen = [];
  await page.evaluate(() => Object.assign(document.body, { tabIndex: -1 }).focus());
  const last = narrow ? t("Settings") : t("Ask anything");
  while (seen.length < 40 && !seen.includes(last)) {
    await page.keyboard.press("Tab");
    seen.push(await focused(page));
  }
  assert.deepEqual([seen[0], seen.at(-1)], [t("Skip to the content"), last]);
  assert.equal(seen.filter((each) => /Chat \d/.test(each)).length, 2, seen.join(", ")); // a conversation and its menu
  await page.getByRole("link", { name: "Chat 999" }).focus();
  await keysTo(page, "Chat 998", "ArrowDown");
  await keysTo(page, "Chat 0", "End"); // far from the view: its row is built for it
  const row = page.getByRole("listitem").filter({ has: page.getByRole("link", { name: "Chat 0", exact: true }) });
  assert.deepEqual([await row.getAttribute("aria-posinset"), await row.getAttribute("aria-setsize")], ["1000", "1000"]);
  await keysTo(page, "Chat 929", "Home", ...Array(70).fill("ArrowDown")); // beyond what was built at first
  await keysTo(page, t("Actions for Chat 999"), "Home", "ArrowRight");
  await keysTo(page, t("Pin"), "ArrowLeft", "Shift+F10");
  await keysTo(page, t("Actions for Chat 999"), "Escape");
  await keysTo(page, t("Pin"), "Enter");
  for (const key of ["ArrowDown", "Enter"]) await page.keyboard.press(key);
  const dialog = page.getByRole("dialog", { name: t("Rename") });
  await dialog.waitFor();
  await accessible(page, "rename");
  await page.keyboard.type("Another name");
  await page.keyboard.press("Enter");
  await gone(dialog);
  await page.getByRole("link", { name: "Another name" }).waitFor();
  await keysTo(page, t("Actions for Another name"));
  await uncovered(page);
  await press(page, "Parameters");
  await keysTo(page, t("Close"));
  await escapes(page, page.getByRole("complementary", { name: t("Parameters") }));
  await keysTo(page, t("Parameters"));
  await page.keyboard.press("Control+k");
  const palette = page.getByRole("dialog");
  await palette.getByRole("option", { name: t("Settings") }).waitFor();
  await accessible(page, "palette");
  await escapes(page, palette);
  assert.equal(await focused(page), t("Parameters"));
  const typed = { "chat 429": `#/chat/${some.id}`, [t("Settings").slice(0, -1).toLowerCase()]: "#/settings" };
  for (const [words, place] of Object.entries(typed)) {
    await page.keyboard.press("Control+k");
    await palette.getByRole("combobox").fill(words);
    await page.keyboard.press("Enter");
    await page.waitForFunction((place) => location.hash === place, place);
  }
  await put(page, `/api/conversations/${some.id}`, { folder: "Tax" });
  const side = await conversations(page);
  const folded = side.getByRole("link", { name: "Chat 429", exact: true });
  const fold = side.getByRole("button", { name: "Tax" });
  await fold.waitFor();
  assert.ok(await folded.isVisible());
  await fold.click();
  await gone(folded);
  await page.reload();
  await (await conversations(page)).getByRole("button", { name: "Tax", expanded: false }).click();
  await folded.click();
  await uncovered(page);
  await press(page.getByRole("main"), "More");
  await press(page.locator("main header"), "Delete");
  await page.waitForFunction((place) => location.hash !== place, `#/chat/${some.id}`);
  await page.reload(); // the toast is gone, and the bin is not
  await (await conversations(page)).getByRole("button", { name: t("Deleted: {count}").replace("{count}", 1) }).click();
  await accessible(page, "the bin");
  await side.getByRole("button", { name: "Chat 429" }).click();
  await page.waitForFunction((place) => location.hash === place, `#/chat/${some.id}`);
  await uncovered(page);
  const phone = await device(url, { viewport: { width: 320, height: 640 } });
  const isIn = (part) => phone.evaluate((part) => !!document.activeElement.closest(part), part);
  await press(phone, "Show the conversations");
  await until(() => isIn("nav"), is(true), "the focus is in the drawer");
  await escapes(phone, phone.getByRole("navigation"));
  await keysTo(phone, t("Show the conversations"));
  await phone.keyboard.press("Enter");
  await until(() => isIn("nav"), is(true), "the focus is in it again");
  for (let stop = 0; stop < 15; stop++) {
    assert.ok(!(await isIn("main")), "the focus is below the drawer");
    await phone.keyboard.press("Tab");
  }
}

/** Nothing lies on the composer, files are of one height, and an edit is sent by Ctrl-Enter. */
export async function looks({ page }) {
  const svg = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="90"><rect width="40" height="90"/></svg>';
  const files = [textFile("note.txt", "a".repeat(540)), { ...textFile("tall.svg", svg), mimeType: "image/svg+xml" }];
  await attach(page, ...files);
  await page.getByText(/^540\s(bytes|Byte)$/).waitFor();
  const picture = page.getByRole("img", { name: "tall.svg" });
  await picture.waitFor();
  await picture.evaluate((image) => image.decode());
  assert.equal(await picture.evaluate((image) => image.naturalWidth), 40);
  const chips = page.locator("form span:has(> button[aria-label*='.'])");
  const heights = await chips.evaluateAll((all) => all.map((each) => Math.round(each.getBoundingClientRect().height)));
  assert.equal(heights.length, 2);
  assert.equal(new Set(heights).size, 1, heights.join());
  await press(page, "Remove tall.svg");
  await field(page).fill("Hi");
  await press(page, "Send");
  await page.getByRole("button", { name: like("context") }).waitFor();
  await page.waitForFunction(() => !document.querySelector(".caret"));
  const edit = button(messages(page).first(), "Edit");
  await edit.focus();
  await page.keyboard.press("Enter");
  await page.keyboard.type("Again");
  await page.keyboard.press("Control+Enter");
  await page.getByText("2/2").waitFor();
  await page.waitForFunction(() => !document.querySelector(".caret"));
  if (!narrow) {
    const [bar, track] = await page
      .locator("[data-meter]")
      .evaluate((meter) => [meter.firstChild.getBoundingClientRect().width, meter.getBoundingClientRect().width]);
    assert.ok(bar < track / 2, `${bar} of ${track}`);
  }
  await press(messages(page).last(), "Delete");
  await press(messages(page).last(), "This message alone");
  const toast = page.locator("[role=status] .card");
  await toast.waitFor();
  const [low, high] = [await toast.boundingBox(), await page.locator("[data-composer] form").boundingBox()];
  assert.ok(low.y + low.height <= high.y, `${low.y + low.height} is below ${high.y}`);
}

/** Nothing is said in the console: not at the start, not by Stop, not by going from one conversation to another. */
export async function quiet({ page, url }) {
  for (let at = 0; at < 2; at++) {
    await page.goto(`${url}/#/chat`);
    await field(page).waitFor();
    await say(page, "Count");
    await begun(page);
    await stopAnswer(page);
  }
  for (const at of [1, 0, 1]) {
    await (await conversations(page)).locator("a[href*='#/chat/']").nth(at).click();
    await messages(page).first().waitFor();
  }
  await page.waitForTimeout(500); // what a look for an ended answer would take
}
