// Nothing written is lost, whatever happens to the server; Stop, scrolling, and errors that say what to do.
import assert from "node:assert/strict";
import { api, is, put, shown, stored, until, upload } from "../browser.mjs";
import { attach, begun, enter, exchange, field, lastText, messages, say, showsOnly } from "../chat.mjs";
import { connected, emptyChat, newChat, parameters, uncovered } from "../sides.mjs";
import { accessible, appears, button, gone, press, saved, textFile } from "../steps.mjs";
import { like, number, t } from "../words.mjs";

const send = (page) => button(page, "Send");
const stop = (page) => button(page, "Stop");
/** How often the words are in the field, the queue and the shown conversation. */
const places = (page, words) =>
  page.evaluate(
    ([words, you]) => {
      const field = document.querySelector("form textarea")?.value === words ? 1 : 0;
      const queued = [...document.querySelectorAll("span.truncate")].filter(
        (each) => each.textContent === words && each.closest(".bg-wash"),
      ).length;
      const asked = [...document.querySelectorAll(`article[aria-label=${you}]`)].filter((each) =>
        each.innerText.includes(words),
      ).length;
      return { field, queued, asked };
    },
    [words, t("You")],
  );
const contents = (all) => all.map((each) => each.content);
const total = (found) => found.field + found.queued + found.asked;

/** The server is killed before or after each request of a question: the words are in one place, and then answered once. */
export async function between({ page, url, told, allow, more: [after, existing] }) {
  allow(/net::ERR_/, / 404 .*\?since=0$/); // the server is killed, and may know nothing of the conversation yet
  let left = -1;
  let killed;
  await page.route(/\/(api\/conversations\/|v1\/chat)/, async (route) => {
    const request = route.request();
    if (request.method() === "GET" || left < 0 || left-- > 0) return route.continue();
    if (after) await route.fetch().catch(() => undefined);
    killed = told("kill");
    await killed;
    return after ? route.abort("connectionreset") : route.continue();
  });
  for (let number = 0; number < (existing ? 4 : 5); number++) {
    if (!existing || !number) await emptyChat(page, url);
    if (existing && !number) await exchange(page, "Before");
    const words = `Question ${existing} ${number}`;
    killed = undefined;
    await field(page).fill(words);
    left = number;
    await page.keyboard.press("Enter");
    await page.waitForFunction(
      () => document.querySelector("form textarea").value === "" || document.querySelector("p[role=alert]"),
    );
    for (let tries = 0; !killed && tries < 20; tries++) await page.waitForTimeout(100);
    left = -1;
    if (!killed) continue; // it has fewer requests
    await killed;
    const there = await places(page, words);
    assert.equal(total(there), 1, `killed at ${number}: ${JSON.stringify(there)}`);
    await told("start");
    await connected(page);
    // They are asked when the page has found out whether they arrived, and never in two places.
    const isAsked = (each) => each.asked || total(each) > 1;
    const found = await until(() => places(page, words), isAsked, "asked");
    assert.deepEqual(found, { field: 0, queued: 0, asked: 1 }, `after ${number}`);
    await gone(page.locator("p[role=alert]").first());
    await gone(stop(page));
    const again = page.getByRole("button", { name: new RegExp(`^(${t("Again")}|${t("Ask now")})$`) });
    await again.click({ timeout: 500 }).catch(() => undefined); // where nobody waited any more
    await page.waitForFunction(() => document.querySelector("article:last-of-type .prose-chat")?.innerText.length > 20);
    await stop(page).waitFor({ state: "detached" });
    const times = contents(await stored(page)).filter((each) => each === words).length;
    assert.equal(times, 1, `stored after ${number}`);
  }
}

