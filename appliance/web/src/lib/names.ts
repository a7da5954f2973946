/** Words of several views, by the server's names. */
import type { Word } from "./later.svelte";

export const SPANS: Record<string, Word> = { "1h": "spanHour", "1d": "spanDay", "7d": "spanWeek", "30d": "spanMonth" };

/** Why a prompt was read again. */
export const MISSES: Record<string, Word> = {
  off: "missOff",
  moved: "missMoved",
  engine: "missEngine",
  loaded: "missLoaded",
  new: "missNew",
  busy: "missBusy",
  evicted: "missEvicted",
  others: "missOthers",
  changed: "missChanged",
  unknown: "speedUnknown",
};
