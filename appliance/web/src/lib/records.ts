/** Records of one kind in a browser's storage, each under its name. Where there is no room for one, the oldest other goes. */
import { keep, recalled } from "./storage";

const MOST = 100;

export class Records {
  constructor(private readonly prefix: string) {}

  /** What was kept under a name, of whatever shape; nothing if nothing was, or if storage is forbidden. */
  read(name: string): Record<string, unknown> {
    return (recalled("localStorage", this.prefix + name) ?? {}) as Record<string, unknown>;
  }

  keep(name: string, record: object) {
    try {
      const others = this.keys().filter((key) => key !== this.prefix + name);
      const age = new Map(others.map((key) => [key, Number(/"at":(\d+)/.exec(localStorage.getItem(key) ?? "")?.[1])]));
      others.sort((a, b) => age.get(b)! - age.get(a)!);
      for (const old of others.splice(MOST - 1)) localStorage.removeItem(old);
      for (;;) {
        try {
          return localStorage.setItem(this.prefix + name, JSON.stringify({ at: Date.now(), ...record }));
        } catch (error) {
          const oldest = others.pop();
          if (!oldest) throw error;
          localStorage.removeItem(oldest);
        }
      }
    } catch {
      // storage is forbidden: it lives as long as the page
    }
  }

  drop(name: string) {
    keep("localStorage", this.prefix + name, null);
  }

  dropAll() {
    for (const key of this.keys()) localStorage.removeItem(key);
  }

  private keys(): string[] {
    return Object.keys(localStorage).filter((key) => key.startsWith(this.prefix));
  }
}
