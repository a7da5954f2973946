// The first minutes, and what an answer says of itself while it comes.
import assert from "node:assert/strict";
import { api } from "../browser.mjs";
import { answered, enter, exchange, messages, say, stopAnswer } from "../chat.mjs";
import { emptyChat, greeting } from "../sides.mjs";
import { accessible, appears, button, fetchModel, pasted, press, searchHub, shows } from "../steps.mjs";
import { hundredth, like, line, seconds, size, t } from "../words.mjs";

const WISHES = ["Fast", "Balanced", "Best that fits"].map(t);
const welcome = (page) => page.getByRole("heading", { name: t("Welcome. First you need a model.") });
const card = (page, wish) => page.getByRole("article", { name: wish, exact: true });

/** With the demo alone the cards come first; somebody who wants the chat has it, from then on. */
export async function dismissed({ page, url }) {
  await page.addInitScript(() => {
    const seen = new MutationObserver(() => (window.flashed ||= !!document.querySelector("textarea")));
    seen.observe(document, { childList: true, subtree: true });
  });
  await page.goto(`${url}/?watched`);
  await welcome(page).waitFor();
  assert.ok(!(await page.evaluate(() => window.flashed)), "a chat was shown first");
  for (const wish of WISHES) {
    await appears(card(page, wish).getByRole("button", { name: line(like("getIt", { size: size() })) }));
  }
  const demo = await page.getByRole("heading", { name: t("Or try the demo") }).boundingBox();
  assert.ok((await card(page, t("Fast")).boundingBox()).y < demo.y);
  await accessible(page, "welcome with the demo");
  await page.getByRole("link", { name: t("Not now, go to the chat") }).click();
  await greeting(page).waitFor();
  await page.goto(url);
  await page.reload();
  await greeting(page).waitFor();
  await page.getByText(t("Where does my text go?")).click();
  await page.getByRole("link", { name: t("Get a real model") }).click();
  await welcome(page).waitFor();
}

/** A question to the demo is one click; afterwards the way to the cards stays, and the chat is the first thing. */
export async function tried({ page, url }) {
  await welcome(page).waitFor();
  await press(page, "What is Llama Appliance?");
  await answered(page);
  await page.getByRole("link", { name: t("Get a real model") }).waitFor();
  await page.evaluate(() => localStorage.clear()); // another browser
  await page.goto(`${url}/?again`);
  await greeting(page).waitFor();
  await page.goto(`${url}/#/models`);
  await appears(messages(page).first().getByText(like("demoWhat")));
  for (const wish of WISHES) await card(page, wish).waitFor();
  await appears(page.getByText(/llama-appliance.models$/).first()); // the folder for files of one's own
  await accessible(page, "models with the demo");
}

/** A model that has come is what a new chat talks to, though the demo is loaded; and nothing but a name is a name. */
export async function real({ page, url }) {
  await press(page, "What is Llama Appliance?");
  await answered(page);
  await page.goto(`${url}/#/models`);
  const asked = [];
  page.on("request", (request) => request.method() === "POST" && asked.push(request.url()));
  const complaints = []; // of the pattern
  page.on("console", (message) => /pattern|regular/i.test(message.text()) && complaints.push(message.text()));
  const name = page.getByLabel(t("Get a model from Hugging Face"));
  for (const text of ["gemma", "acme/", "a/b/c", "acme/big-GGUF:Q8_0 "]) {
    await name.fill(text);
    assert.equal(await name.evaluate((field) => field.validity.valid), text.endsWith(" "), text);
    assert.deepEqual([asked, complaints], [[], []]);
    await press(page, "Download");
  }
  await button(messages(page).filter({ hasText: "acme/big" }), "Chat").waitFor();
  await emptyChat(page, url);
  await page.getByText(t("Help me plan a weekend without screens.")).waitFor();
  await exchange(page, "Hi");
  assert.match((await messages(page).last().innerText()).replace(/\s+/g, " "), /acme\/big/);
}

/** Without a hub the cards say what to carry here, and a name or a search is answered in the page's own words. */
export async function carried({ page, url, told, allow }) {
  allow(/ 502 .*\/(hub\/search|models)/);
  await welcome(page).waitFor();
  await searchHub(page, "big");
  await page.getByRole("button", { name: /acme\/big-GGUF/ }).waitFor();
  await told("gone");
  await fetchModel(page, "acme/big-GGUF");
  await appears(page.getByRole("status").getByText(like("hubAway")));
  assert.equal(await page.getByLabel(t("Get a model from Hugging Face")).inputValue(), "acme/big-GGUF");
  await press(page, "Search");
  await appears(page.getByRole("region", { name: t("Search Hugging Face for models") }).getByText(like("hubAway")));
  assert.equal(await page.getByRole("alert").count(), 0);
  await press(page, "Show the files to fetch elsewhere");
  assert.match(await page.evaluate(() => document.activeElement.textContent), new RegExp(`^${like("offline").source}`));
  await page.goto(`${url}/?offline#/models`);
  const { data, folder, hub, online } = await api(page, "/api/recommended");
  assert.equal(online, false);
  for (const [at, wish] of WISHES.entries()) {
    const { file, repository, sha256 } = data[at].model;
    const facts = [`${hub}/${repository}/resolve/main/${file}`, sha256, folder];
    for (const fact of facts) await card(page, wish).getByText(fact, { exact: true }).waitFor();
    await shows(card(page, wish), new RegExp(`^${t("File")} \\(${size().source}\\)$`), line(file));
    await press(card(page, wish), "Copy these details");
    await button(card(page, wish), "Copied").waitFor();
    const copied = await pasted(page);
    for (const fact of facts) assert.ok(copied.includes(fact), `${fact} in ${copied}`);
  }
  assert.equal(await page.getByRole("button", { name: t("Download") }).count(), 0);
  await accessible(page, "offline");
}

