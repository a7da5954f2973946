// What the page says of a load, in every state that the route can have.
import { readFileSync } from "node:fs";
import fc from "fast-check";
import { expect, test } from "vitest";
import { foretold, STATES, type Forecast } from "./forecast";
import { t } from "./words";

const source = (path: string) => readFileSync(new URL(`../../../../${path}`, import.meta.url), "utf8");
const models = (prefix: string) =>
  fc.uniqueArray(fc.nat(9), { maxLength: 3 }).map((all) => all.map((number) => `${prefix}${number}`));
const FORECAST: fc.Arbitrary<Forecast> = fc
  .record({
    model: fc.constant("asked"),
    state: fc.constantFrom(...(Object.keys(STATES) as Forecast["state"][])),
    takes: fc.constantFrom<Record<string, number>[]>({}, { ram: 1 }),
    free: models("free"),
    held: models("held"),
    before: models("before"),
    expected: fc.option(fc.nat(100)),
    fits: fc.constantFrom("fits", "partly", "no", null),
    why: fc.constant(""),
    refused: fc.boolean(),
  })
  .map(({ free, ...load }) => ({ ...load, goes: [...free, ...load.held] }));

test("it knows the states and the members of the server's answer", () => {
  const told = /state: str\n {4}"""(.*)"""/.exec(source("fleet/status.py"))![1]!;
  expect([...told.matchAll(/``(\w+)``/g)].map((match) => match[1])).toEqual(Object.keys(STATES));
  const members = /class LoadForecast.*?\n\n\n/s.exec(source("features/fit/core/picture.py"))![0];
  const names = [...members.matchAll(/^ {4}(\w+):/gm)].map((match) => match[1]);
  const [one] = fc.sample(FORECAST, 1);
  expect(names.sort()).toEqual(Object.keys(one!).sort());
});

test("it names everything that stands in the way, and says 'in memory' of nothing else", () => {
  fc.assert(
    fc.property(FORECAST, (load) => {
      const said = foretold(load, Object.keys(load.takes).length ? "1 GB" : "", "9 s");
      const words = said.map(([word]) => word);
      const text = said.map(([word, values]) => t(word, values)).join("\n");
      const isHere = ["loaded", "sleeping"].includes(load.state);
      expect(words[0]).toBe(STATES[load.state]);
      expect(words.includes("isThere")).toBe(load.state === "loaded");
      for (const model of [...load.goes, ...load.held, ...load.before]) {
        expect(text.includes(model)).toBe(!isHere && !load.refused);
      }
      expect(text.includes("9 s")).toBe(!isHere && !load.refused && load.expected !== null);
      expect(words.includes("nothingGoes")).toBe(
        load.state.startsWith("un") || load.state === "stopping" ? !load.refused && !load.goes.length : false,
      );
      const awaited = ["queued", "loading"].includes(load.state);
      if (awaited) expect(words.filter((word) => /^(would(Stop|Wait|LoadIn)|loadsBefore)$/.test(word))).toEqual([]);
    }),
  );
});
