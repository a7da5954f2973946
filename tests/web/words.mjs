// The look of this run, LOOK=LANGUAGE-THEME-WIDTH, and the words of the page in its language: scenarios name them in English.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const folder = new URL("../../appliance/web/", import.meta.url);
const typescript = createRequire(new URL("package.json", folder))("typescript");
const [language, theme, width] = (process.env.LOOK ?? "en-light-1280").split("-");
const pattern = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

async function dictionary(language) {
  const source = readFileSync(new URL(`src/i18n/${language}.ts`, folder), "utf8");
  const { outputText } = typescript.transpileModule(source, { compilerOptions: { module: "esnext", target: "esnext" } });
  return (await import(`data:text/javascript,${encodeURIComponent(outputText)}`))[language];
}
const english = await dictionary("en");
const words = await dictionary(language);

/** What a browser needs to show the page so. */
export const look = { locale: { en: "en-GB", de: "de-DE" }[language], colorScheme: theme, viewport: { width: Number(width), height: 720 } };
export const narrow = look.viewport.width < 768;

/** What the page says in this run, where it says `text` in English: `t("Remove note.txt")` finds "Remove {name}". */
export function t(text) {
  for (const [word, said] of Object.entries(english)) {
    const names = [...said.matchAll(/\{(\w+)\}/g)].map((match) => match[1]);
    const found = new RegExp(`^${said.split(/\{\w+\}/).map(pattern).join("(.+)")}$`).exec(text);
    if (found) return words[word].replace(/\{(\w+)\}/g, (_, name) => found[1 + names.indexOf(name)]);
  }
  assert.fail(`the page says "${text}" nowhere`);
}

/** A part of a text: the word of this name, with `values` filled in and anything in place of the others. */
export function like(word, values = {}) {
  assert.ok(word in words, `no word is called ${word}`);
  const parts = words[word].split(/(\{\w+\})/).map((part) => {
    const name = /^\{(\w+)\}$/.exec(part)?.[1];
    return name === undefined ? pattern(part) : name in values ? pattern(String(values[name])) : ".+";
  });
  return new RegExp(parts.join(""));
}