/** What the line of an answer says from now on, and what of it is announced: each once, in order. */
async function watch(page) {
  await page.evaluate(() => {
    window.said = [];
    window.announced = [];
    const note = (list, text) => text && list.at(-1) !== text && list.push(text);
    new MutationObserver(() => {
      for (const line of document.querySelectorAll("[data-phase]")) {
        note(window.said, `${line.dataset.phase}: ${line.innerText}`);
        note(window.announced, line.querySelector("[role=status]").innerText);
      }
    }).observe(document.body, { subtree: true, childList: true, characterData: true, attributes: true });
  });
}

const tells = (said, phase) => assert.ok(said.some(phase.test.bind(phase)), said.join("\n"));

/** One answer from the load to an engine that falls silent, in one line. */
export async function phases({ page }) {
  await page.clock.install();
  await watch(page);
  await say(page, "Count");
  await page.locator("[data-phase=answering]").waitFor({ state: "attached" });
  const caret = (place) => place.evaluate((element) => getComputedStyle(element, "::after").content);
  await page.getByText("Once upon a time a").waitFor();
  assert.equal(await caret(messages(page).last().locator("p").first()), '""');
  await page.clock.fastForward(30_000);
  await page.getByText(line(t("Nothing new from the model"), like("timePassed", { time: seconds(/3\d/) }))).waitFor();
  assert.equal(await caret(messages(page).last().locator("p").first()), "none");
  await accessible(page, "phases");
  const said = await page.evaluate(() => window.said);
  const stages = said.map((line) => line.split(":")[0]);
  const seen = stages.filter((phase, at) => phase !== stages[at - 1] && phase !== "waiting");
  assert.deepEqual(seen, ["loading", "reading", "answering", "silent"], said.join("\n"));
  const left = like("timeLeft", { time: seconds(/\d/) });
  tells(said, line(`loading: ${t("Loading the model")}`, hundredth(/\d+/), left));
  tells(said, line(`reading: ${t("Reading the conversation")}`, hundredth(/[1-9]0/)));
  const announced = await page.evaluate(() => window.announced);
  assert.ok(!announced.some((text) => /\d/.test(text)), announced.join("\n"));
  assert.ok(announced.includes(t("Nothing new from the model")));
  await stopAnswer(page);
}

/** Whatever the text ends with, there is one caret, in the element that holds its end or below it. */
export async function carets({ page }) {
  for (const [at, holder] of ["P", "LI", "LI", "P", "DIV", "DIV", "H2", "P"].entries()) {
    await say(page, `Turn ${at}`);
    const answer = messages(page).last();
    await answer.getByText("end").waitFor();
    const found = await answer.evaluate((article) =>
      [...article.querySelectorAll(".prose-chat, .prose-chat *")]
        .filter((each) => getComputedStyle(each, "::after").content === '""')
        .map((each) => each.tagName),
    );
    assert.deepEqual(found, [holder], `turn ${at}`);
    await stopAnswer(page);
  }
}

/** A model that has to wait for another one says its place, in every tab, and how long it takes at least. */
export async function queued({ page, url }) {
  await page.goto(`${url}/#/models`);
  for (const name of ["other", "small"]) {
    const model = messages(page).filter({ hasText: name });
    await press(model, "Load");
    await model.getByText(t("Loaded"), { exact: true }).waitFor();
  }
  await emptyChat(page, url);
  await say(page, "Count");
  await page.locator("[data-phase=answering]").waitFor({ state: "attached" });
  const waiting = await page.context().newPage();
  await waiting.goto(`${url}/#/models`);
  await press(messages(waiting).filter({ hasText: "other" }), "Chat");
  await watch(waiting);
  await enter(waiting, "Me too");
  await appears(waiting.getByText(line(t("In the queue"), t("place 1"), like("timeAtLeast", { time: seconds(/\d/) }))));
  const third = await page.context().newPage();
  await third.goto(waiting.url());
  await third.getByText(new RegExp(`^${t("In the queue")} · ${t("place 1")}`)).waitFor();
  await press(page, "Stop");
  await waiting.locator("[data-phase=answering]").waitFor({ state: "attached" });
  tells(await waiting.evaluate(() => window.said), /^loading: /);
}
