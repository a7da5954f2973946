/**
 * The words of parts that have a chunk of their own. Such a part imports what says them from here, and figures too, or
 * `t` from the `words.ts` of its folder, so its words come with it in both languages, and take nothing of the first load. A part of the first load
 * cannot say them: its `t` does not know them.
 */
import { words } from "../i18n/later";
import { filled, prefs, t as first, type Language, type Word as FirstWord } from "./prefs.svelte";

export * from "./prefs.svelte";

/** One text in each language. */
export type Phrase = Record<Language, string>;
export type Word = FirstWord | keyof typeof words;
/** What says a word, with `{name}` filled in. */
type Speaker<W> = (word: W, values?: Record<string, string | number>) => string;

export function said(phrase: Phrase): string {
  return phrase[prefs.language];
}

/** The `t` of parts that have words of their own, and know those of others. */
function knowing<Own extends string, W>(own: Record<Own, Phrase>, others: Speaker<W>): Speaker<Own | W> {
  return (word, values = {}) =>
    (word as string) in own ? filled(said(own[word as Own]), values) : others(word as W, values);
}

export const t = knowing(words, first);

/** The `t` of a screen with words of its own, which are its `words`. */
export const speaker = <Own extends string>(own: Record<Own, Phrase>) => Object.assign(knowing(own, t), { words: own });

/** By the server's names: each with its word, as a choice has them. */
export function named<W extends string>(words: Record<string, W>, say: Speaker<W>): [string, string][] {
  return Object.entries(words).map(([name, word]) => [name, say(word)]);
}
