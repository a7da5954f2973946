/** What `/api/memory` foretells of a load, in words: what the model waits for, what goes, what holds it up, and how long. */
import type { Word } from "./words";
import type { Fit } from "../../lib/models.svelte";

export interface Forecast {
  model: string;
  state: keyof typeof STATES;
  takes: Record<string, number>;
  goes: string[];
  held: string[];
  before: string[];
  expected: number | null;
  fits: Fit["verdict"] | null;
  why: string;
  refused: boolean;
}

/** By the server's names. */
export const STATES = {
  queued: "forecastQueued",
  loading: "forecastLoading",
  loaded: "isThere",
  sleeping: "forecastSleeping",
  stopping: "forecastStopping",
  unloaded: "forecastUnloaded",
} as const satisfies Record<string, Word>;

export type Said = [Word, Record<string, string>?];

/** `sizes` and `time` are put into words by the caller. A model that somebody waits for is told of as what happens. */
export function foretold(load: Forecast, sizes: string, time: string): Said[] {
  const { state, goes, held, before, expected } = load;
  const said: Said[] = [[STATES[state]]];
  if (state === "loaded" || state === "sleeping") return sizes ? [...said, ["takesNow", { sizes }]] : said;
  const awaited = state === "queued" || state === "loading";
  if (load.refused) return said;
  if (sizes) said.push(["wouldTake", { sizes }]);
  if (before.length) said.push([awaited ? "waitsForLoads" : "loadsBefore", { models: before.join(", ") }]);
  if (held.length) said.push([awaited ? "waitsForHeld" : "wouldWait", { models: held.join(", ") }]);
  if (goes.length) said.push([awaited ? "goesForIt" : "wouldStop", { models: goes.join(", ") }]);
  else if (!awaited) said.push(["nothingGoes"]);
  said.push(expected === null ? ["timeUnknown"] : [awaited ? "readyIn" : "wouldLoadIn", { time }]);
  return said;
}
