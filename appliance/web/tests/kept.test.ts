import fc from "fast-check";
import { beforeEach, expect, test } from "vitest";
import { like } from "../src/lib/kept.svelte";
import { Records } from "../src/lib/records";

beforeEach(() => localStorage.clear());

const shape = fc.record({ text: fc.string(), count: fc.integer(), list: fc.array(fc.string()), on: fc.boolean() });

test("what was kept comes back as it was, and under its name only", () => {
  fc.assert(
    fc.property(shape, fc.string(), (value, name) => {
      localStorage.clear();
      new Records("a.").keep(name, { value });
      expect(new Records("a.").read(name).value).toEqual(value);
      expect(new Records("b.").read(name)).toEqual({});
      expect(new Records("a.").read(`${name}.`)).toEqual({});
    }),
  );
});

test("what another version kept never has a wrong shape", () => {
  const alike = fc.dictionary(fc.constantFrom("text", "count", "list", "on"), fc.jsonValue());
  fc.assert(
    fc.property(shape, fc.jsonValue(), alike, (empty, any, some) => {
      for (const kept of [any, some, undefined]) {
        const found = like(empty, kept);
        expect(typeof found.text).toBe("string");
        expect(typeof found.count).toBe("number");
        expect(Array.isArray(found.list)).toBe(true);
        expect(typeof found.on).toBe("boolean");
      }
    }),
  );
});

test("where there is no room the oldest of the others goes, and the one that is written stays", () => {
  const records = new Records("a.");
  for (let at = 0; at < 250; at++) {
    records.keep(`${at}`, { at });
    expect(records.read(`${at}`).at).toBe(at);
  }
  expect(Object.keys(localStorage)).toHaveLength(100);
  expect(records.read("149")).toEqual({});
});
