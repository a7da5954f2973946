/** The lines of a log: what the server says of each beside its words, and the level that its writer has given it. */
export type Level = "debug" | "info" | "warn" | "error";

export interface LogLine {
  /** In ms since 1970; 0: the server does not know. */
  at: number;
  level: Level | undefined;
  text: string;
}

const LETTERS: Record<string, Level> = { D: "debug", I: "info", W: "warn", E: "error" };
export const LEVELS: Level[] = ["debug", "info", "warn", "error"];
const COLOURS = /\x1b\[[0-9;]*m/g;

/** The program's levels are words, `[WARN]`, and llama-server's letters behind a clock, `0.00.004.145 I`. */
export function lineOf(told: string): LogLine {
  const [, at, text] = /^(\d{9,}\.\d{3}) (.*)$/s.exec(told) ?? [null, "0", told];
  const plain = text.slice(0, 300).replace(COLOURS, "");
  const word = /\[(DEBUG|INFO|WARN|ERROR)\] /.exec(plain)?.[1]?.toLowerCase() as Level | undefined;
  const letter = /^(?:\[[^\]]+\] )?\d+\.\d\d\.\d{3}\.\d{3} ([DIWE]) /.exec(plain)?.[1] ?? "";
  return { at: Number(at) * 1000, level: word ?? LETTERS[letter], text };
}

/** What is as grave as `least`, and every line without a level where that is the least of all. */
export function isShown({ level }: LogLine, least: string): boolean {
  return !least || (level !== undefined && LEVELS.indexOf(level) >= LEVELS.indexOf(least as Level));
}

/** A browser has read something, and nothing went wrong: a page's views do that once a second. */
export function isOfPage({ text }: LogLine): boolean {
  return /Request \S+ "(GET|HEAD) [^"]*" [23]\d\d \d+ "Mozilla\//.test(text);
}
