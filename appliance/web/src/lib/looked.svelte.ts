/**
 * The answer of a route: asked for at once, whenever its address changes, and from time to time while the tab is visible.
 * `parts/Shown.svelte` draws it, and says where there is none, or none any more.
 */
import { on } from "svelte/events";
import { ApiError, ask, get } from "./api";
import { t } from "./later.svelte";
import { Newest } from "./newest";

/** `old`: the last look failed, or takes too long, and what there is comes from an earlier one. */
export type LookState = "waiting" | "failed" | "old" | "good";

/** What `Shown` draws. */
export interface Look<Answer> {
  readonly state: LookState;
  readonly answer: Answer | undefined;
  /** In the server's words. */
  readonly failure: string;
  /** When the answer came, in ms since 1970. */
  readonly at: number;
  again: () => Promise<unknown>;
}

interface Ways<Answer> {
  /** Members of a good answer that are lists: a server, or a proxy before it, may answer with something else. */
  lists: (keyof Answer)[];
  /** Between two looks, in milliseconds; without it one look is enough. */
  pause?: number;
  /** Where an answer is only what is new: the rest of the address, and both together; undefined begins anew. */
  rest?: (known: Answer) => string;
  join?: (known: Answer, found: Answer) => Answer | undefined;
  seen?: (answer: Answer) => void;
  /** While it does, no look is made but where somebody wishes it or the address changes. */
  holds?: () => boolean;
}

export const OFTEN = 3000; // ms between two looks of a view that people watch
const SOON = 150; // ms; an address that is being typed is not asked for with every letter
const LATE = 5000; // ms without an answer, from when what is shown counts as old

export class Looked<Answer extends object> implements Look<Answer> {
  answer = $state.raw<Answer>();
  at = $state(0);
  readonly #path: () => string;
  readonly #ways: Ways<Answer>;
  readonly #newest = new Newest();
  /** The addresses of the answer and of the last failure. */
  #answered = $state("");
  #failed = $state.raw<{ path: string; why: string; off?: boolean }>();
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** Made where a component begins, with which it ends. */
  constructor(path: () => string, ways: Ways<Answer>) {
    this.#path = path;
    this.#ways = ways;
    let isFirst = true;
    $effect(() => {
      path();
      const first = setTimeout(() => void this.again(), isFirst ? 0 : SOON);
      isFirst = false;
      return () => clearTimeout(first);
    });
    $effect(() => {
      const back = on(document, "visibilitychange", () => void this.again());
      return () => {
        back();
        this.#newest.end();
        clearTimeout(this.#timer);
      };
    });
  }

  get #current(): boolean {
    return this.answer !== undefined && this.#answered === this.#path();
  }

  get failure(): string {
    return this.#failed?.path === this.#path() ? this.#failed.why : "";
  }

  /** The configuration has switched off what the route would tell of. */
  get off(): boolean {
    return this.failure !== "" && !!this.#failed?.off;
  }

  get state(): LookState {
    if (this.failure) return this.#current ? "old" : "failed";
    return this.#current ? "good" : "waiting";
  }

  /** What is shown is the answer of another address than the present one, which is still awaited. */
  get before(): boolean {
    return !this.#current;
  }

  /** One look after the other: a slow server is not asked faster than it answers. One that somebody wishes comes at once. */
  again = async () => {
    clearTimeout(this.#timer);
    const path = this.#path();
    if (document.hidden || !path) return; // it is asked again when it is shown; or there is nothing to ask
    const known = this.#current ? this.answer : undefined;
    const late = setTimeout(() => (this.#failed = { path, why: t("lookLate") }), LATE);
    let next = this.#ways.pause;
    try {
      const text = await this.#newest.ask((signal) => read(path + ((known && this.#ways.rest?.(known)) ?? ""), signal));
      if (text === undefined) return; // another look is on its way
      const found = JSON.parse(text) as Answer;
      if (!this.#ways.lists.every((name) => Array.isArray(found[name]))) throw new SyntaxError();
      const all = known && this.#ways.join ? this.#ways.join(known, found) : found;
      if (all) this.take(all, path);
      else [this.answer, next] = [undefined, 0];
    } catch (error) {
      const refused = error instanceof ApiError ? error : undefined;
      this.#failed = { path, why: refused?.message ?? t("lookOdd"), off: refused?.details.enabled === false };
    } finally {
      clearTimeout(late);
    }
    if (next !== undefined) this.#plan(next);
  };

  #plan(pause: number) {
    this.#timer = setTimeout(() => (this.#ways.holds?.() ? this.#plan(pause) : void this.again()), pause);
  }

  /** An answer that came another way, such as that to a change. */
  take = (answer: Answer, path = this.#path()) => {
    this.#ways.seen?.(answer);
    [this.answer, this.#answered, this.#failed, this.at] = [answer, path, undefined, Date.now()];
  };

  /** Another part of what is at the address; undefined where another address is wanted by now. */
  async part(rest: string): Promise<Answer | undefined> {
    const path = this.#path();
    const found = await get<Answer>(path + rest);
    return path === this.#path() ? found : undefined;
  }
}

async function read(path: string, signal: AbortSignal): Promise<string> {
  const response = await ask(path, { signal });
  return response.text().catch(() => {
    throw new ApiError(t("serverAway"), 0); // it was reached, and then the connection broke
  });
}
