// Takes pictures of every screen in both themes and at phone width: node tests/web/look.mjs URL FOLDER
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import { open, say } from "./browser.mjs";

const [url, folder] = process.argv.slice(2);
mkdirSync(folder, { recursive: true });
const SIZES = { wide: { width: 1280, height: 800 }, phone: { width: 390, height: 780 } };

const { browser } = await open(url);
try {
  for (const theme of ["light", "dark"]) {
    for (const [size, viewport] of Object.entries(SIZES)) {
      const context = await browser.newContext({ viewport, colorScheme: theme, locale: "en-GB", deviceScaleFactor: 1 });
      const page = await context.newPage();
      const shot = (name) => page.screenshot({ path: join(folder, `${name}-${theme}-${size}.png`) });
      await page.goto(url);
      await page.getByRole("textbox", { name: "Ask anything" }).waitFor();
      await page.waitForTimeout(400); // fonts and transitions
      await shot("start");
      await say(page, "Hello! What can you do?");
      await page.getByText("The answer is complete.").waitFor({ state: "attached", timeout: 60_000 });
      await shot("chat");
      await page.getByRole("button", { name: "Parameters" }).click();
      await shot("parameters");
      for (const screen of ["models", "settings", "welcome"]) {
        await page.goto(`${url}/#/${screen}`);
        await page.getByRole("heading", { level: 1 }).waitFor();
        await page.waitForTimeout(300);
        await shot(screen);
      }
      await context.close();
    }
  }
} finally {
  await browser.close();
}
