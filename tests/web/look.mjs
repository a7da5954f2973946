// Takes pictures of every screen in both themes and at phone width, and two sheets of them all, page-light.webp and
// page-dark.webp: node tests/web/look.mjs URL FOLDER. The server is a fresh one with a model `small`; it gets examples.
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { asked, launch, store } from "./browser.mjs";

const [url, folder] = process.argv.slice(2);
mkdirSync(folder, { recursive: true });
const SIZES = { wide: { width: 1100, height: 760 }, phone: { width: 390, height: 760 } };
const CARD =
  "<style>body{font:16px system-ui;padding:2rem;background:linear-gradient(135deg,#dbe4ff,#fff3bf)}</style>\n<h1>Heat pump</h1>\n<p>Three units of heat for one of electricity.</p>";
const ANSWER = `A **heat pump** moves heat instead of making it. It works like a refrigerator that runs backwards:

1. A fluid boils at a low temperature and takes heat from the air outside.
2. A compressor squeezes the vapour, which makes it hot.
3. Inside, the vapour gives its heat away and becomes liquid again.

For each unit of electricity you get about three units of heat, the *coefficient of performance*:

$$\\mathrm{COP} = \\frac{Q}{W} \\approx 3$$

\`\`\`python
def heat(watts: float, cop: float = 3.0) -> float:
    """Watts of heat for so many watts of electricity."""
    return watts * cop
\`\`\`
`;
const TABLE = `| outside | COP | heat of 2 kW |
|---|---|---|
| 7 °C | 4.1 | 8.2 kW |
| -7 °C | 2.7 | 5.4 kW |

As a card:

\`\`\`html
${CARD}
\`\`\`
`;

const timings = { prompt_n: 31, predicted_n: 212, predicted_ms: 5300, predicted_per_second: 40 };
const answer = (content, more = {}) => ({ content, model: "small", timings, timestamp: Date.now(), ...more });
const ASKED = "Explain how a heat pump works in three sentences.";
const EXAMPLES = [
  { id: "look-2", name: "Plan a weekend in the Alps", said: ["Plan a weekend in the Alps"] },
  {
    id: "look-1",
    name: ASKED,
    said: [
      ASKED,
      answer(ANSWER, { reasoningContent: "Short, with the formula." }),
      {
        content: "How well does it do in winter?",
        extra: [{ type: "TEXT", name: "readings.csv", content: "-7;2.7" }],
      },
      answer(TABLE),
    ],
  },
].map((each) => ({
  ...each,
  when: Date.now(),
  said: each.said.map((one) => ({ timestamp: Date.now(), ...(one.content ? one : { content: one }) })),
}));

const browser = await launch();
try {
  const place = `${url}/#/chat/${(await store(url, ...EXAMPLES)).at(-1)}`;
  await asked(url, "small", ASKED); // what the views of the machine tell of
  for (const theme of ["light", "dark"]) {
    for (const [size, viewport] of Object.entries(SIZES)) {
      const still = { locale: "en-GB", deviceScaleFactor: 1, reducedMotion: "reduce" };
      const context = await browser.newContext({ viewport, colorScheme: theme, ...still });
      const page = await context.newPage();
      let count = 0;
      const shot = async (name) => {
        await page.waitForTimeout(400); // fonts, highlighting, maths
        await page.screenshot({ path: join(folder, `${size}-${theme}-${++count}-${name}.png`) });
      };
      await page.goto(url);
      await page.getByRole("heading", { level: 1 }).waitFor();
      await shot("start");
      await page.goto(place);
      const messages = page.getByRole("article");
      await messages.last().getByRole("button", { name: "Preview" }).waitFor();
      await messages.nth(1).scrollIntoViewIfNeeded();
      const region = page.getByRole("region", { name: "Messages" });
      await region.evaluate((each) => each.scrollTo({ top: 0 }));
      await shot("chat");
      await messages.last().getByRole("button", { name: "Preview" }).click();
      await messages.last().frameLocator("iframe").getByRole("heading").waitFor();
      await region.evaluate((each) => each.scrollTo({ top: each.scrollHeight }));
      await shot("preview");
      await page.getByRole("button", { name: "Parameters" }).click();
      await shot("parameters");
      await page.getByRole("button", { name: "Close", exact: true }).click();
      if (size === "phone") {
        await page.getByRole("button", { name: "Show the conversations" }).click();
        await shot("conversations");
      }
      const views =
        size === "wide" ? ["why", "memory", "activity", "logs", "disk"].map((view) => `machine/${view}`) : [];
      for (const screen of ["models", "settings", "welcome", ...views]) {
        await page.goto(`${url}/#/${screen}`);
        await page.getByRole("heading", { level: 1 }).waitFor();
        await shot(screen.replace("/", "-"));
      }
      await context.close();
    }
    await sheet(theme);
  }
} finally {
  await browser.close();
}

/** All pictures of a theme side by side, at half their size. */
async function sheet(theme) {
  const page = await browser.newPage({ viewport: { width: 1700, height: 900 } });
  const names = readdirSync(folder)
    .filter((name) => name.includes(`-${theme}-`))
    .sort()
    .reverse(); // the wide ones first
  const images = names.map(
    (name) => `<img height="380" src="data:image/png;base64,${readFileSync(join(folder, name)).toString("base64")}">`,
  );
  await page.setContent(
    `<body style="margin:0;padding:10px;display:flex;flex-wrap:wrap;gap:10px;background:#888">${images.join("")}`,
  );
  const devtools = await page.context().newCDPSession(page); // the only one that makes WebP
  const { data } = await devtools.send("Page.captureScreenshot", {
    format: "webp",
    quality: 60,
    captureBeyondViewport: true,
  });
  writeFileSync(join(folder, `page-${theme}.webp`), Buffer.from(data, "base64"));
  await page.close();
}
