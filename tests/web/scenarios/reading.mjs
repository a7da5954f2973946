// What is said in a conversation, as it is read: formulas, files, long code, and on paper.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { another, shown, upload } from "../browser.mjs";
import { messages } from "../chat.mjs";
import { accessible, appears, button, escapes, fits, pasted, press } from "../steps.mjs";
import { like, look, number, t } from "../words.mjs";

const library = (name) =>
  readFileSync(new URL(`../../../appliance/web/node_modules/temml/dist/${name}`, import.meta.url));

/** What models write; the number of lines that are drawn beside those of the maths itself. */
const MATRICES = ["matrix", "pmatrix", "bmatrix", "Bmatrix", "vmatrix", "Vmatrix", "smallmatrix"];
const ALIGNED = ["cases", "dcases", "rcases", "aligned", "align", "align*", "alignedat", "gathered", "gather", "split"];
const FORMULAS = [
  ...MATRICES.map((name) => [String.raw`\begin{${name}}1&2&3\\4&5&6\end{${name}}`, 0]),
  ...ALIGNED.map((name) => {
    const line = /^gather/.test(name) ? String.raw`a=1\\b=2` : String.raw`a&=1\\b&=2`;
    return [String.raw`\begin{${name}}${name === "alignedat" ? "{1}" : ""}${line}\end{${name}}`, 0];
  }),
  [String.raw`\begin{equation}x=1\end{equation}`, 0],
  [String.raw`\begin{array}{cc}1&2\\3&4\end{array}`, 0],
  [String.raw`\begin{array}{c|c}1&2\\\hline3&4\end{array}`, 4],
  [String.raw`\begin{array}{|l|r|}\hline1&2\\\hline3&4\\\hline\end{array}`, 12],
  [String.raw`\left[\begin{array}{cc|c}1&2&3\\4&5&6\end{array}\right]`, 2],
  [String.raw`\begin{array}{c:c}1&2\\\hdashline3&4\end{array}`, 4],
  [String.raw`\left(\begin{matrix}1&2\\3&4\end{matrix}\right)\begin{pmatrix}x\\y\end{pmatrix}`, 0],
  ...String.raw`\frac{a+b}{c} \dfrac{1}{2} \tfrac12 \cfrac{1}{1+\cfrac{1}{x}} \sqrt{x+1} \sqrt[3]{x} \binom{n}{k} \sum_{i=1}^{n}i^2
\prod_{i=1}^{n}i \int_0^\infty{e^{-x}}dx \oint_C{F} \iint_D{f} \lim_{x\to0}f(x) \max_{x}f \operatorname*{argmax}_{x}f x_i^2 f'(x) f''
\hat{x} \bar{x} \tilde{x} \vec{v} \dot{x} \ddot{x} \widehat{abc} \widetilde{abc} \overrightarrow{AB}
\overbrace{a+b+c}^{n} \underbrace{a+b+c}_{n} \text{if}\;x \textbf{b} \mathrm{d}x \mathbf{x} \mathbb{R} \mathcal{L} \mathscr{L} \mathfrak{g}
\boldsymbol{\alpha} \xrightarrow{\text{heat}} \xleftarrow[b]{a} \left(\frac{1}{2}\right) \left\{\frac{a}{b}\right. \left|\frac{a}{b}\right|
\left\lfloor\frac{a}{b}\right\rfloor \bigl(x\bigr) \Bigg(x\Bigg) \lVert{x}\rVert \substack{a\\b} \overset{!}{=} \underset{x}{=} \stackrel{a}{=}
\color{red}x \textcolor{blue}{x} \colorbox{yellow}{x} x\pmod{n} a\bmod{b} \not= \mbox{one} \mathds{1} \ce{2H2+O2->2H2O}
\ce{SO4^2-} \ce{A<=>B} \pu{1.2J} \phantom{x}y \tag{3}x 90^\circ \ldots\cdots\ddots a\,b\;c\quad{d} \underbrace{\frac{a}{b}}_{\text{rate}}`
    .split(/\s+/)
    .map((text) => [text, 0]),
  [String.raw`\boxed{E=mc^2}`, 4],
  ...["overline", "underline", "cancel", "bcancel", "xcancel"].map((name) => [`\\${name}{x+1}`, 1]),
];

