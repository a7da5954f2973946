// The look of this run, LOOK=LANGUAGE-THEME-WIDTH, and the words of the page in its language: scenarios name them in English.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";

const folder = new URL("../../appliance/web/", import.meta.url);
const typescript = createRequire(new URL("package.json", folder))("typescript");
const chosen = process.env.LOOK ?? "en-light-1280";
assert.match(
  chosen,
  /^(en|de)-(light|dark)-\d+$/,
  `LOOK is LANGUAGE-THEME-WIDTH, such as de-dark-320, and not "${chosen}"`,
);
const [language, theme, width] = chosen.split("-");
const HOLE = /\{(\w+)\}/g;
const pattern = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

/** What a file of the page exports, without what it imports. A screen's `words.ts` wants `speaker` alone. */
async function exportsOf(path) {
  const source = readFileSync(new URL(`src/${path}`, folder), "utf8").replace(/^import .*$/gm, "");
  const { outputText } = typescript.transpileModule(`const speaker = (words) => ({ words }); ${source}`, {
    compilerOptions: { module: "esnext", target: "esnext" },
  });
  return await import(`data:text/javascript,${encodeURIComponent(outputText)}`);
}

async function dictionary(language) {
  const found = [];
  for (const name of readdirSync(new URL("src", folder), { recursive: true })) {
    if (!/\b(first|later|screen|words)\.ts$/.test(name)) continue;
    const { first, words, t, screen } = await exportsOf(name);
    const phrases = first ?? words ?? t?.words ?? { [`title of ${name}`]: screen.title };
    found.push(Object.fromEntries(Object.entries(phrases).map(([word, phrase]) => [word, phrase[language]])));
  }
  return Object.assign({}, ...found);
}
const english = await dictionary("en");
const words = await dictionary(language);

/** What a browser needs to show the page so. */
export const look = {
  locale: { en: "en-GB", de: "de-DE" }[language],
  colorScheme: theme,
  viewport: { width: Number(width), height: 720 },
};
/** The list of conversations is a drawer. */
export const narrow = look.viewport.width < 768;
const [comma, percent] = language === "de" ? [",", "\\s%"] : [".", "%"];

/** What the page writes for a size in this unit, for so many seconds, for a part of a hundred, and for a number. */
export const size = (unit = /[GM]B/) => new RegExp(`[\\d${comma}]+\\s${unit.source}`);
export const seconds = (count) => new RegExp(`${count.source}\\ss`);
export const hundredth = (count) => new RegExp(count.source + percent);
export const number = (value) => new Intl.NumberFormat(language).format(value);

/** What the page says with these words, where it says `text` in English: "Remove note.txt" finds "Remove {name}". */
const translator = (words) => (text) => {
  const exact = Object.keys(english).flatMap((word) => {
    const form = english[word].split("|").indexOf(text);
    return form < 0 ? [] : [words[word].split("|")[form]];
  });
  const found = exact.length ? exact : Object.keys(english).flatMap((word) => filled(words, word, text));
  const [said, ...others] = new Set(found);
  assert.ok(said !== undefined, `the page says "${text}" nowhere`);
  assert.deepEqual(others, [], `"${text}" can be more than one sentence of the page`);
  return said;
};
/** In this run, and where somebody chooses German. */
export const t = translator(words);
export const inGerman = translator(await dictionary("de"));

/** The sentence of this name with the values that make its English one `text`; none, where nothing does. */
function filled(words, word, text) {
  return english[word].split("|").flatMap((form, at) => {
    const names = [...form.matchAll(HOLE)].map((match) => match[1]);
    const shape = form
      .split(/\{\w+\}/)
      .map(pattern)
      .join("(.+)");
    const found = new RegExp(`^${shape}$`).exec(text);
    const said = words[word].split("|")[at];
    return found ? [said.replace(HOLE, (_, name) => found[1 + names.indexOf(name)])] : [];
  });
}

const source = (part) => (part instanceof RegExp ? part.source : pattern(String(part)));

/** The sentence of this name anywhere in a text, with `values`, which may be patterns, and anything in place of the others. */
export function like(word, values = {}) {
  assert.ok(word in words, `no word is called ${word}`);
  const forms = words[word].split("|").map((form) =>
    form
      .split(HOLE) // text and names by turns
      .map((part, at) => (at % 2 ? source(values[part] ?? /.+/) : pattern(part)))
      .join(""),
  );
  return new RegExp(`(?:${forms.join("|")})`);
}

/** A whole text of these parts, with the dot between them. */
export const line = (...parts) => new RegExp(`^${parts.map(source).join(" · ")}$`);
