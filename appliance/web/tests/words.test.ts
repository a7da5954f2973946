import { readdirSync, readFileSync } from "node:fs";
import { expect, test } from "vitest";
import { first } from "../src/i18n/first";
import { words as later } from "../src/i18n/later";
import type { Phrase } from "../src/lib/later.svelte";
import { duration, filled, type Language } from "../src/lib/prefs.svelte";
import { SCREENS } from "../src/screens/list";

const folders = import.meta.glob<{ t: { words: Record<string, Phrase> } }>("../src/screens/*/words.ts", {
  eager: true,
});
const phrases: Record<string, Phrase>[] = [
  first,
  later,
  ...SCREENS.map(({ path, title }) => ({ [`title of ${path}`]: title })),
  ...Object.values(folders).map(({ t }) => t.words),
];
const spoken = (language: Language) =>
  phrases.map((words) => Object.fromEntries(Object.entries(words).map(([name, phrase]) => [name, phrase[language]])));
const dictionaries = spoken("en");
const en = Object.assign({}, ...dictionaries) as Record<string, string>;
const de = Object.assign({}, ...spoken("de")) as Record<string, string>;

/** Their names are made of the state of a message. */
const MADE = ["stopped", "interrupted"];

test("each language has the same words, with the same holes", () => {
  const holes = (words: Record<string, string>) =>
    Object.entries(words).map(([name, text]) => [name, (text.match(/\{\w+\}/g) ?? []).sort()]);
  expect(holes(de)).toEqual(holes(en));
});

/** What is counted, and is the same for one and for more in both languages. */
const NEVER_ALONE =
  "attentionCount binned branchOf chosen deleteBelow engineSaid imported nowUnderWay parametersBillion parametersMillion";

test("each counted word has a form for one and a form for others", () => {
  for (const [name, text] of Object.entries(en)) {
    const forms = [text, de[name]!].map((each) => each.split("|").length);
    const counted = (text.includes("{count}") || name === "pageOf") && !NEVER_ALONE.split(" ").includes(name);
    expect([name, ...forms]).toEqual([name, ...(counted ? [2, 2] : [1, 1])]);
  }
});

test("the form is that of the count, and numbers and times are written as people say them", () => {
  expect([0, 1, 2, 1200].map((count) => filled(later.waitingFor.en, { count }))).toEqual([
    "0 requests wait",
    "1 request waits",
    "2 requests wait",
    "1,200 requests wait",
  ]);
  const said = (seconds: number, digits?: number) => duration(seconds, digits).replace("\u00a0", " ");
  expect([0.0201, 2.471, 51.4, 3104, 40_000].map((seconds) => said(seconds, 2))).toEqual([
    "0.02 s",
    "2.47 s",
    "51 s",
    "52 min",
    "11 h",
  ]);
  expect([0.2, 13.1, 99.5].map((seconds) => said(seconds))).toEqual(["1 s", "14 s", "100 s"]);
});

test("no word is in two dictionaries", () => {
  const names = dictionaries.flatMap((words) => Object.keys(words));
  expect(names.filter((name, at) => names.indexOf(name) < at)).toEqual([]);
});

/** A scenario names a sentence in English, and looks for the German one. "Asking …" is asked in two ways. */
test("one English sentence has one in German", () => {
  const german = new Map<string, Set<string>>();
  for (const [name, text] of Object.entries(en)) {
    german.set(text, (german.get(text) ?? new Set()).add(de[name]!));
  }
  expect([...german].filter(([text, said]) => said.size > 1 && text !== "Asking …")).toEqual([]);
});

test("each word is said somewhere, and one of a screen by that screen", () => {
  const unsaid = (words: object, folder: string) => {
    const place = new URL(`${folder}/`, import.meta.url);
    const files = readdirSync(place, { recursive: true, encoding: "utf8" });
    const code = files.filter((name) => /\.(svelte|ts)$/.test(name) && !/^i18n|\.test\.ts$/.test(name));
    const text = code.map((name) => readFileSync(new URL(name, place), "utf8")).join("");
    return Object.keys(words).filter((name) => !text.includes(`"${name}"`) && !MADE.includes(name));
  };
  expect(unsaid({ ...first, ...later }, "../src")).toEqual([]);
  for (const [path, { t }] of Object.entries(folders)) {
    expect(unsaid(t.words, path.replace("/words.ts", ""))).toEqual([]);
  }
});
