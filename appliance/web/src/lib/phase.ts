/**
 * What an answer under way is at: exactly one phase at a time, with the figures that are known of it. Pure: times are
 * arguments, in seconds. What comes first in `phase` hides what is behind it, because it is the cause of the wait.
 */
import type { Load, Wait } from "./models.svelte";

/** Seconds without anything new after which that is said. */
export const SILENCE = 10;

export interface Facts {
  /** The connection broke, and is being made again. */
  resuming: boolean;
  /** What of this answer has come. */
  begun: "nothing" | "thoughts" | "text";
  /** How much of the prompt has been read, 0 to 1. */
  prompt?: number;
  /** Seconds since something new came. */
  quiet: number;
  wait?: Wait;
  /** Where the model is loading: how far it is, 0 to 1, and the seconds that are left, where they are known. */
  load?: { part?: number; seconds?: number };
}

export interface Phase {
  is: "resuming" | "queued" | "loading" | "reading" | "waiting" | "thinking" | "answering" | "silent";
  place?: number;
  part?: number;
  /** To come; in silence: passed. */
  seconds?: number;
}

export function phase({ resuming, begun, prompt, quiet, wait, load }: Facts): Phase {
  if (resuming) return { is: "resuming" };
  if (begun === "nothing" && wait?.position) return { is: "queued", place: wait.position, seconds: wait.expected };
  if (begun === "nothing" && load) return { is: "loading", part: load.part, seconds: wait?.expected ?? load.seconds };
  if (quiet >= SILENCE) return { is: "silent", part: prompt, seconds: quiet };
  if (prompt !== undefined) return { is: "reading", part: prompt };
  return { is: begun === "text" ? "answering" : begun === "thoughts" ? "thinking" : "waiting" };
}

/** How much of a load is done, 0 to 1; undefined where the engine does not say. All of its stages count the same. */
export function loaded({ stages = [], current = "", value }: Load): number | undefined {
  if (value === undefined) return undefined;
  return (Math.max(stages.indexOf(current), 0) + value) / Math.max(stages.length, 1);
}

export interface Mark {
  part: number;
  at: number;
}

/** The seconds that a load or a download still takes, if it goes on as it went since it was first looked at. */
export function left(first: Mark, now: Mark): number | undefined {
  const done = now.part - first.part;
  const took = now.at - first.at;
  return done >= 0.01 && took >= 1 ? (took * (1 - now.part)) / done : undefined;
}
