import fc from "fast-check";
import { afterEach, expect, test } from "vitest";
import { grouped, periods } from "../src/lib/days";
import type { Conversation } from "../src/lib/messages";

const ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu"];
const HOUR = 3_600_000;
const own = process.env.TZ;
afterEach(() => {
  if (own === undefined) delete process.env.TZ;
  else process.env.TZ = own;
});

/** The calendar's own words for a time, without any arithmetic of ours. */
const told = (time: number, timeZone: string) => new Intl.DateTimeFormat("en-CA", { timeZone }).format(time);
/** Days before, and minutes around their midnight. */
const near = fc.tuple(
  fc.oneof(fc.integer({ min: 0, max: 7 }), fc.integer({ min: 0, max: 40 })),
  fc.integer({ min: -90, max: 90 }),
);
const times = fc.integer({ min: Date.UTC(2012, 1), max: Date.UTC(2040, 1) });

test("a chat stands under the day that its clock shows, across time zones and changes of the clock", () => {
  fc.assert(
    fc.property(times, near, fc.constantFrom(...ZONES), (now, [before, minutes], zone) => {
      process.env.TZ = zone;
      const date = new Date(now);
      const time = new Date(date.getFullYear(), date.getMonth(), date.getDate() - before, 0, minutes).getTime();
      const days = (Date.parse(told(now, zone)) - Date.parse(told(time, zone))) / (24 * HOUR);
      const expected = days <= 0 ? "today" : days === 1 ? "yesterday" : days < 7 ? "thisWeek" : undefined;
      const [year, month] = told(time, zone).split("-").map(Number);
      expect(periods(now)(time)).toBe(expected ?? `${year}-${month}`);
    }),
    { numRuns: 400 },
  );
});

test("every chat stands somewhere, those of today above all folders, the folders above the months", () => {
  const chat = fc.record({
    id: fc.uuid(),
    pinned: fc.boolean(),
    folder: fc.constantFrom("", "", "Tax", "Garden"),
    age: fc.integer({ min: 0, max: 24 * 70 }),
  });
  fc.assert(
    fc.property(times, fc.uniqueArray(chat, { selector: ({ id }) => id }), (now, chats) => {
      const list = chats.map(({ age, ...rest }) => ({ ...rest, updated: now - age * HOUR }) as Conversation);
      list.sort((one, other) => other.updated - one.updated);
      const groups = grouped(list, now);
      const kind = ({ name, folder }: (typeof groups)[number]) => (folder ? 1 : name.includes("-") ? 2 : 0);
      expect(groups.map(kind)).toEqual(groups.map(kind).sort());
      const keys = groups.flatMap(({ rows }) => rows.map(({ key }) => key));
      expect(new Set(keys).size).toBe(keys.length);
      for (const each of list) {
        const today = periods(now)(each.updated) === "today";
        const within = groups.filter(({ rows }) => rows.some((row) => row.each === each)).map(({ name }) => name);
        const days = today || !each.folder ? [periods(now)(each.updated)] : [];
        expect(within).toEqual(each.pinned ? ["pinned"] : [...days, ...(each.folder ? [each.folder] : [])]);
      }
    }),
  );
});
