/** The server's tools, built in or of MCP servers, and what the person lets them do. */
import { get, send } from "./api";
import type { ToolCall } from "./messages";
import { keep, recalled } from "./storage";

export interface Tool {
  tool: string;
  display_name: string;
  type: "builtin" | "mcp";
  permissions: { write: boolean };
  definition: { type: "function"; function: { name: string; description: string; parameters: object } };
}

/** How long a permission lasts. It belongs to this browser, so that no imported conversation brings one along. */
export type Lasting = "once" | "chat" | "always";

const ALWAYS = "llama-appliance.tools";

const always = () => (recalled("localStorage", ALWAYS) ?? []) as string[];
const inChat = (chat: string) => (recalled("sessionStorage", `${ALWAYS}.${chat}`) ?? []) as string[];

class Tools {
  all = $state.raw<Tool[]>([]);
  always = $state.raw(always());
  private reading: Promise<void> | undefined;

  /** The list stays the same while the server runs; none are switched on unless somebody asked for them. */
  read(): Promise<void> {
    return (this.reading ??= get<{ tools_enabled: boolean }>("props")
      .then(async (props) => void (this.all = props.tools_enabled ? await get<Tool[]>("tools") : []))
      .catch(() => void (this.reading = undefined)));
  }

  find(name: string): Tool | undefined {
    return this.all.find((each) => each.tool === name);
  }

  /** What another program's tool does, nobody here knows: it counts as writing. */
  writes(name: string): boolean {
    const tool = this.find(name);
    return !tool || tool.permissions.write || tool.type === "mcp";
  }

  allowed(name: string, chat: string): boolean {
    return !this.writes(name) || this.always.includes(name) || inChat(chat).includes(name);
  }

  allow(name: string, chat: string, lasting: Lasting) {
    if (lasting === "always") this.set([...new Set([...this.always, name])]);
    if (lasting === "chat") keep("sessionStorage", `${ALWAYS}.${chat}`, JSON.stringify([...inChat(chat), name]));
  }

  revoke(name: string) {
    this.set(this.always.filter((each) => each !== name));
  }

  private set(always: string[]) {
    this.always = always;
    keep("localStorage", ALWAYS, JSON.stringify(always));
  }

  /** Use a tool; what went wrong is told to the model, which may do better then. */
  async run(call: ToolCall): Promise<string> {
    try {
      const asked = { tool: call.function.name, params: JSON.parse(call.function.arguments || "{}") as unknown };
      const said = await send<{ plain_text_response?: string; error?: string }>("POST", "tools", asked);
      return said.error !== undefined ? `Error: ${said.error}` : (said.plain_text_response ?? JSON.stringify(said));
    } catch (error) {
      return `Error: ${error instanceof Error ? error.message : String(error)}`;
    }
  }
}

export const tools = new Tools();
