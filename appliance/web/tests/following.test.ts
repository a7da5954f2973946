import fc from "fast-check";
import { expect, test } from "vitest";
import { follows, type View } from "../src/lib/following";

const VIEW = fc
  .record({
    height: fc.nat(5000),
    room: fc.integer({ min: 100, max: 900 }),
    part: fc.double({ min: 0, max: 1, noNaN: true }),
  })
  .map(({ height, room, part }): View => {
    const all = Math.max(height, room);
    return { height: all, room, top: Math.round((all - room) * part), lately: all };
  });

test("a movement upwards ends it, and a text that grows does not", () => {
  fc.assert(
    fc.property(VIEW, fc.nat(300), (was, more) => {
      const grown = { ...was, height: was.height + more };
      expect(follows(true, was, grown)).toBe(true);
      expect(follows(false, was, grown)).toBe(false);
      if (was.top > more && more > 0) expect(follows(true, was, { ...was, top: was.top - more })).toBe(false);
    }),
  );
});

test("it begins again at the end, where that was a moment ago", () => {
  fc.assert(
    fc.property(VIEW, fc.integer({ min: 5, max: 300 }), (now, more) => {
      const end = { ...now, top: now.height - now.room };
      const was = { ...end, top: end.top - more };
      expect(follows(false, was, end)).toBe(true);
      expect(follows(false, was, { ...end, height: end.height + more })).toBe(true); // it grew on the way
      expect(follows(false, { ...was, top: was.top - more }, was)).toBe(false); // not at the end yet
    }),
  );
});

test("the wish to go up is enough, but at the top it cannot be followed", () => {
  fc.assert(
    fc.property(VIEW, fc.boolean(), (view, before) => {
      expect(follows(before, view, view, -1)).toBe(before && view.top === 0);
    }),
  );
});

test("text that goes away, or a view that grows, pushes the view up: nobody wanted that", () => {
  const was: View = { top: 500, height: 1000, room: 500, lately: 1000 };
  expect(follows(true, was, { ...was, top: 400, height: 900 })).toBe(true);
  expect(follows(true, was, { ...was, top: 400, room: 600 })).toBe(true);
});
