/** The one client of the server's routes. Every address is relative to the page's own, so a path prefix costs nothing. */
import { keyring } from "./keyring.svelte";
import { t } from "./prefs.svelte";

/** The built script lies in `<prefix>/ui/assets/`, the source in `<prefix>/src/lib/`. */
const BASE = new URL(/* @vite-ignore */ "../../", import.meta.url);

/** What the server said no with; `status` is 0 when it could not be reached. */
export class ApiError extends Error {
  constructor(
    message: string,
    readonly status: number,
    readonly reason = "",
    readonly details: Record<string, unknown> = {},
  ) {
    super(message);
  }
}

/** Told of every try whether the server could be reached. */
let reached: (path: string, yes: boolean) => void = () => undefined;
export function onReach(listener: typeof reached) {
  reached = listener;
}

export function address(path: string): URL {
  return new URL(path.replace(/^\//, ""), BASE);
}

/** Ask; every answer but a good one is thrown as an ApiError. A refused key opens the question for it. */
export async function ask(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  if (keyring.key) headers.set("Authorization", `Bearer ${keyring.key}`);
  let response: Response;
  try {
    response = await fetch(address(path), { ...init, headers, credentials: "omit", cache: "no-store" });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    reached(path, false);
    throw new ApiError(t("serverAway"), 0, "unreachable");
  }
  if (response.ok) {
    reached(path, true);
    return response;
  }
  if (response.status === 401) keyring.needed = true;
  throw await refusal(response);
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await ask(path, { signal })).json() as Promise<T>;
}

/** Ask with a body of JSON. */
export function askWith(body: unknown, path: string, init: RequestInit = {}): Promise<Response> {
  const headers = { ...(init.headers as Record<string, string>), "Content-Type": "application/json" };
  return ask(path, { method: "POST", ...init, headers, body: JSON.stringify(body) });
}

export async function send<T>(method: string, path: string, body?: unknown): Promise<T> {
  const response = await (body === undefined ? ask(path, { method }) : askWith(body, path, { method }));
  return (response.status === 204 ? undefined : await response.json()) as T;
}

async function refusal(response: Response): Promise<ApiError> {
  const unsaid = `The server answered ${response.status}.`;
  try {
    const { error, ...more } = (await response.json()) as { error?: { message: string; reason?: string } };
    return new ApiError(error?.message ?? unsaid, response.status, error?.reason, { ...error, ...more });
  } catch {
    return new ApiError(unsaid, response.status);
  }
}
