import type { SignIn } from "../list";

export const screen: SignIn = {
  title: { en: "Memory", de: "Speicher" },
  also: "ram vram gpu cards karten",
  // Why a model failed stands in its log.
  helps: { findings: /^(model-(?!failed)|layers-|swap|memory-)/, model: "model" },
  load: () => import("./Memory.svelte"),
};