/** Each part of each formula: its place in the formula, and what is drawn around it. */
function measured() {
  return [...document.querySelectorAll("math")].map((math) => {
    const origin = math.getBoundingClientRect();
    return [math, ...math.querySelectorAll("*:not(.tml-eqn)")].map((part) => {
      const { left, top, width, height } = part.getBoundingClientRect();
      const style = getComputedStyle(part);
      const sides = ["Top", "Right", "Bottom", "Left"].map((side) => parseFloat(style[`border${side}Width`]));
      // Firefox draws the lines of this element itself.
      const drawn = part.nodeName === "menclose" && CSS.supports("-moz-appearance: none");
      const struck = drawn || (style.clipPath !== "none" && width > 1 && height > 1);
      return {
        name: part.nodeName,
        place: [left - origin.left, top - origin.top, width, height].map((each) => Math.round(each * 10) / 10),
        lines: sides.filter((width) => width > 0).length + (struck ? 1 : 0),
      };
    });
  });
}

/** Every construct that models use is laid out as in a page that has no styles but the library's. */
export async function formulas({ page, url }) {
  const said = FORMULAS.map(([text]) => `$$${text}$$`);
  await shown(page, url, "formulas", [{ content: [...said, String.raw`$\unheardof{x}$ stays`].join("\n\n") }]);
  await page.evaluate(() => dispatchEvent(new Event("beforeprint"))); // else those far from the view are not built
  await page.waitForFunction((count) => document.querySelectorAll("math").length === count, FORMULAS.length);
  await page.evaluate(() => {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(".prose-chat > * { content-visibility: visible !important }");
    document.adoptedStyleSheets = [sheet];
  });
  await page.evaluate(() => document.fonts.ready);
  const found = await page.evaluate(measured);
  const all = await page.evaluate(() =>
    [...document.querySelectorAll("math")].map((math) => [math.outerHTML, math.parentElement.clientWidth]),
  );
  const bare = await page.context().newPage();
  await bare.goto(`${url}/health`); // of the same server, without a policy
  const font = `data:font/woff2;base64,${library("Temml.woff2").toString("base64")}`;
  const styles = library("Temml-Local.css").toString().replace("'Temml.woff2'", `'${font}'`);
  const own = 'math { font-family: "Cambria Math", "DejaVu Math TeX Gyre", math } .tml-eqn { display: none }';
  const each = ([html, width]) => `<div style="width: ${width}px; text-align: center">${html}</div>`;
  const head = `<!doctype html><style>${styles} ${own}</style><div style="font: 16px/1.6 system-ui">`;
  await bare.setContent(`${head}${all.map(each).join("")}</div>`);
  await bare.evaluate(() => document.fonts.ready);
  const wanted = await bare.evaluate(measured);
  await bare.close();
  for (const [at, [text, lines]] of FORMULAS.entries()) {
    const [mine, theirs] = [found[at], wanted[at]];
    assert.equal(mine.length, theirs.length, text);
    for (const [part, each] of mine.entries()) {
      const away = each.place.map((value, side) => Math.abs(value - theirs[part].place[side]));
      const told = `${text}: ${each.name} lies at ${each.place} and not at ${theirs[part].place}`;
      assert.ok(Math.max(...away) <= 1, told);
      assert.equal(each.lines, theirs[part].lines, `${text}: lines of ${each.name}`);
    }
    const drawn = mine.reduce((sum, each) => sum + each.lines, 0);
    assert.equal(drawn, lines, `${text}: lines`);
  }
  await page.getByText(String.raw`\unheardof{x} stays`).waitFor();
  await accessible(page, "formulas");
  await fits(page);
}

