/** A load that failed, in the server's words (`ModelFailedToStart` and `WillNotFit` of `appliance/errors.py`). */
export interface FailedLoad {
  model: string;
  /** It says the numbers, where memory is the cause. */
  cause: string;
  log: string[];
}

const WORDS = /^model '(.+?)' (?:failed to start|will not fit): ([^]*?)(?:; its last log lines:\n([^]*))?$/;
/** What engines say of memory; a file that is broken needs neither a smaller context nor room. */
const MEMORY = /memory|will not fit|alloc|VRAM|\bbudget\b/i;

export function failedLoad(error: string): FailedLoad | undefined {
  const match = WORDS.exec(error);
  if (!match) return undefined;
  const [, model, cause, log = ""] = match;
  return { model: model!, cause: cause!, log: log.split("\n").flatMap((line) => line.trim() || []) };
}

export function lacksMemory(error: string): boolean {
  return MEMORY.test(error);
}
