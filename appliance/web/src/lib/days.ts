/** Conversations under headings: the last days by the calendar of the person's own clock, the folders, the months. */
import type { Conversation } from "./messages";

/** Months are `2026-11`. */
export type Period = "today" | "yesterday" | "thisWeek" | `${number}-${number}`;

const WEEK = 7; // days, today among them

/** Tells the period of a time, as it is now. A day may have 23 or 25 hours; what is later than now is of today. */
export function periods(now: number): (time: number) => Period {
  const date = new Date(now);
  const midnight = (before: number) => new Date(date.getFullYear(), date.getMonth(), date.getDate() - before).getTime();
  const [today, yesterday, week] = [midnight(0), midnight(1), midnight(WEEK - 1)];
  return (time) => {
    if (time >= today) return "today";
    if (time >= yesterday) return "yesterday";
    if (time >= week) return "thisWeek";
    const past = new Date(time);
    return `${past.getFullYear()}-${past.getMonth() + 1}`;
  };
}

export interface Group {
  name: Period | "pinned" | (string & {});
  folder: boolean;
  /** Each with a key of its own: a conversation of today that is in a folder stands in both. */
  rows: { key: string; each: Conversation }[];
}

/** `list` has the newest first. What is pinned stands nowhere else. */
export function grouped(list: readonly Conversation[], now: number): Group[] {
  const period = periods(now);
  const [first, folders, months] = [0, 1, 2].map(() => new Map<string, Group>()) as [Groups, Groups, Groups];
  const put = (groups: Groups, name: string, each: Conversation) => {
    const folder = groups === folders;
    if (!groups.has(name)) groups.set(name, { name, folder, rows: [] });
    groups.get(name)!.rows.push({ key: `${folder ? "/" : ""}${name} ${each.id}`, each });
  };
  for (const each of list) if (each.pinned) put(first, "pinned", each);
  for (const each of list) {
    if (each.pinned) continue;
    const when = period(each.updated);
    if (when === "today" || !each.folder) put(when.includes("-") ? months : first, when, each);
    if (each.folder) put(folders, each.folder, each);
  }
  const named = [...folders.values()].sort((one, other) => one.name.localeCompare(other.name));
  return [...first.values(), ...named, ...months.values()];
}

type Groups = Map<string, Group>;
