// What a model writes, as the page shows it.
import assert from "node:assert/strict";
import { countTasks } from "../browser.mjs";
import { answered, exchange, messages, say } from "../chat.mjs";
import { accessible, appears, axe, fits, press, shows } from "../steps.mjs";
import { line } from "../words.mjs";

/** In so many pieces a long answer comes. */
const FRAMES = 200;

/** Model output that wants to be more than text. */
export async function hostile({ page, browser }) {
  await page.evaluate(() => void (window.hit = 0));
  await exchange(page, "Attack");
  await page.evaluate(() => dispatchEvent(new Event("beforeprint"))); // all of it is built
  const answer = messages(page).last().locator(".prose-chat");
  assert.equal(await answer.locator("script, iframe, object, embed, form, svg:not(button svg), style, img").count(), 0);
  const links = await answer.locator("a").evaluateAll((all) => all.map((a) => a.getAttribute("href")));
  assert.ok(links.length >= 1);
  const others = links.filter((href) => !/^(https?|mailto):/.test(href));
  assert.deepEqual(others, []);
  const own = answer.locator(":not(math, math *)"); // whose styles are the library's
  const named = await own.evaluateAll((all) => all.flatMap((each) => each.getAttributeNames()));
  assert.ok(!named.some((name) => /^on|^style$/.test(name)), named.join());
  assert.equal(await page.evaluate(() => window.hit), 0);
  for (const said of [/<script>/, /⟨U\+202E⟩/]) assert.match(await answer.textContent(), said);
  assert.equal(await answer.locator("math").count(), 1);
  assert.ok((await answer.locator(".hljs-keyword").count()) > 0);
  await accessible(page, "hostile");
  assert.ok(browser.isConnected());
}

/** HTML of a model is shown as it looks. Whatever a person does in it, nothing is asked of anybody. */
export async function preview({ page, url, told, wrong }) {
  await exchange(page, "Draw");
  const block = messages(page).last().locator(".code").first();
  const source = await block.locator("pre").innerText();
  await press(block, "Preview");
  const inside = block.frameLocator("iframe");
  const heading = inside.getByRole("heading", { name: "A page" });
  await heading.waitFor();
  assert.equal(await heading.evaluate((element) => getComputedStyle(element).color), "rgb(1, 2, 3)");
  const things = inside.locator("a, area, button, input, td, text");
  assert.ok((await things.count()) > 5);
  for (const thing of await things.all()) {
    await thing.hover({ force: true, timeout: 1000 }).catch(() => undefined);
    await thing.click({ force: true, timeout: 1000, button: "middle" }).catch(() => undefined);
    await thing.click({ force: true, timeout: 1000 }).catch(() => undefined);
  }
  await page.waitForTimeout(1000); // what was begun without being waited for
  assert.equal(await inside.locator("html").getAttribute("data-ran"), null);
  assert.equal(await heading.innerText(), "A page"); // it is still there
  // A link within the preview may be opened in a tab, which is the empty sandbox then.
  for (const each of page.context().pages()) assert.ok(each.url().startsWith(url), each.url());
  assert.equal(await page.evaluate(() => window.hit), undefined);
  await accessible(page, "preview");
  await told("nothing");
  await press(block, "Close the preview");
  await block.locator("iframe").waitFor({ state: "detached" });
  wrong.length = 0; // it has what the preview was refused
  const stays = source
    .replace(/<meta[^>]+>/g, "")
    .replace("top.location =", "")
    .replaceAll("preview.example", "control.example");
  const [control, scripted] = [await page.context().newPage(), await page.context().newPage()];
  for (const each of [control, scripted]) await each.goto(`${url}/health`); // of the same server, without a policy
  // By itself: in the page it waits for styles, which nobody answers.
  await scripted.evaluate(/<script>\n([^]*?)<\/script>/.exec(stays)[1]);
  await control.evaluate((stays) => {
    document.open();
    document.write(stays);
    document.close();
  }, stays);
  await told("everything");
}

/** The words of these cells that stand in more than one line. */
function broken(cells) {
  const found = [];
  for (const cell of cells) {
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    for (let text = texts.nextNode(); text; text = texts.nextNode()) {
      for (const word of text.data.matchAll(/[\p{L}\p{N}.,]+/gu)) {
        const range = document.createRange();
        range.setStart(text, word.index);
        range.setEnd(text, word.index + word[0].length);
        if (new Set([...range.getClientRects()].map((part) => Math.round(part.top))).size > 1) found.push(word[0]);
      }
    }
  }
  return found;
}

