import type { Screen } from "../list";

export const activity: Screen = {
  path: "activity",
  group: "groupTraffic",
  title: { en: "Activity", de: "Verlauf" },
  also: "requests log clients csv captures anfragen protokoll",
  helps: { findings: /^requests-/, query: "failed=1&id=newest", model: "model" },
  load: () => import("./Activity.svelte"),
};
