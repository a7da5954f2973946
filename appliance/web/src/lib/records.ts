/** Records of one kind in a browser's storage, each under its name. Where there is no room for one, the oldest other goes. */
const MOST = 100;

export class Records {
  constructor(private readonly prefix: string) {}

  /** What was kept under a name, of whatever shape; nothing if nothing was, or if storage is forbidden. */
  read(name: string): Record<string, unknown> {
    try {
      return (JSON.parse(localStorage.getItem(this.prefix + name) ?? "null") ?? {}) as Record<string, unknown>;
    } catch {
      return {};
    }
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
    try {
      localStorage.removeItem(this.prefix + name);
    } catch {
      // storage is forbidden
    }
  }

  dropAll() {
    for (const key of this.keys()) localStorage.removeItem(key);
  }

  private keys(): string[] {
    return Object.keys(localStorage).filter((key) => key.startsWith(this.prefix));
  }
}
