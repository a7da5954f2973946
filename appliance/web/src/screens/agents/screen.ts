import type { Screen } from "../list";

export const agents: Screen = {
  path: "agents",
  group: "groupSetUp",
  title: { en: "Agents and plugins", de: "Agenten und Plugins" },
  also: "runs tools läufe",
  load: () => import("./Agents.svelte"),
};
