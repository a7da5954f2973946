// The views for the operator of the machine.
import assert from "node:assert/strict";
import { api, ask, asked, countTasks, is, post, until } from "../browser.mjs";
import { say } from "../chat.mjs";
import { conversations } from "../sides.mjs";
import { accessible, appears, button, confirm, escapes, press, saved, shows } from "../steps.mjs";
import { like, line, narrow, t } from "../words.mjs";

/** The server waits for what is under way when it ends, and so do models that wait for their turn. */
async function endAll(page, url) {
  for (const { id } of (await api(page, "api/inflight")).requests) await post(url, `/api/inflight/${id}/cancel`);
}

/** A damaged file is marked beside "Machine", named with what to do, and gone once it is away. */
export async function attention({ page, url, told, allow }) {
  allow(/ 503 /);
  let isBusy = true;
  const busy = { status: 503, body: '{"error": {"message": "it is busy"}}' };
  await page.route("**/api/doctor?line=1", (route) => (isBusy ? route.fulfill(busy) : route.continue()));
  for (const name of [like("attentionUnknown", { why: "it is busy" }), like("attentionCount", { count: /\d+/ })]) {
    await page.reload();
    await conversations(page);
    await page.getByRole("img", { name }).waitFor();
    isBusy = false;
  }
  await page.goto(`${url}/#/machine`);
  const finding = page.getByRole("article").filter({ hasText: "torn.gguf" });
  await shows(finding, line(t("Warning")), like("sinceWhen", { when: /.+/ }), line("llama-appliance ls"));
  await press(finding, "Copy");
  await page.getByText(like("attentionCount", { count: /\d+/ })).waitFor();
  await accessible(page, "attention");
  await finding.getByRole("link", { name: t("Models") }).click();
  await page.getByRole("heading", { level: 1, name: t("Models") }).waitFor();
  await page.goBack();
  await told("mended");
  await press(page, "Look again");
  await finding.waitFor({ state: "detached" });
  const { ok } = await api(page, "api/doctor?line=1");
  if (ok) await page.getByText(t("All is well. Nothing needs your attention.")).waitFor();
  await accessible(page, "nothing to do");
}

/** A load is foretold, done, and then the next one names the model that has to go. */
export async function memory({ page, url }) {
  await page.goto(`${url}/#/machine/memory`);
  const choice = page.getByLabel(t("What would a load stop?"));
  await choice.selectOption("other");
  await shows(page, t("No model has to go."), t("Its time to load is not known yet."));
  await press(page, "Load");
  await page.getByText(t("It is in memory already.")).waitFor();
  const ram = page.getByRole("region", { name: "ram" });
  await ram.getByRole("link", { name: "other", exact: true }).waitFor();
  const values = await choice.locator("option").evaluateAll((all) => all.map((each) => each.value));
  const next = values.find((value) => value && value !== "other");
  await choice.selectOption(next);
  await page.getByText(t("It would stop other.")).waitFor();
  const sizes = await ram.locator("span[style]").evaluateAll((all) => all.map((each) => each.offsetWidth));
  assert.ok(sizes.length >= 2 && sizes.every((size) => size >= 0), "what is taken and what is free");
  await accessible(page, "memory");
  // The queue lasts for as long as this answer, which has no end. It is held here: what nobody holds is given up.
  const held = await ask(url, "other", "hi", { stream: true, fake: { script: '[{"text": "so far", "stall": true}]' } });
  await post(url, "/models/load", { model: next });
  await shows(page, t("It waits in the queue."), t("other is stopped for it."));
  await page.getByText(t("It waits until other may go: in use, or loaded just now.")).waitFor();
  assert.equal(await page.getByText(t("It is in memory already.")).count(), 0);
  await page.reload();
  await page.getByText(t("It waits in the queue.")).waitFor(); // the choice is in the address
  await accessible(page, "a model that waits");
  const { status } = (await api(page, "v1/models")).data.find(({ id }) => id === next);
  assert.deepEqual([status.value, status.queued], ["loading", true]);
  await page.goto(`${url}/#/models`);
  await appears(page.getByRole("article").filter({ hasText: next }).getByText(t("In the queue")));
  await page.goBack();
  await endAll(page, url);
  assert.match(await held.text(), /so far/);
  await page.getByText(t("It is in memory already.")).waitFor();
}

