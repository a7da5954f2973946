/** The server's tools, built in or of MCP servers, and what the person lets them do. */
import { get, send } from "./api";
import type { ToolCall } from "./messages";

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

function names(store: Storage, key: string): string[] {
  try {
    return JSON.parse(store.getItem(key) ?? "[]") as string[];
  } catch {
    return [];
  }
}

function keep(store: Storage, key: string, allowed: string[]) {
  try {
    store.setItem(key, JSON.stringify(allowed));
  } catch {
    // storage is forbidden: it is asked again
  }
}

class Tools {
  all = $state.raw<Tool[]>([]);
  always = $state.raw(names(localStorage, ALWAYS));
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
    return (
      !this.writes(name) || this.always.includes(name) || names(sessionStorage, `${ALWAYS}.${chat}`).includes(name)
    );
  }

  allow(name: string, chat: string, lasting: Lasting) {
    if (lasting === "always") keep(localStorage, ALWAYS, (this.always = [...new Set([...this.always, name])]));
    if (lasting === "chat") {
      keep(sessionStorage, `${ALWAYS}.${chat}`, [...names(sessionStorage, `${ALWAYS}.${chat}`), name]);
    }
  }

  revoke(name: string) {
    keep(localStorage, ALWAYS, (this.always = this.always.filter((each) => each !== name)));
  }

  /** Use a tool; what went wrong is told to the model, which may do better then. */
  async run(call: ToolCall): Promise<string> {
    try {
      const params: unknown = JSON.parse(call.function.arguments || "{}");
      const said = await send<{ plain_text_response?: string; error?: string }>("POST", "tools", {
        tool: call.function.name,
        params,
      });
      return said.error !== undefined ? `Error: ${said.error}` : (said.plain_text_response ?? JSON.stringify(said));
    } catch (error) {
      return `Error: ${error instanceof Error ? error.message : String(error)}`;
    }
  }
}

export const tools = new Tools();