/** No word and no number of a table is broken, however narrow it is; headings follow one another, and names differ. */
export async function tables({ page }) {
  await exchange(page, "Prices");
  for (const width of [320, 768, 1280]) {
    await page.setViewportSize({ width, height: 800 });
    assert.deepEqual(await messages(page).last().locator("td, th").evaluateAll(broken), [], `at ${width} px`);
    await fits(page, `${width} px`);
  }
  assert.equal(await messages(page).last().locator("td br").count(), 1);
  await page.evaluate(axe);
  const rules = ["heading-order", "landmark-unique", "page-has-heading-one"];
  const { violations } = await page.evaluate((runOnly) => window.axe.run(document, { runOnly }), rules);
  const bad = violations.map((found) => `${found.id}: ${found.nodes.map((node) => node.html)}`);
  assert.deepEqual(bad, []);
}

/** Details fold as they do elsewhere: shut at first, and what a person opens stays open while more comes. */
export async function folds({ page }) {
  await say(page, "Explain");
  const fold = messages(page).last().locator("details");
  const step = fold.getByText("Step 3", { exact: true });
  await fold.locator("summary").click();
  await shows(fold, line("Step 3"), line("Step 9"));
  await answered(page);
  assert.equal(await fold.evaluate((each) => each.open), true);
  await appears(messages(page).last().getByText("After it."));
  await accessible(page, "details");
  await fits(page);
  await page.reload();
  await step.waitFor({ state: "hidden" });
  await fold.locator("summary").focus();
  await page.keyboard.press("Enter");
  await step.waitFor();
}

/**
 * The processor's time for each frame, early and late in an answer; the parts of a list look like one.
 *
 * Each frame gets the same share of the answer. By the engine's pace a busy machine draws fewer frames, with more text in each.
 */
export async function growing({ page, more: [steepest] }) {
  const devtools = await page.context().newCDPSession(page);
  await devtools.send("Performance.enable", { timeDomain: "threadTicks" });
  await page.addInitScript((frames) => {
    window.given = 0;
    const { fetch } = window;
    window.fetch = async (...asked) => {
      const answer = await fetch(...asked);
      // The news of the server would bring the whole answer before its time.
      if (answer.url.endsWith("/conversations/events")) return new Response(new ReadableStream(), answer);
      if (!answer.url.endsWith("/chat/completions")) return answer;
      const records = (await answer.text()).split(/(?<=\n\n)/);
      const place = (part) => Math.ceil((records.length * part) / frames);
      const pull = async (stream) => {
        await new Promise(requestAnimationFrame);
        const next = records.slice(place(window.given), place(++window.given));
        if (next.length) stream.enqueue(new TextEncoder().encode(next.join("")));
        else stream.close();
      };
      return new Response(new ReadableStream({ pull }), answer);
    };
  }, FRAMES);
  const found = await countTasks(page);
  await page.goBack();
  await say(page, "Write");
  const samples = [];
  for (let given = 0; given <= FRAMES;) {
    const [asked, frames] = [devtools.send("Performance.getMetrics"), page.evaluate(() => window.given)];
    const { metrics } = await asked;
    given = await frames;
    samples.push({ time: metrics.find((each) => each.name === "TaskDuration").value * 1000, given });
    await page.waitForTimeout(50);
  }
  await answered(page);
  const cost = (from, to) => {
    const within = samples.filter(({ given }) => given > FRAMES * from && given <= FRAMES * to);
    const [first, last] = [within[0], within.at(-1)];
    return (last.time - first.time) / (last.given - first.given);
  };
  const [begin, end] = [cost(0.02, 0.34), cost(0.66, 1)];
  const tasks = await found();
  const size = await page.evaluate(() => document.querySelector("article:last-of-type .prose-chat").textContent.length);
  console.log(
    `${size} characters: ${begin.toFixed(1)} ms a frame at first, ${end.toFixed(1)} at last; tasks over 50 ms: ${tasks.join(", ") || "none"}`,
  );
  assert.ok(end < steepest * begin, `${begin} and ${end} ms`);
  const distances = await page.evaluate(() => {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(".prose-chat > * { content-visibility: visible !important }");
    dispatchEvent(new Event("beforeprint")); // all of it is built
    document.adoptedStyleSheets = [sheet];
    if (document.querySelector(".prose-chat > div > :not(ul)")) return [];
    const tops = [...document.querySelectorAll(".prose-chat li")].map((item) => item.getBoundingClientRect().top);
    return tops.slice(1).map((top, at) => Math.round(top - tops[at]));
  });
  assert.ok(new Set(distances).size <= 1, distances.join());
}
