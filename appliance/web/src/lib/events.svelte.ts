/**
 * The one event connection of a tab. It is closed while the tab is hidden, because a browser gives a host six
 * connections for all its tabs; coming back, it begins with a snapshot, so nothing that was missed is missing.
 */
import { ask } from "./api";
import { keyring } from "./keyring.svelte";
import { records } from "./sse";

export interface ServerEvent {
  event: string;
  model?: string;
  data?: unknown;
}

const SILENCE = 40_000; // ms; the server says something every 15 s
const LONGEST_WAIT = 10_000;

class Events {
  /** Whether what is shown is what the server says at this moment. */
  live = $state(false);
  /** Whether the server could not be reached at the last try. */
  down = $state(false);
  private listeners = new Set<(event: ServerEvent) => void>();
  private connection: AbortController | undefined;

  listen(listener: (event: ServerEvent) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  start() {
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.open()));
    addEventListener("online", () => this.reopen());
    this.open();
  }

  reopen() {
    this.stop();
    this.open();
  }

  private stop() {
    this.connection?.abort();
    this.connection = undefined;
    this.live = false;
  }

  private open() {
    if (!this.connection && !document.hidden) void this.follow((this.connection = new AbortController()));
  }

  private async follow(connection: AbortController) {
    for (let tries = 0; !connection.signal.aborted; tries++) {
      const quiet = new AbortController();
      const signal = AbortSignal.any([connection.signal, quiet.signal]);
      let timer = 0;
      const heard = () => {
        clearTimeout(timer);
        timer = setTimeout(() => quiet.abort(), SILENCE);
      };
      try {
        heard();
        const response = await ask("api/conversations/events", { signal });
        this.down = false;
        tries = 0;
        const body = response.body!.pipeThrough(
          new TransformStream<Uint8Array, Uint8Array>({
            transform(chunk, out) {
              heard();
              out.enqueue(chunk);
            },
          }),
        );
        this.tell({ event: "connected" });
        this.live = true;
        for await (const data of records(body)) this.tell(JSON.parse(data) as ServerEvent);
      } catch {
        if (connection.signal.aborted) break;
        this.down = !keyring.needed;
      }
      clearTimeout(timer);
      this.live = false;
      if (keyring.needed) return this.stop();
      await pause(Math.min(500 * 2 ** tries, LONGEST_WAIT), connection.signal);
    }
  }

  private tell(event: ServerEvent) {
    for (const listener of this.listeners) listener(event);
  }
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });
}

export const events = new Events();
