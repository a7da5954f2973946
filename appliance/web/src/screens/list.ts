/** The screens for the operator of the machine. "Machine" and Ctrl-K know them from here. */
import type { Component } from "svelte";
import type { Phrase } from "../lib/later.svelte";
import { attention } from "./attention/screen";
import { now } from "./now/screen";
import { why } from "./why/screen";
import { memory } from "./memory/screen";
import { activity } from "./activity/screen";
import { speed } from "./speed/screen";
import { cache } from "./cache/screen";
import { logs } from "./logs/screen";
import { engines } from "./engines/screen";
import { disk } from "./disk/screen";
import { boxes } from "./boxes/screen";
import { agents } from "./agents/screen";
import { playground } from "./playground/screen";
import { config } from "./config/screen";

/** What a screen of "Machine" signs in with. */
export interface Screen {
  /** Its place below `#/machine/`, and the name of its folder. */
  path: string;
  group: "groupHealth" | "groupTraffic" | "groupSetUp";
  /** It stands above the screen, where `aria-labelledby="title"` finds it. */
  title: Phrase;
  /** Other words for it, of both languages: people look for "log" in a German page too. */
  also: string;
  /** The ids of the findings that it helps with; what its address then has, and the member there that names the model. */
  helps?: { findings: RegExp; query?: string; model?: string };
  load: () => Promise<{ default: Component }>;
}

/** Each is a chunk of its own, and stands in its group as it stands here. The first is the one that opens. */
export const SCREENS: Screen[] = [
  attention,
  now,
  why,
  memory,
  activity,
  speed,
  cache,
  logs,
  engines,
  disk,
  boxes,
  agents,
  playground,
  config,
];
