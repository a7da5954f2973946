/** Where the conversations are: with the server, or, where it keeps none, in this browser. */
import { ask, get, send } from "./api";

export const ROOT = "api/conversations";

interface State {
  enabled: boolean;
}

class Keeping {
  /** The server has said that it keeps none. */
  here = $state(false);
  private asked: Promise<boolean> | undefined;

  /** Ask a route of `/api/conversations`, wherever it is answered. */
  async ask<T>(method: string, path: string, body?: unknown): Promise<T> {
    if (await this.remote()) return method === "GET" ? get<T>(path) : send<T>(method, path, body);
    const { local } = await import("./local");
    return (await local(method, path, body)) as T;
  }

  /** Store a file; the answer has its name in the store. */
  async store(file: Blob, type: string): Promise<{ hash: string; size: number }> {
    const path = `${ROOT}/attachments`;
    if (!(await this.remote())) return this.ask("POST", path, file);
    const response = await ask(path, { method: "POST", body: file, headers: { "Content-Type": type } });
    return (await response.json()) as { hash: string; size: number };
  }

  async content(hash: string): Promise<Blob> {
    const path = `${ROOT}/attachments/${hash}`;
    return (await this.remote()) ? (await ask(path)).blob() : this.ask("GET", path);
  }

  /** Ask again: another server may answer now. */
  forget() {
    this.asked = undefined;
  }

  private remote(): Promise<boolean> {
    return (this.asked ??= get<State>(ROOT)
      .then(({ enabled }) => {
        this.here = !enabled;
        return enabled;
      })
      .catch((error) => {
        this.asked = undefined;
        throw error;
      }));
  }
}

export const keeping = new Keeping();
