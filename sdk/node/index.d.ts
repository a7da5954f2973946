/** A program that was started and is ready. */
export interface EmbeddedServer {
  /** The address, without a path: `http://127.0.0.1:PORT`. */
  readonly url: string;
  /** Requests carry it: `Authorization: Bearer KEY`. */
  readonly key: string;
  /**
   * Ask the program to end, and kill it after `patience` milliseconds (20000). The promise has its exit status, or null
   * after a signal. Idempotent. Windows has no such request: the program, and every engine with it, ends at once.
   */
  stop(patience?: number): Promise<number | null>;
}

export interface StartOptions {
  /** The folder for everything that the program writes; without one, the user's own folders. */
  home?: string;
  /** More options of `llama-appliance serve`. */
  options?: readonly string[];
  /** The environment of the program; by default this process's own. */
  env?: Readonly<Record<string, string | undefined>>;
  /** Milliseconds until it must be ready; by default 60000. */
  timeout?: number;
  /** Called with each line that the program logs. */
  onLog?: (line: string) => void;
}

/** The program could not be started, or did not become ready. The text has its last lines. */
export class StartError extends Error {}

/**
 * Start the program and wait until it listens. The promise fails with a StartError.
 * @param folderOrProgram the payload folder in the application, or the program itself
 */
export function start(folderOrProgram: string, options?: StartOptions): Promise<EmbeddedServer>;
