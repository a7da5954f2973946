/** The answer of a route: asked for at once, whenever its address changes, and from time to time while the tab is visible. */
import { get } from "./api";

export class Looked<Answer> {
  answer = $state.raw<Answer>();
  readonly #path: () => string;
  readonly #seen: (answer: Answer) => void;

  /** Made where a component begins, with which it ends. `pause` is in milliseconds. */
  constructor(path: () => string, pause: number, seen: (answer: Answer) => void = () => undefined) {
    this.#path = path;
    this.#seen = seen;
    $effect(() => {
      void this.again();
      const timer = setInterval(() => void this.again(), pause);
      return () => clearInterval(timer);
    });
  }

  /** An answer for an address that is not the present one any more is dropped; a failure leaves the last answer. */
  again = async () => {
    if (document.hidden) return;
    const path = this.#path();
    const found = await get<Answer>(path).catch(() => undefined); // the page says already that the server is away
    if (found === undefined || path !== this.#path()) return;
    this.answer = found;
    this.#seen(found);
  };
}