/** Words, files and the queue outlive a look elsewhere, a reload and a dead server. */
export async function drafts({ page, url, told, allow }) {
  allow(/net::ERR_/, / 404 .*\?since=0$/);
  const remove = button(page, "Remove note.txt");
  for (const sign of [remove, page.getByText(t("note.txt is attached already."))]) {
    await attach(page, textFile("note.txt", "zebra"));
    await sign.waitFor();
  }
  await field(page).fill("Not sent");
  const system = page.getByLabel(t("System prompt"));
  await parameters(page);
  await system.fill("Be brief.");
  const kept = async () => {
    await remove.waitFor();
    assert.equal(await field(page).inputValue(), "Not sent");
    await parameters(page);
    assert.equal(await system.inputValue(), "Be brief.");
    await system.press("Escape");
    await gone(system);
  };
  await page.goto(`${url}/#/settings`);
  await page.goto(`${url}/#/chat`);
  await kept();
  await page.reload();
  await kept();
  await send(page).click();
  await begun(page);
  await enter(page, "And then");
  await page.getByText(t("Next:")).waitFor();
  await field(page).fill("Later");
  await page.reload();
  await page.getByText("And then").waitFor();
  assert.equal(await field(page).inputValue(), "Later");
  await emptyChat(page, url);
  assert.equal(await field(page).inputValue(), "");
  await page.goBack();
  await page.getByText("And then").waitFor();
  assert.equal(await field(page).inputValue(), "Later");
  await stop(page).click();
  await press(page, "Send now");
  await until(async () => (await stored(page)).length, is(4), "it is asked"); // the first may be too far to be drawn
  const asked = (await stored(page)).filter((each) => each.role === "user");
  assert.deepEqual(contents(asked), ["Not sent", "And then"]);
  await begun(page); // a request that is stopped before its answer begins is refused, which the browser notes
  await stop(page).click();
  await stop(page).waitFor({ state: "detached" });
  await told("kill");
  await page.getByRole("alert").waitFor();
  await attach(page);
  await enter(page, "While it was away");
  await page.getByText(like("waitsForServer", { seconds: /\d+/ })).waitFor();
  await accessible(page, "away");
  assert.equal(await field(page).inputValue(), "While it was away");
  await told("start");
  await messages(page).nth(5).waitFor();
  assert.equal(await field(page).inputValue(), "");
  assert.equal(await page.getByText(new RegExp(`cannot be reached|${t("The server cannot be reached.")}`)).count(), 0);
  await begun(page);
  await stop(page).click();
}

/** News of an answer may come before the word that it is stored: the model is asked for it all the same. */
export async function overtaken({ page }) {
  await page.route(/\/messages\//, async (route) => {
    const response = await route.fetch();
    await page.waitForTimeout(1000);
    await route.fulfill({ response });
  });
  await exchange(page, "Hi");
  const [, answer] = await stored(page);
  assert.deepEqual([answer.state ?? "done", answer.error ?? ""], ["done", ""]);
}

/** A schema or number that no model takes is refused in its field, and nothing is stored of the question. */
export async function refused({ page }) {
  const panel = await parameters(page);
  for (const [label, bad, good, said] of [
    [t("Temperature"), "99", "0.3", t("A number from 0 to 5")],
    ["Top P", "5", "0.9", t("A number from 0 to 1")],
    ["Top K", "1.5", "40", t(`A whole number from 0 to ${number(1_000_000)}`)],
  ]) {
    await panel.getByLabel(label).fill(bad);
    await panel.getByText(said).waitFor();
    await panel.getByLabel(label).fill(good);
    await panel.getByText(said).waitFor({ state: "detached" });
  }
  await panel.getByLabel(t("Temperature")).fill("99");
  const schemas = { "[1]": t("The schema has to be a JSON object."), "{": like("schemaWrong") };
  for (const [bad, said] of Object.entries(schemas)) {
    await panel.getByLabel(t("JSON schema of answers")).fill(bad); // at once, without leaving the field
    await panel.getByText(said).waitFor();
  }
  await accessible(page, "refused");
  await uncovered(page);
  await field(page).fill("Keep me");
  await send(page).click();
  await appears(page.getByRole("status").getByText(like("schemaWrong")));
  assert.equal(await field(page).inputValue(), "Keep me");
  assert.deepEqual((await api(page, "/api/conversations")).conversations, []);
  await (await parameters(page)).getByLabel(t("JSON schema of answers")).fill("");
  await panel.getByRole("heading").click();
  await uncovered(page);
  const asked = page.waitForRequest((request) => request.url().endsWith("/chat/completions"));
  await send(page).click();
  assert.equal((await asked).postDataJSON().temperature, 0.3);
}

/** What was on the screen when the server was killed is in the conversation afterwards, and the answer can go on. */
export async function rescued({ page, told, allow }) {
  allow(/net::ERR_/);
  await say(page, "Count");
  await page.waitForFunction(() => document.querySelector("article:last-of-type .prose-chat")?.innerText.length > 300);
  await told("kill");
  await appears(page.getByRole("alert").first());
  const seen = (await lastText(page)).trim();
  await told("start");
  await page.getByText(t("The answer was cut short. You can continue it.")).waitFor();
  const squeezed = (words) => words.replace(/\s+/g, " ").trim();
  assert.ok(squeezed(await lastText(page)).startsWith(squeezed(seen)), "it shrank");
  const goesOn = ([, answer]) => squeezed(answer?.content ?? "").startsWith(squeezed(seen));
  const [, answer, ...more] = await until(() => stored(page), goesOn, "it is written down");
  assert.deepEqual([answer.state, more], ["interrupted", []]);
  await press(messages(page).last(), "Continue the answer");
  const longer = (words) => squeezed(words).length > squeezed(answer.content).length;
  await until(() => lastText(page), longer, "it goes on");
}

