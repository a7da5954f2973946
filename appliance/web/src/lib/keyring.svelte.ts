/** The API key of this browser: kept for good where the person says so, else for this tab. */
const NAME = "llama-appliance.key";

function stored(): string {
  try {
    return sessionStorage.getItem(NAME) ?? localStorage.getItem(NAME) ?? "";
  } catch {
    return ""; // storage is forbidden: the key lives in memory
  }
}

class Keyring {
  key = $state(stored());
  /** The server wants a key, or another one. */
  needed = $state(false);

  refused() {
    this.needed = true;
  }

  use(key: string, remember: boolean) {
    this.key = key;
    this.needed = false;
    try {
      sessionStorage.removeItem(NAME);
      localStorage.removeItem(NAME);
      if (key) (remember ? localStorage : sessionStorage).setItem(NAME, key);
    } catch {
      // as above
    }
  }
}

export const keyring = new Keyring();
