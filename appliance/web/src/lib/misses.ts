/** Why a prompt was read again, by the server's names. */
import type { Word } from "./later.svelte";

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
