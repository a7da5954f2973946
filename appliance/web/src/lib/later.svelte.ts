/**
 * The words of parts that have a chunk of their own. Such a part imports `t` from here, so its words come with the first
 * of them, and take nothing of the first load. A part of the first load cannot say them: its `t` does not know them.
 */
import type { en } from "../i18n/en.later";
import { filled, inLanguage, prefs, t as first, type Language, type Word as FirstWord } from "./prefs.svelte";

type LaterWord = keyof typeof en;
export type Word = FirstWord | LaterWord;

const dictionaries: Record<Language, () => Promise<Record<LaterWord, string>>> = {
  en: async () => (await import("../i18n/en.later")).en,
  de: async () => (await import("../i18n/de.later")).de,
};
let words = $state.raw(await dictionaries[prefs.language]());

$effect.root(() => {
  inLanguage(dictionaries, (found) => (words = found));
});

/** The words of the page, with `{name}` filled in. */
export function t(word: Word, values: Record<string, string | number> = {}): string {
  return word in words ? filled(words[word as LaterWord], values) : first(word as FirstWord, values);
}

/** By the server's names: each with its word, as a choice has them. */
export function named(words: Record<string, Word>): [string, string][] {
  return Object.entries(words).map(([name, word]) => [name, t(word)]);
}
