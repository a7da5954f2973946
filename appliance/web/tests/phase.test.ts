import fc from "fast-check";
import { expect, test } from "vitest";
import { left, loaded, phase, SILENCE, type Facts } from "../src/lib/phase";

const PART = fc.double({ min: 0, max: 1, noNaN: true });
const FACTS: fc.Arbitrary<Facts> = fc.record(
  {
    resuming: fc.boolean(),
    begun: fc.constantFrom("nothing", "thoughts", "text"),
    prompt: PART,
    quiet: fc.nat(2 * SILENCE),
    wait: fc.record({ position: fc.nat(5), expected: fc.nat(90) }, { requiredKeys: [] }),
    load: fc.record({ part: PART, seconds: fc.nat(90) }, { requiredKeys: [] }),
  },
  { requiredKeys: ["resuming", "begun", "quiet"] },
);

test("an answer is at one thing, and the cause of a wait comes before what it causes", () => {
  fc.assert(
    fc.property(FACTS, (facts) => {
      const { is, place, part, seconds } = phase(facts);
      const waits = facts.begun === "nothing";
      const first = [
        [facts.resuming, "resuming"],
        [waits && !!facts.wait?.position, "queued"],
        [waits && !!facts.load, "loading"],
        [facts.quiet >= SILENCE, "silent"],
        [facts.prompt !== undefined, "reading"],
        [true, { nothing: "waiting", thoughts: "thinking", text: "answering" }[facts.begun]],
      ].find(([yes]) => yes)![1];
      expect(is).toBe(first);
      if (is === "queued") expect(place).toBe(facts.wait!.position);
      if (is === "loading") {
        expect([part, seconds]).toEqual([facts.load!.part, facts.wait?.expected ?? facts.load!.seconds]);
      }
      if (is === "silent") expect(seconds).toBe(facts.quiet);
    }),
  );
});

test("a load goes from 0 to 1 over all of its stages", () => {
  const stages = ["read", "copy", "warm"];
  fc.assert(
    fc.property(fc.nat(2), PART, PART, (stage, one, two) => {
      const [less, more] = [one, two].sort((a, b) => a - b);
      const at = (value: number, place = stage) => loaded({ stages, current: stages[place], value })!;
      expect(at(less!)).toBeLessThanOrEqual(at(more!));
      expect(at(0)).toBeCloseTo(stage / 3);
      expect(at(1)).toBeCloseTo((stage + 1) / 3);
    }),
  );
  expect(loaded({ stages })).toBeUndefined();
});

test("what goes on evenly takes as long as is said", () => {
  const least = fc.double({ min: 0.05, max: 0.9, noNaN: true });
  fc.assert(
    fc.property(fc.integer({ min: 20, max: 900 }), least, (whole, part) => {
      expect(left({ part: 0, at: 5 }, { part, at: 5 + whole * part })).toBeCloseTo(whole * (1 - part), 5);
    }),
  );
  expect(left({ part: 0.5, at: 0 }, { part: 0.505, at: 60 })).toBeUndefined();
  expect(left({ part: 0, at: 0 }, { part: 0.9, at: 0.5 })).toBeUndefined();
});