/** What is under way: one answers, one waits for its model; both are seen, one is ended, and then the other one loads. */
export async function now({ page, url, allow }) {
  allow(/ 503 .*\/v1\/stream/); // the answer of a chat while its model loads
  const asks = (model) => ask(url, model, "hi", { stream: true }, { "User-Agent": `${model}-tester/1.0` });
  const strip = page.locator('a[href="#/machine/now"]').filter({ hasText: /\d/ });
  const entry = (model) => page.getByRole(narrow ? "article" : "row").filter({ hasText: `${model}-tester/1.0, 127` });
  await page.goto(`${url}/#/models`);
  await page.getByRole("heading", { name: t("Models"), level: 1 }).waitFor();
  assert.equal(await strip.count(), 0);
  const first = await asks("small");
  await strip.getByText(like("nowUnderWay", { count: 1 })).waitFor();
  const second = asks("other");
  await strip.getByText(like("nowUnderWay", { count: 2 })).waitFor();
  if (!narrow) await strip.getByText(t("In the queue")).waitFor();
  await accessible(page, "the strip");
  await strip.click();
  await shows(entry("small"), t("Answering"), like("speed", { count: /\d+/, rate: /[\d.,]+/ }));
  await appears(entry("other").getByText(line(t("In the queue"), like("queuePlace", { place: 1 }))));
  assert.equal(await strip.count(), 0, "the view itself has no strip");
  await accessible(page, "now");
  const end = async (model) => {
    const ends = entry(model).getByRole("button", { name: like("nowEndOf") });
    await ends.click();
    await shows(page.getByRole("dialog"), like("nowEndAsk", { model }));
    await confirm(page, "End");
  };
  await end("small");
  await entry("small").waitFor({ state: "detached" });
  assert.match(await first.text(), /"cancelled"/);
  await entry("other").getByText(t("Answering")).waitFor();
  await end("other");
  await page.getByText(t("Nothing is under way.")).waitFor();
  await (await second).text();
  await page.goto(`${url}/#/chat`);
  await say(page, "Hi");
  await page.getByText(t("Answering"), { exact: true }).first().waitFor({ state: "attached" });
  await page.waitForTimeout(2000); // the strip would be there by now
  assert.equal(await strip.count(), 0, "a chat shows its own answer itself");
  await page.goto(`${url}/#/models`);
  await strip.getByText(like("nowUnderWay", { count: 1 })).waitFor();
  await endAll(page, url);
}

/** The timeline says why a model went, follows what happens, and shows one kind or one model alone. */
export async function why({ page, url }) {
  await page.goto(`${url}/#/machine/why`);
  await page.getByText(t("Nothing of this kind has happened.")).waitFor();
  for (const model of ["small", "other"]) await post(url, "/models/load", { model, wait: true });
  const entries = page.getByRole("listitem").filter({ has: page.locator("time") });
  await entries.filter({ hasText: "small went for other: 1 model may run at once" }).waitFor();
  await entries.nth(4).waitFor();
  assert.equal(await entries.count(), 5);
  assert.match(await entries.first().textContent(), /other was ready after/, "the newest is at the top");
  await accessible(page, "why");
  await page.getByLabel(t("Which kind")).selectOption("evicted");
  await entries.filter({ hasText: "was ready after" }).first().waitFor({ state: "detached" });
  await entries.first().waitFor();
  assert.equal(await entries.count(), 1);
  await page.getByLabel(t("Which model")).selectOption("third");
  await page.getByText(t("Nothing of this kind has happened.")).waitFor();
  await page.getByLabel(t("Which model")).selectOption("other");
  await entries.filter({ hasText: "small went for other" }).waitFor();
}