const picture = (width, height) =>
  `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}"><script>parent.hit = 1</script><rect width="100%" height="100%" fill="#3b5bdb"/></svg>`;
const LONG = `${"a very long name of a report ".repeat(5)}final-version-7.txt`;

/** Files and pictures stay in the page, whatever their names, and say what they are; each opens, and does nothing else. */
export async function files({ page, url }) {
  const hostile = '<script>parent.hit = 1</script><img src="https://evil.example/x.png">';
  const long = [LONG, "報告".repeat(60) + ".md", "x".repeat(240) + ".csv", "تقرير طويل جدا ".repeat(9) + ".txt"];
  const texts = await Promise.all([...long, "short.txt"].map((name) => upload(page, name, "text/plain", hostile)));
  const pictures = await Promise.all([
    upload(page, `${"p".repeat(200)}.svg`, "image/svg+xml", picture(1600, 300)),
    upload(page, "tall.svg", "image/svg+xml", picture(200, 1800)),
  ]);
  const paper = await upload(page, "paper.pdf", "text/plain", "x".repeat(44));
  await shown(page, url, "files", [
    { role: "user", content: "See", attachments: [...texts, paper, ...pictures] },
    { content: "Seen." },
  ]);
  const sent = messages(page).first();
  const chip = (name) => sent.getByRole("button", { name });
  await appears(sent.locator("img").nth(1));
  for (const dir of ["ltr", "rtl"]) {
    await page.evaluate((dir) => document.documentElement.setAttribute("dir", dir), dir);
    for (const width of [320, 768, 1280]) {
      await page.setViewportSize({ width, height: 720 });
      const column = await sent.boundingBox();
      for (const file of await sent.locator("span.relative").all()) {
        const { x, width: wide } = await file.boundingBox();
        const told = `${dir} ${width}: ${await file.innerText()}`;
        assert.ok(x >= column.x - 1 && x + wide <= column.x + column.width + 1, told);
        assert.ok(wide > 30, told);
      }
      const ends = await sent.locator("span.truncate").evaluateAll((all) =>
        all.map((each) => {
          const [whole, end] = [each.parentElement.getBoundingClientRect(), document.createRange()];
          end.selectNodeContents(each.nextSibling?.data ? each.nextSibling : each);
          const rect = end.getBoundingClientRect();
          return rect.width > 0 && rect.left >= whole.left - 1 && rect.right <= whole.right + 1;
        }),
      );
      assert.ok(ends.every(Boolean), `${dir} ${width}: the ends of the names`);
      await fits(page, `${dir} ${width}`);
    }
  }
  await page.evaluate(() => document.documentElement.removeAttribute("dir"));
  await appears(chip(/paper\.pdf/).filter({ hasText: like("ofText", { size: /44\s[Bb]ytes?/ }) }));
  await chip("short.txt").focus();
  await page.keyboard.press("Enter");
  const dialog = page.getByRole("dialog", { name: "short.txt" });
  await dialog.getByText(hostile).waitFor();
  await accessible(page, "an open file");
  await escapes(page, dialog);
  assert.match(await page.evaluate(() => document.activeElement.innerText), /short\.txt/);
  await page.setViewportSize({ width: 320, height: 640 });
  await sent.locator("img").nth(1).click();
  const large = page.getByRole("dialog", { name: "tall.svg" });
  assert.ok((await large.locator("img").boundingBox()).height > 1000);
  assert.ok((await large.boundingBox()).height <= 640);
  await fits(page, "an open picture");
  await accessible(page, "an open picture");
  await press(large, "Close");
  await large.waitFor({ state: "detached" });
  assert.equal(await page.evaluate(() => window.hit), undefined);
  const time = messages(page).last().locator("time");
  assert.match(await time.getAttribute("datetime"), /^20\d\d-.*Z$/);
  const usual = new Intl.DateTimeFormat(look.locale, { dateStyle: "medium", timeStyle: "short" });
  assert.equal(await time.innerText(), usual.format(new Date(await time.getAttribute("datetime"))));
}

