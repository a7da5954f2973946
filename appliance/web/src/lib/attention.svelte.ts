/** How many things the server needs somebody for: asked once a minute while the tab is visible. */
import { get, type ApiError } from "./api";
import { every } from "./every";

const EVERY = 60_000; // ms

class Attention {
  /** The errors and warnings that the server has found. */
  wrong = $state(0);
  /** Why the server did not say so, in its words. */
  failure = $state("");

  /** Ask from now on, until the result is called. */
  watch(): () => void {
    return every(EVERY, () => {
      if (document.hidden) return;
      get<{ errors: number; warnings: number }>("api/doctor?line=1")
        .then(({ errors, warnings }) => ([this.wrong, this.failure] = [errors + warnings, ""]))
        .catch((error: ApiError) => (this.failure = error.status ? error.message : "")); // else the page says it already
    });
  }
}

export const attention = new Attention();
