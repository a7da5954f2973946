/** The models of the server as its events tell of them. */
import { oneByOne } from "./again";
import { ApiError, get, send } from "./api";
import { folded } from "./ids";
import { events, type ServerEvent } from "./events.svelte";
import { t, type Word } from "./prefs.svelte";
import { toasts } from "./toasts.svelte";

export interface Progress {
  done: number;
  total: number;
}

/** What an engine says of its load: the part of the current stage that is done. */
export interface Load {
  stages?: string[];
  current?: string;
  value?: number;
}

/** Of a download each file, and else that of the load. */
type Coming = Record<string, Progress> | Load;

export interface Model {
  id: string;
  name?: string;
  description?: string;
  aliases?: string[];
  source?: string;
  can_remove?: boolean;
  status?: {
    value: string;
    failed?: boolean;
    error?: string;
    paused?: boolean;
    queued?: boolean;
    engine?: string;
    progress?: Coming;
  };
  architecture?: { input_modalities?: string[]; output_modalities?: string[] };
  capabilities?: { reranker?: boolean };
  meta?: { n_ctx?: number; n_ctx_train?: number; n_params?: number; size?: number; ftype?: string } | null;
}

/** A loaded model as `/api/ps` tells of it. */
export interface Use {
  name: string;
  size: number;
  size_vram: number;
  expires_at: string;
  queue: number;
}

/** How long an answer waits: its place in the queue for models, and the seconds of loads before it, where known. */
export interface Wait {
  position?: number;
  expected?: number;
}

/** What the server foretells of a model that is not here yet, in bytes. */
export interface Fit {
  verdict: "fits" | "partly" | "no";
  needed: number;
  free: number;
  speed: "fast" | "medium" | "slow";
}

/** The starter model: a part of the program that shows how the page works, and knows nothing else. */
export function isDemo(model: Model | undefined): boolean {
  return model?.source === "starter";
}

/** The hub gives nothing at the moment; the page says so in its own words. */
export function isHubAway(error: unknown): boolean {
  return error instanceof ApiError && ["hub_failed", "offline"].includes(error.reason);
}

/** Questions for the demo that it answers well, and for every other model. */
export const DEMO_QUESTIONS: Word[] = ["demo1", "demo2", "demo3", "demo4"];
export const QUESTIONS: Word[] = ["sample1", "sample2", "sample3"];

/** More models than this have a search field. */
export const MANY = 6;

const takes = (model: Model, kind: string) => (model.architecture?.input_modalities ?? ["text"]).includes(kind);
export const gives = (model: Model, kind: string) => (model.architecture?.output_modalities ?? ["text"]).includes(kind);

const RETRY = 5000; // ms

class Models {
  /** What the loaded ones take, by name. */
  uses = $state.raw<ReadonlyMap<string, Use>>(new Map());
  all = $state<Model[]>([]);
  /** The answers that wait for their model, by the message. */
  waits = $state.raw<Record<string, Wait>>({});
  /** False until the server has once said which models it has. */
  known = $state(false);
  /** Why it did not say so lately, in its words. */
  failure = $state("");
  /** When it last did, in ms since 1970. */
  at = $state(0);
  private retry: ReturnType<typeof setTimeout> | undefined;

  constructor() {
    events.listen((event) => this.hear(event));
  }

  /** Those whose name or id has each word. */
  named(search: string, all: Model[] = this.all): Model[] {
    const words = folded(search).split(/\s+/);
    return all.filter((each) => words.every((word) => folded(`${each.name ?? ""} ${each.id}`).includes(word)));
  }

  /** Models that can be talked to. */
  get usable(): Model[] {
    return this.all.filter(
      (model) => !(model.status?.error && !model.status.failed) && this.state(model) !== "downloading",
    );
  }

  /** What a new chat talks to: one that is loaded, and the demo only where there is nothing else. */
  get usual(): Model | undefined {
    const rank = (model: Model) =>
      (takes(model, "text") && gives(model, "text") ? 0 : 4) +
      (isDemo(model) ? 2 : 0) +
      (this.state(model) === "loaded" ? 0 : 1);
    return [...this.usable].sort((a, b) => rank(a) - rank(b))[0];
  }

  /** One that turns speech into text; a model for nothing else comes first. */
  get transcriber(): Model | undefined {
    const able = this.usable.filter((model) => takes(model, "audio") && gives(model, "text"));
    return able.find((model) => !takes(model, "text")) ?? able[0];
  }

  /** One that reads aloud. */
  get speaker(): Model | undefined {
    return this.usable.find((model) => gives(model, "audio"));
  }

  find(id: string | undefined): Model | undefined {
    return this.all.find((model) => model.id === id || model.aliases?.includes(id ?? ""));
  }

  state(model: Model): string {
    return model.status?.value ?? "loaded";
  }

  load = (model: string) => this.order("POST", "models/load", { model });
  unload = (model: string) => this.order("POST", "models/unload", { model });
  pause = (model: string) => this.order("POST", "models/pause", { model });
  remove = (id: string) => this.order("DELETE", `models?model=${encodeURIComponent(id)}`);
  /** With `sha256` only the file that has it. */
  pull = (model: string, sha256?: string) => this.order("POST", "models", { model, sha256 });
  /** How long it stays loaded without being used: seconds, negative for ever. It is loaded if it is not. */
  keep = (model: string, seconds: number) =>
    this.order("POST", "api/generate", { model, keep_alive: seconds, stream: false });

  /** Whether it was done; a toast says why not. */
  private async order(method: string, path: string, body?: unknown): Promise<boolean> {
    try {
      await send(method, path, body);
      await this.read();
      return true;
    } catch (error) {
      if (isHubAway(error)) toasts.tell(t("hubAway"), "bad");
      else toasts.failed(error);
      return false;
    }
  }

  private hear(event: ServerEvent) {
    if (event.event === "answers_waiting") return void (this.waits = event.data as Record<string, Wait>);
    const { status = "", progress } = (event.data ?? {}) as { status?: string; progress?: Coming };
    const model = this.find(event.model);
    if (model?.status && progress && (event.event === "download_progress" || status === "loading")) {
      model.status = { ...model.status, progress, ...(status ? { value: status } : {}) };
      return;
    }
    if (event.event === "connected") this.waits = {};
    if (event.event === "connected" || event.model) void this.read();
  }

  readonly read = oneByOne(async () => {
    try {
      this.all = [...(await get<{ data: Model[] }>("v1/models")).data];
      this.known = true;
      [this.failure, this.at] = ["", Date.now()];
      const { models: used } = await get<{ models: Use[] }>("api/ps");
      this.uses = new Map(used.map((each) => [each.name, each]));
    } catch (error) {
      this.failure = error instanceof ApiError ? error.message : t("lookOdd");
      clearTimeout(this.retry);
      this.retry = setTimeout(() => void this.read(), RETRY);
    }
  });
}

export const models = new Models();
