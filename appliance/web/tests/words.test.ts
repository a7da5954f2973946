import { readdirSync, readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { de as firstDe } from "../src/i18n/de";
import { en as firstEn } from "../src/i18n/en";
import { de as laterDe } from "../src/i18n/de.later";
import { en as laterEn } from "../src/i18n/en.later";

const en = { ...firstEn, ...laterEn };
const de = { ...firstDe, ...laterDe };

const SOURCES = new URL("../src/", import.meta.url);
/** Their names are made of the state of a message. */
const MADE = ["stopped", "interrupted"];

test("each language has the same words, with the same holes", () => {
  const holes = (words: Record<string, string>) =>
    Object.entries(words).map(([name, text]) => [name, (text.match(/\{\w+\}/g) ?? []).sort()]);
  expect(holes(de)).toEqual(holes(en));
});

test("no word is in two dictionaries", () => {
  expect(Object.keys(firstEn).filter((name) => name in laterEn)).toEqual([]);
});

/** A scenario names a sentence in English, and looks for the German one. "Asking …" is asked in two ways. */
test("one English sentence has one in German", () => {
  const german = new Map<string, Set<string>>();
  for (const [name, text] of Object.entries<string>(en)) {
    german.set(text, (german.get(text) ?? new Set()).add((de as Record<string, string>)[name]!));
  }
  expect([...german].filter(([text, said]) => said.size > 1 && text !== "Asking …")).toEqual([]);
});

test("each word is said somewhere", () => {
  const files = readdirSync(SOURCES, { recursive: true, encoding: "utf8" });
  const code = files.filter((name) => /\.(svelte|ts)$/.test(name) && !name.startsWith("i18n"));
  const text = code.map((name) => readFileSync(new URL(name, SOURCES), "utf8")).join("");
  expect(Object.keys(en).filter((name) => !text.includes(`"${name}"`) && !MADE.includes(name))).toEqual([]);
});
