/** The API key of this browser: kept for good where the person says so, else for this tab. */
import { keep, recall } from "./storage";

const NAME = "llama-appliance.key";

class Keyring {
  key = $state(recall("sessionStorage", NAME) ?? recall("localStorage", NAME) ?? "");
  /** The server wants a key, or another one. */
  needed = $state(false);

  use(key: string, remember: boolean) {
    this.key = key;
    this.needed = false;
    keep("sessionStorage", NAME, remember ? null : key || null);
    keep("localStorage", NAME, remember ? key || null : null);
  }
}

export const keyring = new Keyring();