/** Whatever the server accepts as a message can be opened. */
export async function odd({ page, url, seed }) {
  let state = seed;
  const random = (count) => (state = (state * 1103515245 + 12345) % 2147483648) % count;
  const pick = (all) => all[random(all.length)];
  const { hash } = await upload(page, "x", "text/plain", "x");
  const types = { png: "image/png", svg: "image/svg+xml", wav: "audio/wav", "?": "" };
  const typeOf = (name) => types[name.split(".").at(-1)] ?? "text/plain";
  const file = (name) => ({ hash, name, type: typeOf(name), size: pick([0, -5, 1e15]) });
  const call = { id: "c", type: "function", function: { name: "f", arguments: "{}" } };
  const odd = ["x", true, 3].map((predicted_n) => ({ predicted_n, predicted_per_second: null }));
  const oddCalls = [
    { id: 5, function: { name: "f" } },
    { function: { name: {}, arguments: [] } },
    { ...call, function: { name: "f", arguments: { a: 1 } } },
  ];
  const texts = ["x".repeat(200_000), "[".repeat(500), "- ".repeat(300), "| a\n|-", "\u202e\u0007\ud83d"];
  texts.push(...",, ,```,$$,<b>,# ,\u0000,null".split(","));
  const values = {
    role: ["user", "assistant", "system", "tool"],
    content: texts,
    reasoning: texts,
    tool_calls: [[], [call, call], ...[null, "x", {}, [call], { function: null }, ...oddCalls].map((each) => [each])],
    tool_call_id: ["", "c", "no such"],
    model: ["", "m", "\u202e", "x".repeat(5000)],
    attachments: [[], ["a", "a"], [""], ["p.png"], ["s.svg", "s.svg"], ["w.wav"], ["?"]].map((names) =>
      names.map(file),
    ),
    state: ["done", "stopped", "failed", "interrupted", "unknown", ""],
    error: ["", "x", "request (9 tokens) exceeds the available context size (4 tokens)"],
    timings: [null, {}, { predicted_n: {}, prompt_n: [] }, { predicted_n: 1e308, predicted_ms: -1 }, ...odd],
    created: [0, -1, 1e15, 5],
  };
  await page.evaluate(() => dispatchEvent(new Event("beforeprint"))); // else those far from the view are not built
  for (let round = 0; round < 8; round++) {
    const id = `odd-${round}`;
    await put(page, `/api/conversations/${id}`, { title: id });
    const path = [];
    for (let number = 0; number < 12; number++) {
      const message = { id: `m-${round}-${number}`, parent: path.at(-1) ?? null, role: "user" };
      for (const [name, all] of Object.entries(values)) {
        if (name === "role" || random(3) === 0) message[name] = pick(all);
      }
      if ((await put(page, `/api/conversations/${id}/messages/${message.id}`, message)) === 200) path.push(message.id);
    }
    assert.ok(path.length > 3, `round ${round}, seed ${seed}`);
    await put(page, `/api/conversations/${id}`, { leaf: path.at(-1) });
    await page.goto(`${url}/#/chat/${id}`);
    await showsOnly(page, path, `conversation ${round} does not open, seed ${seed}`);
    assert.equal(await page.getByText(t("This message cannot be shown as usual. This is its text:")).count(), 0);
  }
  await say(page, "And it goes on");
}

/** Stop is there with text in the field and side by side, ends every answer, and lets the queue wait; so does Escape. */
export async function stops({ page, url }) {
  await shown(page, url, "drawn", [{ role: "user", content: "Draw" }, { content: "```html\n<b>drawn</b>\n```" }]);
  await press(page, "Preview"); // Escape does not close it, so it stops an answer
  await say(page, "Count");
  await begun(page);
  await field(page).press("Escape");
  const stopped = t("You stopped this answer.");
  await page.getByText(stopped).waitFor();
  const beside = page.locator("[role=group] article");
  const words = page.locator(".prose-chat p");
  await newChat(page);
  await press(page, "Models that answer too, side by side");
  await appears(page.getByRole("checkbox").first());
  for (const each of await page.getByRole("checkbox").all()) await each.check();
  await page.keyboard.press("Escape");
  for (const way of ["button", "Escape"]) {
    await enter(page, "Count");
    await until(() => beside.filter({ hasNotText: stopped, has: words }).count(), is(3), "three answer");
    await enter(page, "Then this");
    await page.getByText(t("Next:")).waitFor();
    await field(page).fill("In the field");
    await stop(page).waitFor();
    await send(page).waitFor();
    if (way === "button") await stop(page).click();
    else await page.keyboard.press("Escape");
    await until(() => beside.filter({ hasNotText: stopped }).count(), is(0), "all are stopped");
    const states = (await stored(page)).filter((each) => each.role === "assistant").map((each) => each.state);
    assert.deepEqual(new Set(states), new Set(["stopped"]));
    await button(page, "Send now").waitFor();
    await page.waitForTimeout(300); // nothing is sent by itself
    assert.ok(!contents(await stored(page)).includes("Then this"));
    await press(page, "Do not send it");
    assert.equal(await field(page).inputValue(), "In the field");
  }
}

