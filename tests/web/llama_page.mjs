// What the test of llama.cpp's own page does with it in the browser (tests/e2e/test_llama_page.py). The page is as its
// source package builds it: nothing here may depend on how it looks, only on its words and roles.
import assert from "node:assert/strict";
import { another, api, launch, until } from "./browser.mjs";

const answers = (page) => page.getByRole("group", { name: "Assistant message with actions" });
const busy = (page) => page.getByRole("button", { name: "Stop", exact: true });
const lastText = async (page) => (await answers(page).last().innerText()).replace(/\s+/g, " ");

async function say(page, text) {
  const before = await answers(page).count();
  await page.getByRole("textbox").last().click();
  await page.keyboard.type(text);
  await page.getByRole("button", { name: "Send", exact: true }).click();
  await page.waitForFunction(
    (before) => document.querySelectorAll('[aria-label="Assistant message with actions"]').length > before,
    before,
  );
}

async function answered(page) {
  await busy(page).waitFor({ state: "hidden", timeout: 60_000 });
  await page.getByRole("button", { name: "Send", exact: true }).waitFor();
}

/** The text of a stream as the server has kept it. */
const kept = (page, id) =>
  page.evaluate(async (id) => {
    const answer = await fetch(`./v1/stream?conv_id=${encodeURIComponent(id)}&from=0`);
    const records = (await answer.text()).split("\n\n").filter((record) => record.startsWith("data: {"));
    return records.map((record) => JSON.parse(record.slice(6)).choices[0]?.delta.content ?? "").join("");
  }, id);

const slots = async (page, query = "") =>
  (await api(page, `./slots${query}`)).filter((slot) => slot.is_processing).length;

const soon = (look, what) => until(look, Boolean, what);

/** The place of a model in the list, which is opened. */
const offered = async (page, model) => {
  const chooser = page.getByRole("button", { name: /Select model|alpha|beta/ });
  await chooser.last().click();
  const group = page.getByRole("menuitem", { name: /No model|alpha|beta/ });
  await group.first().hover();
  return page.getByRole("option", { name: new RegExp(model) });
};

const states = async (page) =>
  Object.fromEntries((await api(page, "./v1/models")).data.map((model) => [model.id, model.status.value]));

export const scenarios = {
  /** One model on a real engine: an answer, a second turn, and both are there after a reload. */
  async single({ page }) {
    await say(page, "Hello! What can you do?");
    await answered(page);
    const first = await lastText(page);
    assert.ok(first.length > 20, first);
    await say(page, "What is a llama?");
    await answered(page);
    assert.equal(await answers(page).count(), 2);
    await page.reload();
    await answers(page).nth(1).waitFor();
    assert.ok((await answers(page).first().innerText()).replace(/\s+/g, " ").startsWith(first.slice(0, 20)));
  },

  /** An answer goes on through a reload, from where the page was, and is asked for once. */
  async resume({ page, asked }) {
    await say(page, "Tell me a long story.");
    await soon(async () => (await lastText(page)).split(" ").length > 8, "some words of the answer are there");
    await page.reload();
    const resumes = async () => asked.some(([method, path]) => method === "GET" && path.includes("/v1/stream"));
    await soon(resumes, "the page resumes");
    await answered(page);
    const posts = asked.filter(([method, path]) => method === "POST" && path.endsWith("/v1/chat/completions"));
    assert.equal(posts.length, 1, JSON.stringify(asked));
    const whole = (await kept(page, posts[0][2])).replace(/\s+/g, " ").trim();
    assert.ok(whole.split(" ").length > 40, whole);
    assert.ok((await lastText(page)).includes(whole), `${await lastText(page)}\nis not\n${whole}`);
  },

  /** Stop ends the generation on the server. */
  async stop({ page }) {
    await say(page, "Tell me a long story.");
    await soon(async () => (await lastText(page)).split(" ").length > 4, "some words of the answer are there");
    assert.equal(await slots(page), 1);
    await busy(page).click();
    await soon(async () => (await slots(page)) === 0, "the slot is free");
    await answered(page);
  },

  /** Router mode: a model is chosen, loads, answers; another one as well; and one is unloaded from the list. */
  async router({ page }) {
    assert.deepEqual(Object.keys(await states(page)).sort(), ["alpha", "beta"]);
    for (const model of ["alpha", "beta"]) {
      await (await offered(page, model)).click();
      await say(page, `Hello, ${model}!`);
      await answered(page);
      assert.equal((await states(page))[model], "loaded");
    }
    assert.equal(await answers(page).count(), 2);
    const alpha = await offered(page, "alpha");
    await alpha.hover();
    await alpha.getByRole("button").last().click();
    await soon(async () => (await states(page)).alpha === "unloaded", "alpha is unloaded");
    assert.equal((await states(page)).beta, "loaded");
  },
};

const [name, url] = process.argv.slice(2);
const browser = await launch();
const { page, wrong } = await another(browser, url);
const asked = [];
page.on("request", (request) => {
  const path = new URL(request.url()).pathname;
  if (!path.startsWith("/_app")) asked.push([request.method(), path, request.headers()["x-conversation-id"]]);
});
page.on("response", (response) => {
  const path = new URL(response.url()).pathname;
  if (response.status() >= 400 && path !== "/tools") {
    wrong.push(`${response.status()} ${response.request().method()} ${response.url()}`);
  }
});
try {
  page.setDefaultTimeout(30_000);
  await page.goto(url);
  await page.getByRole("textbox").first().waitFor();
  await scenarios[name]({ page, asked });
  assert.deepEqual(wrong, []);
  console.log(">> passed");
} catch (error) {
  console.log(error, JSON.stringify(asked));
  await page.screenshot({ path: process.env.PICTURE ?? "failed.png" }).catch(() => undefined);
  process.exitCode = 1;
} finally {
  await browser.close();
}
