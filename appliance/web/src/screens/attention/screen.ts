import type { Screen } from "../list";

export const attention: Screen = {
  path: "attention",
  group: "groupHealth",
  title: { en: "Needs attention", de: "Zu erledigen" },
  also: "doctor health status problems errors probleme fehler gesundheit",
  load: () => import("./Attention.svelte"),
};
