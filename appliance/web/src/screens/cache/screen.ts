import type { Screen } from "../list";

export const cache: Screen = {
  path: "cache",
  group: "groupTraffic",
  title: { en: "Prompt cache", de: "Prompt-Cache" },
  also: "prompts slots hits misses",
  load: () => import("./Cache.svelte"),
};
