// Speech: what is said stands in the field, and answers are read aloud.
import assert from "node:assert/strict";
import { is, until } from "../browser.mjs";
import { exchange, field, messages } from "../chat.mjs";
import { accessible, button, fits, press } from "../steps.mjs";
import { t } from "../words.mjs";

const microphone = (page) => button(page, "Speak");
const records = (page) => page.waitForFunction(() => window.tracks?.some((track) => track.readyState === "live"));
const released = (page) => page.waitForFunction(() => window.tracks.every((track) => track.readyState === "ended"));
const heard = (page) => page.waitForFunction(() => document.querySelector("textarea").value.includes("file="));

async function begins(page) {
  await microphone(page).press("Enter");
  await records(page);
}

/** Notes every microphone that the page is given. */
async function watch(page) {
  await page.evaluate(() => {
    window.tracks = [];
    const ask = navigator.mediaDevices.getUserMedia.bind(navigator.mediaDevices);
    navigator.mediaDevices.getUserMedia = async (wish) => {
      const stream = await ask(wish);
      window.tracks.push(...stream.getTracks());
      return stream;
    };
  });
}

/** Held, pressed twice, and by keyboard; Escape drops it, and the microphone is released each time. */
export async function spoken({ page, url }) {
  await page.setViewportSize({ width: 320, height: 700 });
  await watch(page);
  const live = () => page.evaluate(() => window.tracks.filter((track) => track.readyState === "live").length);
  const bytes = async () => (await field(page).inputValue()).match(/(?<=file=)\d+/g).map(Number);
  await field(page).fill("Before, after.");
  await field(page).evaluate((box) => box.setSelectionRange(7, 7));
  await microphone(page).hover();
  await page.mouse.down();
  await records(page);
  await page.waitForTimeout(1200);
  await accessible(page, "recording");
  await fits(page);
  await page.mouse.up();
  await heard(page);
  assert.match(await field(page).inputValue(), /^Before, model=4 response_format=4 file=\d+ after\.$/);
  const [held] = await bytes();
  assert.ok(held > 30_000 && held < 200_000, `${held} bytes of 16,000 samples a second`);
  for (const begin of [() => microphone(page).click(), () => microphone(page).press("Enter")]) {
    const before = (await bytes()).length;
    await begin();
    await records(page);
    assert.equal(await microphone(page).getAttribute("aria-pressed"), "true");
    await page.waitForTimeout(600);
    await begin();
    await until(async () => (await bytes()).length, is(before + 1), "it is written");
    assert.equal(await live(), 0);
  }
  const written = await field(page).inputValue();
  await begins(page);
  await page.keyboard.press("Escape");
  await released(page);
  assert.equal(await microphone(page).getAttribute("aria-pressed"), "false");
  assert.equal(await field(page).inputValue(), written);
  await begins(page);
  await page.goto(`${url}/#/settings`);
  await released(page);
}

/** Each way to begin and end that is easily got wrong: what of it is left, and that nothing is sent by itself. */
export async function gestures({ page }) {
  await watch(page);
  const pressed = () => microphone(page).getAttribute("aria-pressed");
  const cases = {
    "released beside the button": async () => {
      await microphone(page).hover();
      await page.mouse.down();
      await records(page);
      await page.waitForTimeout(500);
      await page.mouse.move(5, 5);
      await page.mouse.up();
      await heard(page);
    },
    "pressed with the right button": async () => {
      await microphone(page).click({ button: "right" });
      assert.equal(await pressed(), "false");
      await page.keyboard.press("Escape");
    },
    "Enter held down": async () => {
      await microphone(page).focus();
      for (const then of [async () => assert.equal(await pressed(), "true"), () => heard(page)]) {
        for (let at = 0; at < 12; at++) {
          await page.keyboard.down("Enter");
          await page.waitForTimeout(100);
        }
        await page.keyboard.up("Enter");
        await then();
      }
    },
    "the microphone is unplugged": async () => {
      await begins(page);
      await page.waitForTimeout(600);
      await page.evaluate(() => window.tracks.forEach((track) => track.stop()));
      await heard(page);
    },
    "Escape while it becomes text": async () => {
      let asked;
      const asks = new Promise((resolve) => (asked = resolve));
      await page.route("**/v1/audio/transcriptions", asked);
      await begins(page);
      await page.waitForTimeout(300);
      await microphone(page).press("Enter");
      await asks;
      assert.equal(await microphone(page).evaluate((box) => box === document.activeElement), true);
      await Promise.all([page.waitForEvent("requestfailed"), page.keyboard.press("Escape")]);
      await page.unroute("**/v1/audio/transcriptions");
      assert.equal(await field(page).inputValue(), "");
    },
  };
  const wrong = [];
  for (const [name, run] of Object.entries(cases)) {
    const sent = await messages(page).count();
    await run().catch((error) => wrong.push(`${name}: ${error.message.split("\n")[0]}`));
    for (let at = 0; at < 2; at++) await page.keyboard.press("Escape");
    if ((await pressed()) === "true") await microphone(page).click();
    await released(page);
    if ((await messages(page).count()) !== sent) wrong.push(`${name}: it was sent`);
    await page.goto("about:blank");
    await page.goBack();
    await microphone(page).waitFor();
    await watch(page);
    await field(page).fill("");
  }
  assert.deepEqual(wrong, []);
}

/** A microphone that is refused is told with what to do, and the button is as before. */
export async function refused({ page }) {
  await microphone(page).press("Enter");
  await page.getByText(t("The browser refuses the microphone. Allow it for this page.")).waitFor();
  assert.equal(await microphone(page).getAttribute("aria-pressed"), "false");
}

/** An answer is read in pieces without its code, the same button ends it, and another answer ends it too. */
export async function aloud({ page }) {
  const asked = [];
  page.on("request", (request) => request.url().endsWith("/v1/audio/speech") && asked.push(request.postDataJSON()));
  for (const text of ["One", "Two"]) await exchange(page, text);
  await until(() => button(page, "Read aloud").count(), is(2), "both can be read aloud");
  const [first, second] = [messages(page).nth(1), messages(page).nth(3)];
  const stop = (answer) => button(answer, "Stop reading");
  await press(first, "Read aloud");
  await stop(first).waitFor();
  await press(second, "Read aloud");
  await stop(second).waitFor();
  await stop(first).waitFor({ state: "detached" });
  await stop(second).click();
  await stop(second).waitFor({ state: "detached" });
  asked.length = 0;
  await press(first, "Read aloud");
  await stop(first).waitFor();
  await stop(first).waitFor({ state: "detached" });
  const said = asked.map((body) => body.input).join(" ");
  assert.match(said, /^Hello bold world\.\sa, b\s1, 2/);
  assert.ok(!said.includes("print"), said);
  assert.ok(asked.length > 1, said);
  assert.equal(asked[0].model, "mouth");
}