/** The view follows an answer to its end however fast it is, and lets go with the first movement upwards. */
export async function scrolling({ page }) {
  const view = page.getByRole("region", { name: t("Messages") });
  const below = () => view.evaluate((each) => each.scrollHeight - each.scrollTop - each.clientHeight);
  await page.setViewportSize({ width: 900, height: 500 });
  for (let number = 0; number < 5; number++) {
    await enter(page, `Fast ${number}`);
    const over = (all) => all.length === 2 * number + 2 && all.every((each) => !each.state);
    await page.waitForFunction(() => location.hash.startsWith("#/chat/"));
    await until(() => stored(page), over, `answer ${number} is over`);
    await until(below, (distance) => distance < 5, `answer ${number} ends so many px below`);
    // The next question comes into view all the same. What grows at the very moment of a movement follows on.
    const away = button(page, "To the end");
    const leave = () => view.evaluate((each) => each.scrollTo({ top: 0 })).then(() => away.isVisible());
    await until(leave, is(true), "the end is out of view");
  }
}

/** A slow wheel or one key upwards is enough to stay where one reads; going down to the end follows again. */
export async function reading({ page }) {
  const view = page.getByRole("region", { name: t("Messages") });
  const top = () => view.evaluate((each) => each.scrollTop);
  await page.setViewportSize({ width: 900, height: 400 });
  await say(page, "Count");
  await page.waitForFunction(() => document.querySelector("[role=region]").scrollTop > 300);
  const growing = async () => {
    const height = await view.evaluate((each) => each.scrollHeight);
    await page.waitForFunction((height) => document.querySelector("[role=region]").scrollHeight > height + 60, height);
  };
  for (const up of [
    () => page.mouse.wheel(0, -20),
    () => view.press("ArrowUp"),
    () => view.evaluate((each) => (each.scrollTop -= 30)),
  ]) {
    const box = await view.boundingBox();
    await page.mouse.move(box.x + 200, box.y + 100);
    await up();
    await page.waitForTimeout(300); // a wheel moves for a while
    const before = await top();
    await growing();
    assert.equal(await top(), before, String(up));
    await page.mouse.wheel(0, 100_000);
    await button(page, "To the end").waitFor({ state: "detached" });
    await growing();
    assert.ok((await top()) > before + 20, "it follows again");
  }
  await stop(page).click();
}

/** A context that is full offers a summary of what came before, and asks again behind it. */
export async function full({ page, url, allow }) {
  allow(/ 404 .*api\/fit/); // the file is a stub
  await page.route(/chat\/completions/, (route) => {
    const body = route.request().postDataJSON();
    const isSummary = body.messages.at(-1).content.startsWith("Summarise");
    const fake = isSummary ? { script: '[{"text": "In short."}]' } : {};
    return route.continue({ postData: JSON.stringify({ ...body, fake }) });
  });
  await exchange(page, "First");
  await say(page, "Too long");
  await button(page, "Again").waitFor();
  await page.getByText(t("or ask another model:")).waitFor();
  await accessible(page, "full");
  await press(page, "Summarise what was said");
  await page.getByRole("heading", { name: t("Summary of what was said before") }).waitFor();
  await page.waitForFunction(() => document.querySelectorAll("article").length === 5);
  const labels = await messages(page).evaluateAll((all) => all.map((each) => each.getAttribute("aria-label")));
  assert.deepEqual(labels, ["You", "Assistant", "Summary of what was said before", "You", "Assistant"].map(t));
  const log = "  1 device\n  cudaMalloc failed: out of memory";
  const error = `model 'small' failed to start: no room; its last log lines:\n${log}`;
  await shown(page, url, "imported", [
    { role: "system", content: "Be brief." },
    { model: "small", state: "failed", error },
  ]);
  await page.getByRole("heading", { name: t("System prompt") }).waitFor();
  await page.getByText("no room", { exact: true }).waitFor();
  const way = (name) => page.getByRole("link", { name: t(name) }).waitFor();
  await Promise.all([way("What is in memory"), way("A smaller context (ctx-size)")]);
  await page.getByText(t("or ask another model:")).waitFor();
  await page.getByText(t("What the engine said last ({count})").replace("{count}", 2)).click();
  await page.getByText("cudaMalloc failed").waitFor();
  await accessible(page, "a load that failed");
  await press(page.getByRole("main"), "More");
  await saved(page, button(page, "Export as Markdown"), /^imported\.md$/);
}