/** Requests are listed, filtered, sorted and exported; one is opened, as a chat and raw, and asked again of another model. */
export async function activity({ page, url }) {
  await page.goto(`${url}/#/machine/activity`);
  await page.getByText(t("No requests yet.")).waitFor();
  const rows = page.locator("tbody tr");
  for (const [at, content] of ["first", "second", "third"].entries()) {
    await asked(url, content === "third" ? "nobody" : "other", content, { stream: content === "first" });
    await rows.nth(at).waitFor(); // they have their numbers in this order
  }
  const failures = page.getByRole("checkbox", { name: t("Only failures") });
  await failures.check();
  await rows.filter({ hasText: "404" }).waitFor();
  await rows.nth(1).waitFor({ state: "detached" });
  await failures.uncheck();
  await rows.nth(2).waitFor();
  const search = page.getByRole("searchbox", { name: t("Search model, path, error") });
  await search.fill("OTHER");
  await rows.nth(2).waitFor({ state: "detached" });
  await press(page, "Model");
  await appears(page.locator("th[aria-sort=descending]").filter({ hasText: t("Model") }));
  await saved(page, page.getByRole("button", { name: "CSV" }), /^activity\.csv$/);
  await accessible(page, "activity");
  assert.ok((await search.boundingBox()).width > 180, "the search shows what is typed");
  const place = page.getByText(like("pageOf", { page: 1, pages: 1, total: /.+/ }));
  assert.ok((await place.boundingBox()).height < 50, "the number of the page is not one letter wide");
  await page.reload(); // the choices are in the address
  await rows.nth(2).waitFor({ state: "detached" });
  assert.equal(await search.inputValue(), "OTHER");
  await search.fill("");
  for (let turn = 0; turn < 45; turn++) await asked(url, "nobody", "many");
  const open = (id) => page.getByRole("button", { name: `${t("Open request")} ${id}`, exact: true });
  await open(5).waitFor();
  const fortieth = rows.nth(39).getByRole("button");
  const low = await fortieth.getAttribute("id");
  await fortieth.click();
  const row = page.getByRole("region", { name: like("openRequest") });
  await row.getByText("model 'nobody' not found", { exact: false }).waitFor();
  const { y, height } = await row.boundingBox();
  assert.ok(y > 0 && y + height < 720, `the opened request is in sight: ${y}, ${height} px high`);
  assert.ok(await row.evaluate((node) => node.contains(document.activeElement)), "it has the focus");
  await escapes(page, row);
  assert.equal(await page.evaluate(() => document.activeElement.id), low, "the row has the focus again");
  await page.goBack(); // it was open before
  await row.waitFor();
  await page.reload();
  await row.waitFor();
  await press(page, "Close");
  await page.goto(`${url}/#/machine/activity?failed=1&id=newest`); // as links to what failed have it
  await appears(page.getByRole("region", { name: `${t("Open request")} 48` }).getByText("model 'nobody' not found"));
  await page.keyboard.press("Escape");
  await failures.uncheck();
  await open(1).click(); // for which the model was loaded
  const opened = page.getByRole("region", { name: `${t("Open request")} 1` });
  await shows(opened, /node, 127/, line("first"));
  const said = await opened.locator("div", { hasText: /^assistant/ }).allInnerTexts();
  assert.ok(said.at(-1).length > "assistant".length, "the pieces of a stream are put together");
  for (const part of ["Loaded the model", "Answered"]) {
    await appears(opened.getByRole("listitem").filter({ hasText: t(part) }));
  }
  await press(opened, "Raw");
  await opened.getByText("[DONE]").waitFor();
  await opened.getByLabel(t("Ask another model")).selectOption({ index: 1 });
  await press(opened, "Ask this model");
  await appears(opened.locator(".grid > div").nth(1));
  await accessible(page, "one request");
}

