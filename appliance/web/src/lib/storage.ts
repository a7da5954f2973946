/** A browser's storage, which may be forbidden or full: then nothing is found, and what is kept holds for this page. */
import { parsed } from "./ids";

type Kind = "localStorage" | "sessionStorage";

export function recall(kind: Kind, name: string): string | null {
  try {
    return globalThis[kind].getItem(name);
  } catch {
    return null;
  }
}

/** Null forgets it. */
export function keep(kind: Kind, name: string, value: string | null) {
  try {
    if (value === null) globalThis[kind].removeItem(name);
    else globalThis[kind].setItem(name, value);
  } catch {
    // it holds for this page
  }
}

/** What was kept as JSON, of whatever shape. */
export function recalled(kind: Kind, name: string): unknown {
  return parsed(recall(kind, name) ?? "") ?? null;
}
