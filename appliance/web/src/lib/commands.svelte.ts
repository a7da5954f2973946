/** The plugins that a prompt may begin with, as `/name`. */
import { get } from "./api";

export interface Command {
  name: string;
  description: string;
}

let all = $state.raw<Command[]>([]);
let reading: Promise<void> | undefined;

/** What could be meant by a text that ends in the middle of a command; commands may follow each other. */
export function offered(text: string): { before: string; commands: Command[] } {
  const typed = /^((?:\/[\w-]+\s+)*)\/([\w-]*)$/.exec(text);
  if (!typed) return { before: "", commands: [] };
  reading ??= get<{ agents: (Command & { state: string })[] }>("api/agents")
    .then(({ agents }) => void (all = agents.filter((each) => each.state === "ready" || each.state === "loading")))
    .catch(() => (reading = undefined));
  return { before: typed[1]!, commands: all.filter((each) => each.name.startsWith(typed[2]!)) };
}