/** Long code is folded when a chat opens, keeps its buttons in sight, wraps on demand, and is copied whole. */
export async function code({ page, url }) {
  const lines = Array.from({ length: 2000 }, (_, at) => `value_${at} = "${"word ".repeat(at % 40)}"  # line ${at}`);
  await shown(page, url, "code", [{ content: `Before.\n\n\`\`\`python\n${lines.join("\n")}\n\`\`\`\n\nAfter.` }]);
  const block = page.locator(".code");
  const height = async () => (await block.boundingBox()).height;
  await appears(block.locator(".hljs-string").first());
  assert.ok((await height()) < 1600, `${await height()} px`);
  const more = block.getByRole("button", { name: t("Show all {count} lines").replace("{count}", number(2000)) });
  await more.click();
  assert.ok((await height()) > 20_000);
  assert.ok((await block.locator(".hljs-string").count()) > 100);
  const region = page.getByRole("region", { name: t("Messages") });
  await region.evaluate((each) => each.scrollTo({ top: 9000 }));
  const copy = button(block, "Copy the code");
  const [view, place] = [await region.boundingBox(), await copy.boundingBox()];
  assert.ok(place.y >= view.y - 1 && place.y < view.y + 60, `the copy button is at ${place.y} of ${view.y}`);
  await copy.click();
  assert.equal(await pasted(page), lines.join("\n"));
  const wrap = button(block, "Wrap lines");
  await wrap.click();
  assert.equal(await block.locator("pre").evaluate((pre) => pre.scrollWidth - pre.clientWidth), 0);
  assert.equal(await wrap.getAttribute("aria-pressed"), "true");
  await accessible(page, "long code");
  await fits(page);
  await press(block, "Show less");
  assert.ok((await height()) < 10_000);
}

/** On paper is the whole chat as one reads it: every message, light, code wrapped, pictures whole, and nothing to press. */
export async function printed({ browser, device, url }) {
  const page = await device(url, { colorScheme: "dark" });
  const wide = await upload(page, "wide.svg", "image/svg+xml", picture(3000, 4000));
  const lines = Array.from({ length: 200 }, (_, at) => `value_${at} = "${"word ".repeat(at % 60)}"  # line ${at}`);
  const said = Array.from({ length: 90 }, (_, at) =>
    at % 2 ? { content: `Answer ${at}, with $x^{${at}}$.` } : { role: "user", content: `Question ${at}` },
  );
  said[4].attachments = [wide];
  said[5].content = `Answer 5\n\n\`\`\`python\n${lines.join("\n")}\n\`\`\`\n`;
  await shown(page, url, "printed", said);
  assert.ok((await messages(page).count()) < said.length);
  await page.evaluate(() => dispatchEvent(new Event("beforeprint")));
  await page.emulateMedia({ media: "print", colorScheme: "dark" });
  await page.setViewportSize({ width: 720, height: 1000 }); // a sheet of A4 within its margins
  await page.getByText("# line 199").waitFor();
  await page.locator("article img").waitFor();
  const seen = await page.evaluate(() => {
    const places = [...document.querySelectorAll("article")].map((each) => each.getBoundingClientRect());
    const visible = (each) => each.checkVisibility() && each.getBoundingClientRect().height > 0;
    return {
      text: document.body.innerText,
      overlaps: places.slice(1).filter((place, at) => place.top < places[at].bottom - 1).length,
      below: places.at(-1).bottom + scrollY,
      height: document.documentElement.scrollHeight,
      cut: [...document.querySelectorAll("pre, img")].filter(
        (each) => each.scrollWidth > each.clientWidth + 1 || each.getBoundingClientRect().right > innerWidth,
      ).length,
      picture: document.querySelector("article img").getBoundingClientRect().height,
      pressed: [...document.querySelectorAll("button, textarea, nav")].filter(
        (each) => visible(each) && !each.querySelector("img"),
      ).length,
      ground: getComputedStyle(document.body).backgroundColor,
    };
  });
  for (const { content } of said) assert.ok(seen.text.includes(content.slice(0, 9)), content.slice(0, 9));
  assert.deepEqual([seen.overlaps, seen.cut, seen.pressed], [0, 0, 0]);
  assert.ok(seen.height >= seen.below && seen.height > 6000, `${seen.height} px`);
  assert.ok(seen.picture <= 1000, `a picture of ${seen.picture} px`);
  assert.ok(Math.min(...seen.ground.match(/\d+/g).slice(0, 3)) > 240, seen.ground);
  await page.evaluate(() => dispatchEvent(new Event("afterprint")));
  if (browser.browserType().name() === "chromium") {
    const pages = (await page.pdf({ format: "A4" })).toString("latin1").match(/\/Type \/Page\b/g).length;
    assert.ok(pages > 8, `${pages} pages`);
  }
}

