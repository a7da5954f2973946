// Plays one scenario in the browser: `node play.mjs MODULE NAME URL`, where MODULE is a file of scenarios/ and NAME one of
// its functions. Each is given the page and ways to talk to the test that started it: `told(word)` says how far it is and
// waits until the test has done its part.
import assert from "node:assert/strict";
import { open } from "./browser.mjs";

const [module, name, url] = process.argv.slice(2);
const { [name]: scenario } = await import(`./scenarios/${module}.mjs`);
const insecure = process.argv.includes("--insecure");
const { browser, page, wrong, allow } = await open(url);
const told = async (word) => {
  console.log(`>> ${word}`);
  await new Promise((resolve) => process.stdin.once("data", resolve));
};
try {
  page.setDefaultTimeout(20_000);
  await page.goto(url);
  if (insecure) assert.equal(await page.evaluate(() => isSecureContext), false);
  await scenario({ page, browser, url, told, wrong, allow, seed: Number(process.env.SEED ?? 1) });
  assert.deepEqual(wrong, []);
  console.log(">> passed");
} catch (error) {
  console.log(error);
  await page.screenshot({ path: process.env.PICTURE ?? "failed.png" }).catch(() => undefined);
  process.exitCode = 1;
} finally {
  await browser.close();
  process.stdin.destroy();
}
