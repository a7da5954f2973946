/** What somebody types outside of a chat, kept by the browser until it is used: through other views, reloads and a dead server. */
import { Records } from "./records";

/** By a name for each place that is typed into. */
export const typed = new Records("llama-appliance.typed.");

/** One place: `value` is bound to its fields. It is kept while it is another one than `empty`, and begins as it was kept. */
export class Kept<Value> {
  value = $state() as Value;

  constructor(name: string, empty: Value) {
    this.value = like(empty, typed.read(name).value);
    const nothing = JSON.stringify(empty);
    // It outlives the component in which it was made by one turn: words that are typed just before it goes are kept.
    $effect.root(() => {
      $effect(() => {
        const now = $state.snapshot(this.value) as Value;
        if (JSON.stringify(now) === nothing) typed.drop(name);
        else typed.keep(name, { value: now });
      });
    });
  }
}

/** What was kept, as far as it has the shape that it has to have: another version of the page may have kept it. */
export function like<Value>(empty: Value, kept: unknown): Value {
  if (typeof kept !== typeof empty || kept === null || Array.isArray(kept) !== Array.isArray(empty)) return empty;
  if (typeof empty !== "object" || empty === null || Array.isArray(empty)) return kept as Value;
  const given = kept as Record<string, unknown>;
  const members = Object.entries(empty).map(([name, value]): [string, unknown] => [name, like(value, given[name])]);
  return { ...given, ...Object.fromEntries(members) } as Value;
}
