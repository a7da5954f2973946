// Plays scenarios in one browser: each line of its input is one, `{"scenario": "FILE.FUNCTION", "url", "more", "picture"}`,
// a function of a file in scenarios/. Each has a context of its own, so storage, cache, console and downloads are apart.
// It is given the page, the words of `more`, and ways to talk to the test that asked for it: `told(word)` says how far it
// is and waits for a line, when the test has done its part. A scenario that fails ends this process, and the browser.
import assert from "node:assert/strict";
import { createInterface } from "node:readline";
import { another, launch, PATIENCE } from "./browser.mjs";

const TIME = 15 * 60_000; // of one scenario; it only bounds a failure
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const told = async (word) => {
  console.log(`>> ${word}`);
  const { done } = await lines.next();
  assert.ok(!done, "the test has ended");
};

async function play(browser, { scenario, url, more, picture }) {
  const [file, name] = scenario.split(".");
  const { [name]: run } = await import(`./scenarios/${file}.mjs`);
  const { page, wrong, allow } = await another(browser, url);
  page.setDefaultTimeout(PATIENCE);
  const all = [wrong];
  /** Another device, at this address. What goes wrong there counts as well. */
  const device = async (address = url, options = {}) => {
    const { page, wrong } = await another(browser, address, options);
    all.push(wrong);
    await page.goto(address);
    return page;
  };
  try {
    do {
      wrong.length = 0;
      await page.goto(url);
    } while (wrong.some((told) => told.includes("ERR_NETWORK_CHANGED"))); // another test on this machine made an interface
    await run({ page, browser, device, url, told, wrong, allow, more, seed: Number(process.env.SEED ?? 7) });
    assert.deepEqual(all.flat(), []);
  } catch (error) {
    await page.screenshot({ path: picture }).catch(() => undefined);
    throw error;
  }
  for (const context of browser.contexts()) await context.close();
}

const late = () => process.exit(console.log(`not over after ${TIME / 1000} s`) ?? 1);
const browser = await launch();
browser.on("disconnected", () => process.exit());
for await (const line of lines) {
  const timer = setTimeout(late, TIME);
  await play(browser, JSON.parse(line));
  clearTimeout(timer);
  console.log(">> passed");
}
await browser.close();