/** The program's log comes as it is written, the server searches it, and a model has its own. */
export async function logs({ page, url }) {
  const log = page.getByRole("region", { name: t("Logs") });
  const lines = log.locator("> div");
  await page.goto(`${url}/#/machine/logs`);
  const source = page.getByLabel(t("Log of"));
  await until(() => source.inputValue(), is("proxy"), "nothing runs, so it opens on the program");
  await asked(url, "other");
  await log.getByText("POST /v1/chat/completions", { exact: false }).waitFor();
  assert.ok(await lines.last().locator("time").isVisible(), "each line has its time");
  await fetch(`${url}/api/inflight`);
  await log.getByText("GET /api/inflight", { exact: false }).waitFor();
  assert.ok(!(await log.innerText()).includes("Mozilla"), "the page's own reading is left out");
  // Firefox's driver tells of no download.
  if (process.env.BROWSER !== "firefox") await saved(page, button(page, "Download"), /^proxy\.log$/);
  await page.getByLabel(t("Level"), { exact: true }).selectOption("error");
  await log.getByText(t("Nothing yet.")).waitFor();
  await page.getByLabel(t("Level"), { exact: true }).selectOption("");
  await page.getByRole("searchbox", { name: t("Search the log") }).fill("post /V1");
  await log.getByText("GET /", { exact: false }).first().waitFor({ state: "detached" });
  await log.getByText("POST /v1/chat/completions", { exact: false }).waitFor();
  assert.equal(await lines.count(), 1);
  await page.getByRole("searchbox", { name: t("Search the log") }).fill("");
  await source.selectOption("other");
  await log.getByText("POST /v1/chat/completions", { exact: false }).waitFor({ state: "detached" });
  await lines.first().waitFor();
  await accessible(page, "logs");
  await page.reload();
  await lines.first().waitFor();
  assert.equal(await source.inputValue(), "other", "the choice is in the address");
  await page.goto("about:blank");
  await page.goto(`${url}/#/machine/logs`);
  await lines.first().waitFor();
  assert.equal(await source.inputValue(), "other", "it opens on the model that runs");
}

/** 50,000 lines a second: the newest are there, the others counted; `-s` shows the tasks longer than 50 ms. */
export async function flood({ page, url }) {
  const tasks = await countTasks(page);
  const log = page.getByRole("region", { name: t("Logs") });
  await page.goto(`${url}/#/machine/logs`);
  await page.getByLabel(t("Log of")).selectOption("loud");
  await appears(log.getByText("lines lost ...", { exact: false }).first());
  await page.getByText(like("linesLeft", { count: /[\d.,]+/ })).waitFor();
  console.log(`a flood of lines: tasks over 50 ms: ${(await tasks()).join(", ") || "none"}`);
  assert.ok((await log.locator("> div").count()) <= 2000);
  const reading = () =>
    log.evaluate((node) => [node.scrollTop, node.scrollHeight - node.clientHeight - node.scrollTop]);
  await until(reading, ([, below]) => below < 4, "it follows");
  await log.press("PageUp"); // keeping.reading has the other ways
  const end = page.getByRole("button", { name: t("To the end"), exact: false });
  await end.waitFor();
  let last;
  const rests = ([top, below]) => {
    const isSame = top === last;
    last = top;
    return isSame && below > 50;
  };
  const [before] = await until(reading, rests, "it has moved, and rests");
  const text = await log.locator("> div").last().innerText();
  await end.filter({ hasText: /\d{3}/ }).waitFor(); // many more have come
  const [after] = await reading();
  assert.ok(Math.abs(after - before) < 150, `it stays where somebody reads: ${before}, ${after}`);
  assert.equal(await log.locator("> div").last().innerText(), text, "what is read stays");
  await accessible(page, "reading a log");
  await end.click();
  await page.getByLabel(t("Log of")).selectOption("proxy");
  await log.getByText("lines lost ...", { exact: false }).first().waitFor({ state: "detached" });
}

