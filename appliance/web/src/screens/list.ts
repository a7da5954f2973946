/** The views for the operator of the machine, in three groups. Each is a chunk of its own; the first is the one that opens. */
import type { Component } from "svelte";
import type { Word } from "../lib/later.svelte";

interface View {
  path: keyof typeof ALSO;
  label: Word;
  load: () => Promise<{ default: Component }>;
}

/** Other words for each, of both languages: people look for "log" in a German page too. */
export const ALSO = {
  attention: "doctor health status problems errors probleme fehler gesundheit",
  now: "top inflight queue running laufend warteschlange",
  why: "history timeline events evicted verlauf ereignisse grund",
  memory: "ram vram gpu cards karten",
  activity: "requests log clients csv captures anfragen protokoll",
  speed: "performance tokens latency metrics cpu leistung dauer",
  cache: "prompts slots hits misses",
  logs: "log logs output console protokoll ausgabe konsole",
  engines: "builds llama.cpp backends support report",
  disk: "storage space files speicherplatz platte",
  boxes: "pool cluster peers verbund",
  agents: "runs tools läufe",
  playground: "completion embeddings rerank tokenize load test versuch lasttest",
  config: "settings yaml options einstellungen",
} as const;

export const GROUPS: { label: Word; views: View[] }[] = [
  {
    label: "groupHealth",
    views: [
      { path: "attention", label: "viewAttention", load: () => import("./attention/Attention.svelte") },
      { path: "now", label: "viewNow", load: () => import("./now/Now.svelte") },
      { path: "why", label: "viewWhy", load: () => import("./why/Why.svelte") },
      { path: "memory", label: "viewMemory", load: () => import("./memory/Memory.svelte") },
    ],
  },
  {
    label: "groupTraffic",
    views: [
      { path: "activity", label: "viewActivity", load: () => import("./activity/Activity.svelte") },
      { path: "speed", label: "viewSpeed", load: () => import("./speed/Speed.svelte") },
      { path: "cache", label: "viewCache", load: () => import("./cache/Cache.svelte") },
      { path: "logs", label: "viewLogs", load: () => import("./logs/Logs.svelte") },
    ],
  },
  {
    label: "groupSetUp",
    views: [
      { path: "engines", label: "viewEngines", load: () => import("./engines/Engines.svelte") },
      { path: "disk", label: "viewDisk", load: () => import("./disk/Disk.svelte") },
      { path: "boxes", label: "viewBoxes", load: () => import("./boxes/Boxes.svelte") },
      { path: "agents", label: "viewAgents", load: () => import("./agents/Agents.svelte") },
      { path: "playground", label: "viewPlayground", load: () => import("./playground/Playground.svelte") },
      { path: "config", label: "viewConfig", load: () => import("./config/Config.svelte") },
    ],
  },
];

export const VIEWS = GROUPS.flatMap(({ views }) => views);
