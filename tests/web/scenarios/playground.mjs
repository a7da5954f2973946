// The playground: every kind of request to a model, and a load test.
import assert from "node:assert/strict";
import { accessible, appears, button, press } from "../steps.mjs";
import { like, number, t } from "../words.mjs";

/** Typed, because Firefox selects nothing in a field for numbers when it is filled. */
async function set(page, label, value) {
  const box = page.getByLabel(t(label));
  await box.press("ControlOrMeta+a");
  await box.pressSequentially(value);
}

/** Each kind is tried with a model that can do it; the server's refusal is shown where one cannot. */
export async function kinds({ page, url, allow }) {
  allow(/ 501 .*\/v1\/embeddings/);
  const kind = page.getByLabel(t("What to try"));
  const model = page.getByLabel(t("Choose a model"));
  const first = page.getByRole("textbox").first();
  const second = page.getByRole("textbox").nth(1);
  const rows = page.locator("tbody tr");
  const cost = page.getByRole("status").filter({ hasText: /\ss/ });
  const answer = page.locator("pre");
  const choose = (text) => kind.selectOption({ label: t(text) });
  const run = async () => {
    await press(page, "Start");
    await cost.waitFor();
  };
  await page.goto(`${url}/#/machine/playground`);
  await model.selectOption("writer");

  await first.fill("Tell me a story.");
  await set(page, "Longest answer", "5");
  await run();
  assert.equal(await answer.textContent(), "Once upon a time a");
  await cost.filter({ hasText: like("speed", { count: "5", rate: /[\d.,]+/ }) }).waitFor();
  await accessible(page, "completion");
  await set(page, "Longest answer", "4000");
  await press(page, "Start");
  await answer.filter({ hasText: "Once upon" }).waitFor();
  await press(page, "Stop");
  await cost.waitFor();
  const stopped = await answer.textContent();
  assert.ok(stopped.startsWith("Once upon a"), "what has come stays");
  await page.waitForTimeout(300);
  assert.equal(await answer.textContent(), stopped);

  await choose("Fill a gap");
  await first.fill("def add(a, b):");
  await second.fill("print(add(1, 2))");
  await set(page, "Longest answer", "4");
  await run();
  assert.equal(await answer.textContent(), "Once upon a time");

  await choose("Embeddings");
  await first.fill("one\n\ntwo\neno");
  await run();
  await appears(page.getByRole("alert").filter({ hasText: "--embeddings" }));
  await model.selectOption("vectors");
  await run();
  await page.getByRole("alert").waitFor({ state: "detached" });
  await rows.first().waitFor();
  assert.equal(await rows.count(), 3);
  const cells = await rows.first().locator("td").allTextContents();
  assert.deepEqual([cells[0], cells[2]], [number(1), number(1)], "the fake counts letters, in any order");
  assert.notEqual(cells[1], number(1));
  await appears(rows.nth(1).getByRole("rowheader", { name: "2 two" }));
  await accessible(page, "similarities");

  await choose("Rank documents");
  await model.selectOption("ranks");
  await first.fill("a black llama");
  await second.fill("a house\na black llama\nnothing");
  await run();
  assert.deepEqual(await rows.locator("th").allTextContents(), ["a black llama", "a house", "nothing"]);
  await accessible(page, "ranks");

  await choose("Text to tokens");
  await first.fill("Aé");
  await run();
  const pieces = (await rows.allInnerTexts()).map((each) => each.replace(/\s+/, " "));
  assert.deepEqual(pieces, ["A 65", "c3 195", "a9 169"]);
  await accessible(page, "tokens");
  await choose("Tokens to text");
  await first.fill("65, 195 169");
  await run();
  assert.equal(await answer.textContent(), "Aé");

  await choose("Text to speech");
  assert.deepEqual(await model.locator("option").allTextContents(), ["mouth"], "only who speaks can be chosen");
  await first.fill("Hello");
  await run();
  const sound = page.locator("audio");
  await page.waitForFunction(() => document.querySelector("audio").duration > 0);
  const address = await sound.getAttribute("src");
  await accessible(page, "speech");

  await choose("Images");
  await sound.waitFor({ state: "detached" });
  allow(/blob:/); // that nothing is there any more is said on the console
  const heard = await page.evaluate(async (url) => {
    const event = await new Promise((tell) => Object.assign(new Audio(url), { onerror: tell, onloadedmetadata: tell }));
    return event.type;
  }, address);
  assert.equal(heard, "error", "the sound is given back");
  await first.fill("A llama");
  await run();
  const picture = page.getByRole("img", { name: "A llama" });
  await picture.waitFor();
  assert.ok(await picture.evaluate((each) => each.complete && each.naturalWidth > 0));
  await accessible(page, "images");
}

/** Two models that cannot run together take turns; the bars have every stage, the totals every request, and Stop ends it. */
export async function load({ page, url }) {
  const spans = page.locator("ol li > span[title] > span");
  const start = button(page, "Start");
  const row = (model) => page.getByRole("row").filter({ has: page.getByRole("rowheader", { name: model }) });
  await page.goto(`${url}/#/machine/playground`);
  await page.getByLabel(t("What to try")).selectOption({ label: t("Load test") });
  await page.getByRole("textbox").fill("Tell me about llamas.");
  assert.ok(await start.isDisabled(), "no model is chosen");
  await page.getByRole("checkbox", { name: "small" }).check();
  await page.getByRole("checkbox", { name: "other" }).check();
  await set(page, "At once", "5");
  assert.ok(await start.isDisabled(), "a browser has no connections for five");
  await set(page, "At once", "2");
  await set(page, "Requests for each model", "2");
  await set(page, "Longest answer", "6");
  await accessible(page, "before a load test");
  await start.click();
  // A look into another view ends nothing, and what came meanwhile is there.
  await page.goto(`${url}/#/machine/now`);
  await page.getByLabel(t("What to try")).waitFor({ state: "detached" });
  await page.goBack();
  await start.waitFor();
  for (const model of ["small", "other"]) {
    const [done, failed, ...figures] = await row(model).locator("td").allTextContents();
    assert.deepEqual([done, failed], ["2", "0"]);
    for (const figure of figures) assert.match(figure, /[1-9]/);
  }
  const seen = await spans.evaluateAll((all) => all.map((each) => each.className).filter(Boolean));
  assert.deepEqual([...new Set(seen)].sort(), ["bg-accent", "bg-good", "bg-soft", "bg-warn"], "every stage was there");
  const told = await page.locator("ol li .sr-only").allTextContents();
  assert.equal(told.length, 4);
  assert.ok(told.every((each) => each.includes(t("Answering"))));
  await accessible(page, "a load test");

  await set(page, "Longest answer", "4000");
  await page.getByRole("checkbox", { name: "other" }).uncheck();
  await start.click();
  const bar = page.locator("ol li .sr-only").first();
  await bar.filter({ hasText: t("Answering") }).waitFor({ state: "attached" });
  await press(page, "Stop");
  await start.waitFor();
  assert.deepEqual((await row("small").locator("td").allTextContents()).slice(0, 2), ["0", "0"], "none has ended");
}
