/** What one browser prefers: theme, language, how Enter behaves, whether the side is open. Nothing secret. */
import type { first } from "../i18n/first";
import { keep, recalled } from "./storage";

export type Theme = "system" | "light" | "dark";
export type Language = "en" | "de";
export type Word = keyof typeof first;

interface Prefs {
  theme: Theme;
  language: Language;
  enterSends: boolean;
  side: boolean;
  /** Folders of conversations that do not show what is in them. */
  folded: string[];
  /** Of the list of requests; none: the usual ones. */
  columns: string[];
  /** The welcome need not come by itself any more. */
  welcomed: boolean;
}

const NAME = "llama-appliance.prefs";
const dictionaries: Record<Language, () => Promise<{ default: Record<Word, string> }>> = {
  en: () => import("words:en"),
  de: () => import("words:de"),
};

export const prefs = $state<Prefs>({
  theme: "system",
  language: navigator.language.toLowerCase().startsWith("de") ? "de" : "en",
  enterSends: !matchMedia("(pointer: coarse)").matches,
  side: true,
  folded: [],
  columns: [],
  welcomed: false,
  ...(recalled("localStorage", NAME) as Partial<Prefs> | null),
});
/** The words of one language come with the page, those of another when it is chosen. */
let words = $state.raw((await dictionaries[prefs.language]()).default);

/** Keep what changed, and show it. */
export function follow() {
  $effect(() => {
    const { language } = prefs;
    document.documentElement.lang = language;
    void dictionaries[language]().then((found) => {
      if (language === prefs.language) words = found.default;
    });
  });
  $effect(() => {
    keep("localStorage", NAME, JSON.stringify(prefs));
    for (const each of ["light", "dark"]) {
      const wins = prefs.theme === each;
      document.documentElement.classList.toggle(`scheme-${each}`, wins);
      const bar = document.querySelector<HTMLMetaElement>(`meta[data-theme=${each}]`);
      bar!.media = prefs.theme === "system" ? `(prefers-color-scheme: ${each})` : wins ? "all" : "not all";
    }
  });
}

/** The chosen language as the browser's own country writes it. */
export function locale(): string {
  return navigator.languages.find((each) => each.split("-")[0] === prefs.language) ?? prefs.language;
}

/** A word with forms for one and for others, `a|b`, has the form of its `count`. */
export function filled(text: string, values: Record<string, string | number>): string {
  const [one, other = one] = text.split("|") as [string, string?];
  const form = new Intl.PluralRules(prefs.language).select(Number(values.count)) === "one" ? one : other;
  return form.replace(/\{(\w+)\}/g, (_, name: string) => {
    const value = values[name] ?? "";
    return typeof value === "number" ? number(value) : value;
  });
}

/** The words of the first load, with `{name}` filled in. */
export function t(word: Word, values: Record<string, string | number> = {}): string {
  return filled(words[word], values);
}

export function bytes(count: number): string {
  const units = ["byte", "kilobyte", "megabyte", "gigabyte"];
  const power = Math.min(Math.floor(Math.log(Math.max(count, 1)) / Math.log(1000)), 3);
  const digits = power > 0 && count / 1000 ** power < 10 ? 1 : 0;
  const unit = { style: "unit", unit: units[power], unitDisplay: power ? "short" : "long" } as const;
  return new Intl.NumberFormat(locale(), { ...unit, maximumFractionDigits: digits }).format(count / 1000 ** power);
}

export function number(value: number, digits = 0): string {
  return new Intl.NumberFormat(locale(), { maximumFractionDigits: digits }).format(value);
}

export function percent(part: number): string {
  return new Intl.NumberFormat(locale(), { style: "percent" }).format(part);
}

/** In one unit. A time to come is rounded up; one that was measured has digits where it is short. */
export function duration(seconds: number, digits = 0): string {
  const [value, unit] = seconds < 100 ? [seconds, "s"] : seconds < 6000 ? [seconds / 60, "min"] : [seconds / 3600, "h"];
  return `${number(digits ? value : Math.ceil(value), value < 10 ? Math.min(digits, unit === "s" ? 2 : 1) : 0)}\u00a0${unit}`;
}

export function day(time: number, timeStyle: "short" | "medium" = "short"): string {
  return new Intl.DateTimeFormat(locale(), { dateStyle: "medium", timeStyle }).format(time);
}

/** The name of a month that is written as `2026-11`. */
export function monthName(month: string): string {
  const [year, at] = month.split("-").map(Number);
  return new Intl.DateTimeFormat(prefs.language, { month: "long", year: "numeric" }).format(new Date(year!, at! - 1));
}
