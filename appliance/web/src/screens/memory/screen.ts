import type { Screen } from "../list";

export const memory: Screen = {
  path: "memory",
  group: "groupHealth",
  title: { en: "Memory", de: "Speicher" },
  also: "ram vram gpu cards karten",
  // Why a model failed stands in its log.
  helps: { findings: /^(model-(?!failed)|layers-|swap|memory-)/, model: "model" },
  load: () => import("./Memory.svelte"),
};
