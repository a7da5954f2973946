/** How many things the server needs somebody for: asked once a minute while the tab is visible. */
import { get } from "./api";

const EVERY = 60_000; // ms

class Attention {
  /** The errors and warnings that the server has found. */
  wrong = $state(0);

  /** Ask from now on, until the result is called. */
  watch(): () => void {
    const look = () => {
      if (document.hidden) return;
      get<{ errors: number; warnings: number }>("api/doctor?line=1")
        .then(({ errors, warnings }) => (this.wrong = errors + warnings))
        .catch(() => undefined); // the page says already that the server is away
    };
    look();
    const timer = setInterval(look, EVERY);
    return () => clearInterval(timer);
  }
}

export const attention = new Attention();
