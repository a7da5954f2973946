import { expect, test } from "vitest";
import { isOfPage, isShown, lineOf } from "./loglines";

test("the time and the level of a line are found, whoever wrote it", () => {
  expect(lineOf("1795954296.123 [WARN] model 'a': it died")).toEqual({
    at: 1795954296123,
    level: "warn",
    text: "[WARN] model 'a': it died",
  });
  expect(lineOf("1795954296.000 [starter] 0.00.004.145 E srv          init: no").level).toBe("error");
  expect(lineOf("0.00.004.145 \x1b[32mI \x1b[0msrv          init: initializing ...").level).toBe("info");
  expect(lineOf("... 12 lines lost ...")).toEqual({ at: 0, level: undefined, text: "... 12 lines lost ..." });
});

test("a level lets what is graver through, and lines without one only where all are wanted", () => {
  const levels = ["[DEBUG] a", "[INFO] b", "[WARN] c", "[ERROR] d", "e"].map(lineOf);
  const shown = (least: string) => levels.filter((line) => isShown(line, least)).map(({ text }) => text.at(-1));
  expect(["", "info", "warn", "error"].map((least) => shown(least).join(""))).toEqual(["abcde", "bcd", "cd", "d"]);
});

test("what a browser read without trouble is told from everything else", () => {
  const line = (method: string, status: number, agent: string) =>
    lineOf(`[INFO] Request 127.0.0.1 "${method} /api/inflight HTTP/1.1" ${status} 178 "${agent}" 1.3ms`);
  expect(isOfPage(line("GET", 200, "Mozilla/5.0 (X11)"))).toBe(true);
  for (const other of [line("POST", 200, "Mozilla/5.0"), line("GET", 503, "Mozilla/5.0"), line("GET", 200, "curl/8")]) {
    expect(isOfPage(other)).toBe(false);
  }
});