/** The theme is there before the page's own script: the system's, or the one that was chosen. */
export async function painted({ browser, url }) {
  for (const [colorScheme, theme] of ["dark", "light", "light dark", "dark light"].map((each) => each.split(" "))) {
    const { page, context } = await another(browser, url, { colorScheme });
    const keep = (theme) => localStorage.setItem("llama-appliance.prefs", JSON.stringify({ theme }));
    if (theme) await page.addInitScript(keep, theme);
    await page.route(/assets\/index-.*\.js/, (route) => route.abort());
    await page.goto(url);
    const ground = await page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\d+/g).map(Number));
    assert.equal(ground[0] < 128, (theme ?? colorScheme) === "dark", `${colorScheme} ${theme}: ${ground}`);
    await page.unroute(/assets\/index-.*\.js/);
    await page.reload();
    await page.getByRole("heading", { level: 1 }).waitFor();
    const bars = await page
      .locator("meta[name=theme-color]")
      .evaluateAll((all) => all.filter((each) => matchMedia(each.media || "all").matches).map((each) => each.content));
    const rgb = bars[0].match(/\w\w/g).map((part) => parseInt(part, 16));
    assert.deepEqual(rgb, ground.slice(0, 3), `${colorScheme} ${theme}: the browser's bar`);
    await context.close();
  }
}

/** Wait until an element has the same place in two frames, so that no picture between two layouts is judged. */
const still = (page, chosen) =>
  page.evaluate(async (chosen) => {
    const place = async () => {
      await new Promise(requestAnimationFrame);
      return JSON.stringify(document.querySelector(chosen).getBoundingClientRect());
    };
    for (let last = ""; last !== (last = await place()););
  }, chosen);

/** However long the name of a model is, no button of the composer lies on another one. */
export async function toolbar({ page }) {
  const long = page.getByRole("button", { name: /a-very-long/ });
  await page.getByRole("button", { name: t("Choose a model") }).click();
  await long.last().click();
  await button(page, "Models that answer too, side by side").waitFor();
  for (const width of [320, 360, 390, 768, 1280]) {
    await page.setViewportSize({ width, height: 640 });
    await still(page, "[data-tools]");
    const [box, ...buttons] = await page
      .locator("[data-tools], [data-tools] button")
      .evaluateAll((all) => all.map((each) => each.getBoundingClientRect().toJSON()));
    assert.ok(buttons.length >= 4);
    const within = (one) => one.left >= box.left - 1 && one.right <= box.right + 1 && one.bottom <= box.bottom + 1;
    const before = (one, other) => one.right <= other.left || one.bottom <= other.top;
    for (const [at, one] of buttons.entries()) {
      assert.ok(within(one), `${width}: ${at}`);
      const apart = buttons.slice(at + 1).every((other) => before(one, other) || before(other, one));
      assert.ok(apart, `${width}: button ${at} lies on another`);
    }
    assert.ok(box.right - buttons.at(-1).right < 2, `${width}: Send is at the end`);
    await fits(page);
  }
}
