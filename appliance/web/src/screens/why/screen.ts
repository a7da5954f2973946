import type { Screen } from "../list";

export const why: Screen = {
  path: "why",
  group: "groupHealth",
  title: { en: "Why", de: "Warum" },
  also: "history timeline events evicted verlauf ereignisse grund",
  load: () => import("./Why.svelte"),
};
