/**
 * One question at a time: each one ends the one before, whose answer then never comes, however late it is. For an ended
 * one the result is undefined, and so it is for a failure of it.
 */
export class Newest {
  #last = new AbortController();

  async ask<T>(question: (signal: AbortSignal) => Promise<T>): Promise<T | undefined> {
    const { signal } = this.end();
    try {
      const found = await question(signal);
      return signal.aborted ? undefined : found;
    } catch (error) {
      if (signal.aborted) return undefined;
      throw error;
    }
  }

  /** Nobody waits for the last question any more. */
  end(): AbortController {
    this.#last.abort();
    return (this.#last = new AbortController());
  }
}
