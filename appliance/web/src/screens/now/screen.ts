import type { Screen } from "../list";

export const now: Screen = {
  path: "now",
  group: "groupHealth",
  title: { en: "Now", de: "Jetzt" },
  also: "top inflight queue running laufend warteschlange",
  helps: { findings: /^queue-/ },
  load: () => import("./Now.svelte"),
};
