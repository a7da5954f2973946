import fc from "fast-check";
import { expect, test } from "vitest";
import { entered, similarities, STAGES, stretches, totals, type Tried } from "./playing";

const stages = fc.array(fc.tuple(fc.constantFrom(...STAGES), fc.double({ min: 0, max: 10, noNaN: true })), {
  minLength: 1,
  maxLength: 8,
});
const requests = fc.array(
  fc.record({
    model: fc.constantFrom("a", "b", "c"),
    began: fc.double({ min: 0, max: 50, noNaN: true }),
    stages,
    first: fc.option(fc.double({ min: 0, max: 9, noNaN: true }), { nil: undefined }),
    took: fc.option(fc.double({ min: 10, max: 100, noNaN: true }), { nil: undefined }),
    tokens: fc.nat(1000),
    error: fc.option(fc.constant("away"), { nil: undefined }),
  }),
  { maxLength: 20 },
);

function marked(began: number, passed: [(typeof STAGES)[number], number][]): Tried["marks"] {
  let at = began;
  let marks: Tried["marks"] = [];
  for (const [stage, seconds] of passed) {
    marks = entered(marks, stage, at);
    at += seconds;
  }
  return marks;
}

test("the stretches of a request fill its time, and no two neighbours are alike", () => {
  fc.assert(
    fc.property(stages, fc.nat(50), (passed, began) => {
      const marks = marked(began, passed);
      const ended = began + passed.reduce((sum, [, seconds]) => sum + seconds, 0);
      const parts = stretches({ model: "m", marks, ended, tokens: 0 }, 1e9);
      expect(parts.reduce((sum, { seconds }) => sum + seconds, 0)).toBeCloseTo(ended - began, 6);
      expect(parts.every(({ seconds, stage }, at) => seconds >= -1e-9 && stage !== parts[at + 1]?.stage)).toBe(true);
      const running = stretches({ model: "m", marks, tokens: 0 }, ended + 1);
      expect(running.at(-1)!.seconds).toBeCloseTo(parts.at(-1)!.seconds + 1, 6);
    }),
  );
});

test("every ended request counts once, for its model, and only good ones make the rates", () => {
  fc.assert(
    fc.property(requests, (made) => {
      const all = made.map(({ model, began, stages, first, took, tokens, error }) => ({
        model,
        marks: marked(began, stages),
        first: first === undefined ? undefined : began + first,
        ended: took === undefined ? undefined : began + took,
        tokens,
        error,
      }));
      const found = totals(all);
      expect(found.map(({ model }) => model)).toEqual([...new Set(all.map(({ model }) => model))]);
      for (const total of found) {
        const mine = all.filter(({ model, ended }) => model === total.model && ended !== undefined);
        const good = mine.filter(({ error }) => error === undefined);
        const [done, failed, requestsPerSecond, tokensPerSecond] = total.figures;
        const [p50, p95] = total.firsts;
        expect([done, failed]).toEqual([mine.length, mine.length - good.length]);
        const longest = Math.max(0, ...mine.map(({ marks, ended }) => ended! - marks[0]!.at));
        expect(requestsPerSecond * longest).toBeLessThanOrEqual(good.length + 1e-6);
        const tokens = good.reduce((sum, each) => sum + each.tokens, 0);
        expect(tokensPerSecond * good.length).toBeCloseTo(requestsPerSecond * tokens, 6);
        const firsts = good.flatMap(({ first, marks }) => (first === undefined ? [] : [first - marks[0]!.at]));
        expect(p50 === undefined).toBe(!firsts.length);
        if (!firsts.length) continue;
        expect(firsts.filter((first) => first <= p50! + 1e-9).length * 2).toBeGreaterThanOrEqual(firsts.length);
        expect(p95!).toBeGreaterThanOrEqual(p50! - 1e-9);
        expect(p95!).toBeLessThanOrEqual(Math.max(...firsts) + 1e-9);
      }
    }),
  );
});

test("similarities are symmetric, at most one, and one with the same direction", () => {
  const vector = fc.array(fc.double({ min: -100, max: 100, noNaN: true }), { minLength: 3, maxLength: 3 });
  fc.assert(
    fc.property(fc.array(vector, { maxLength: 5 }), fc.integer({ min: 1, max: 9 }), (vectors, times) => {
      const found = similarities(vectors);
      const scaled = similarities(vectors.flatMap((each) => [each, each.map((x) => x * times)]));
      found.forEach((row, at) => {
        const long = vectors[at]!.some((x) => Math.abs(x) > 1e-3);
        if (long) expect(row[at]).toBeCloseTo(1, 6);
        if (long) expect(scaled[2 * at]![2 * at + 1]).toBeCloseTo(1, 6);
        row.forEach((value, to) => {
          expect(Math.abs(value)).toBeLessThanOrEqual(1);
          expect(value).toBeCloseTo(found[to]![at]!, 9);
        });
      });
    }),
  );
  const turned = ["3 4", "-4 3", "-3 -4", "0 0"].map((each) => each.split(" ").map(Number));
  expect(similarities(turned)[0]).toEqual([1, 0, -1, 0]);
});
