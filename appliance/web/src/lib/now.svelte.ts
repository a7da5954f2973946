/** What is under way on the server, in one line, as its events tell of it; the view `screens/now/Now.svelte` has all. */
import { events } from "./events.svelte";
import type { Word } from "./prefs.svelte";

export type RequestPhase = "waiting" | "downloading" | "loading" | "prompt" | "working" | "answering";
export const PHASES: Record<RequestPhase, Word> = {
  waiting: "phaseQueued",
  downloading: "stateDownloading",
  loading: "phaseLoading",
  prompt: "nowPrompt",
  working: "nowWorking",
  answering: "answering",
};

interface UnderWay {
  count: number;
  /** The one that is furthest from an answer. */
  phase: RequestPhase | null;
}

const NOTHING: UnderWay = { count: 0, phase: null };

export const now = $state({ ...NOTHING });
events.listen(({ event, data }) => {
  if (event === "under_way") Object.assign(now, data);
  else if (event === "connected") Object.assign(now, NOTHING);
});