/** A value of the form and a line of the text, checked and saved; somebody else's edit is not lost; an old one is back. */
export async function config({ page, url, told, allow }) {
  allow(/ 409 .*\/api\/config/); // the file has changed meanwhile
  await page.goto(`${url}/#/machine/config`);
  const text = page.getByLabel(t("Text of the file"));
  const save = button(page, "Save");
  const difference = page.getByRole("region", { name: t("Difference") });
  await page.getByLabel(t("Settings of")).selectOption("tuned");
  const ttl = page.getByLabel(/^TTL/);
  assert.equal(await ttl.inputValue(), "600");
  assert.ok(!(await text.inputValue()).includes("sk-hidden"), "a secret is not shown");
  assert.ok(await save.isDisabled(), "nothing is changed");
  await ttl.fill("300");
  await ttl.blur();
  await difference.getByText("+    ttl: 300  # ten minutes").waitFor();
  await accessible(page, "configuration");
  await text.fill((await text.inputValue()).replace("ttl: 300", "ttl: soon"));
  await page.getByText("models.tuned.ttl: must be a whole number").waitFor();
  assert.ok(await save.isDisabled(), "a mistake is not saved");
  await page.getByRole("button", { name: like("configLine", { line: /\d+/ }) }).click();
  assert.equal(await page.evaluate(() => getSelection().toString().trim().slice(0, 9)), "ttl: soon");
  // It is said at its field, and in sight of the button; a view that is left is asked about, and found as it was left.
  assert.equal(await page.getByText("must be a whole number").count(), 2);
  const dialog = page.getByRole("dialog");
  const there = async () => {
    await page.getByText("models.tuned.ttl: must be a whole number").waitFor();
    assert.match(await text.inputValue(), /ttl: soon/);
  };
  await page.goto(`${url}/#/machine/now`);
  await accessible(page, "a question before the text is left");
  await press(dialog, "Cancel");
  assert.match(page.url(), /config$/);
  await there();
  await page.goto(`${url}/#/machine/now`);
  await press(dialog, "Leave");
  await text.waitFor({ state: "detached" });
  await page.goBack();
  await there();
  await page.reload();
  await there();
  await text.fill((await text.inputValue()).replace("models:", "modls:"));
  await page.getByText("modls: unknown key; did you mean 'models'?").waitFor();
  await text.fill((await text.inputValue()).replace("modls:", "models:"));
  await page.getByLabel(t("Settings of")).selectOption("tuned");
  await text.fill((await text.inputValue()).replace("ttl: soon", "ttl: 300").replace("cmd: run", "cmd: nice run"));
  await page.getByText("models.tuned.cmd: cannot be changed over HTTP").waitFor();
  await accessible(page, "a change that is refused");
  await text.fill((await text.inputValue()).replace("cmd: nice run", "cmd: run"));
  await difference.getByText("+    ttl: 300  # ten minutes").waitFor();
  await told("edited");
  await save.click();
  await page.getByText(/has changed since you read it/).waitFor();
  await difference.getByText("-# an editor was here").waitFor();
  await text.fill(`# an editor was here\n${await text.inputValue()}`);
  await difference.getByText("-# an editor was here").waitFor({ state: "detached" });
  await save.click();
  await page.getByText(t("Saved, and in force.")).waitFor();
  await told("saved");
  await page.getByLabel(t("Earlier versions")).selectOption({ index: 1 });
  await difference.getByText("+    ttl: 600  # ten minutes").waitFor();
  await save.click();
  await difference.waitFor({ state: "detached" });
  assert.match(await text.inputValue(), /ttl: 600 {2}# ten minutes/);
}

/** Every field of every view that words are typed into, but for searches: they outlive another view and a reload. */
export async function typed({ page, url }) {
  const kinds = ["textarea", "input:is([type=text], [type=number], :not([type]))"];
  const fields = () => page.locator(kinds.map((each) => `main ${each}:visible`).join());
  const leave = async () => {
    await page.goto(`${url}/#/settings`);
    const [question, there] = [page.getByRole("dialog"), page.getByRole("heading", { level: 1, name: t("Settings") })];
    await appears(there.or(question));
    if (await question.isVisible()) await press(question, "Leave");
    await there.waitFor();
  };
  let met = 0;
  const all = async (path, ready, choose = async () => undefined) => {
    const open = async () => {
      await page.goto(`${url}/#/${path}`);
      await ready.first().waitFor();
      await choose();
    };
    await open();
    const words = [];
    for (const box of await fields().all()) {
      const kind = await box.getAttribute("type");
      words.push(kind === "number" ? `${met + 3}` : (await box.inputValue()) + `# words ${met}`);
      await box.fill(words.at(-1));
      met += 1;
    }
    assert.ok(words.length, `${path} has fields`);
    const found = async () => Promise.all((await fields().all()).map((box) => box.inputValue()));
    await leave();
    await open();
    await until(found, is(words), `${path} has what was typed`);
    await page.reload();
    await ready.first().waitFor();
    await choose();
    await until(found, is(words), `${path} has it after a reload`);
  };
  const form = page.getByText(t("New run"), { exact: true });
  await all("machine/agents", form, async () => {
    if (!(await page.getByLabel(t("Task")).first().isVisible())) await form.click();
  });
  const trial = page.getByRole("combobox", { name: t("What to try") });
  for (const kind of ["complete", "infill", "load"]) {
    await all("machine/playground", trial, async () => {
      if ((await trial.inputValue()) !== kind) await trial.selectOption(kind);
    });
  }
}
