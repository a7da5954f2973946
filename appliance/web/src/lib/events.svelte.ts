/**
 * The one event connection of a tab. It is closed while the tab is hidden, because a browser gives a host six
 * connections for all its tabs; coming back, it begins with a snapshot, so nothing that was missed is missing.
 */
import { ask, onReach } from "./api";
import { keyring } from "./keyring.svelte";
import { records } from "./sse";

export interface ServerEvent {
  event: string;
  model?: string;
  data?: unknown;
}

const PATH = "api/conversations/events";
const SILENCE = 40_000; // ms; the server says something every 15 s
const LONGEST_WAIT = 3_000;

class Events {
  /** Whether what is shown is what the server says at this moment. */
  live = $state(false);
  /** Since when the server cannot be reached, in ms since 1970; 0 while it can. */
  since = $state(0);
  private listeners = new Set<(event: ServerEvent) => void>();
  private connection: AbortController | undefined;

  get down(): boolean {
    return this.since > 0;
  }

  listen(listener: (event: ServerEvent) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  start() {
    document.addEventListener("visibilitychange", () => (document.hidden ? this.stop() : this.open()));
    addEventListener("online", () => this.reopen());
    onReach((path, yes) => this.reach(path, yes));
    this.open();
  }

  /** Any request tells. What was missed meanwhile is read over a new connection. */
  private reach(path: string, yes: boolean) {
    if (yes === !this.down) return;
    this.since = yes || keyring.needed ? 0 : Date.now();
    if (path !== PATH) this.reopen();
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
      let timer: ReturnType<typeof setTimeout> | undefined;
      const heard = () => {
        clearTimeout(timer);
        timer = setTimeout(() => quiet.abort(), SILENCE);
      };
      try {
        heard();
        const { body } = await ask(PATH, { signal });
        tries = 0;
        this.tell({ event: "connected" });
        this.live = true;
        for await (const data of records(body!, { heard })) this.tell(JSON.parse(data) as ServerEvent);
      } catch {
        if (connection.signal.aborted) break;
      }
      clearTimeout(timer);
      this.live = false;
      if (keyring.needed) return this.stop();
      await new Promise((resolve) => setTimeout(resolve, Math.min(500 * 2 ** tries, LONGEST_WAIT)));
    }
  }

  private tell(event: ServerEvent) {
    for (const listener of this.listeners) listener(event);
  }
}

export const events = new Events();
