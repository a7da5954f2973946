/** The screens for the operator of the machine. "Machine" and Ctrl-K know them from here. */
import type { Component } from "svelte";
import type { Phrase, Word } from "../lib/later.svelte";

/** What a screen of "Machine" signs in with: the `screen` of its folder's `screen.ts`. */
export interface SignIn {
  /** It stands above the screen, where `aria-labelledby="title"` finds it. */
  title: Phrase;
  /** Other words for it, of both languages: people look for "log" in a German page too. */
  also: string;
  /** The ids of the findings that it helps with; what its address then has, and the member there that names the model. */
  helps?: { findings: RegExp; query?: string; model?: string };
  load: () => Promise<{ default: Component }>;
}

/** In its group a screen stands as it stands here. The first is the one that opens. */
const ORDER: [Word, string][] = [
  ["groupHealth", "attention now why memory"],
  ["groupTraffic", "activity speed cache logs"],
  ["groupSetUp", "engines disk boxes agents playground config"],
];
const signedIn = import.meta.glob<SignIn>("./*/screen.ts", { eager: true, import: "screen" });

/** Each is a chunk of its own. `path` is its place below `#/machine/`, and the name of its folder. */
export const SCREENS = ORDER.flatMap(([group, paths]) =>
  paths.split(" ").flatMap((path) => {
    const screen = signedIn[`./${path}/screen.ts`];
    return screen ? [{ path, group, ...screen }] : [];
  }),
);
