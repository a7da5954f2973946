/** Where the conversations are: with the server, or, where it keeps none, in this browser. */
import { ask, askWith, get, send } from "./api";
import type { Carton } from "./messages";

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

  /**
   * The conversations, or those changed after a change. The first answer says where they are as well, so it takes one
   * request and not two.
   */
  async list<T>(since: number): Promise<T> {
    if (this.asked) return this.ask("GET", since ? `${ROOT}?since=${since}` : ROOT);
    const answer = get<State & T>(ROOT);
    return (await this.learn(answer)) ? answer : this.ask("GET", ROOT);
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

  /** The file of some conversations, or of all. The server writes it, also of what only this browser has. */
  async export(ids: string[]): Promise<Response> {
    if (await this.remote()) return ask(`${ROOT}/export?${ids.map((id) => `id=${id}`).join("&")}`);
    const { carton } = await import("./local");
    return askWith(await carton(ids), `${ROOT}/pack`);
  }

  /** Add the conversations of a file that the server can read; the ids of those that are new, and of the others. */
  async import(file: File): Promise<{ imported: string[]; skipped: string[] }> {
    const remote = await this.remote();
    const response = await ask(`${ROOT}/${remote ? "import" : "unpack"}`, { method: "POST", body: file });
    if (remote) return (await response.json()) as { imported: string[]; skipped: string[] };
    const { unpack } = await import("./local");
    return unpack((await response.json()) as Carton);
  }

  /** Ask again: another server may answer now. */
  forget() {
    this.asked = undefined;
  }

  private remote(): Promise<boolean> {
    return this.asked ?? this.learn(get<State>(ROOT));
  }

  private learn(answer: Promise<State>): Promise<boolean> {
    return (this.asked = answer
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
