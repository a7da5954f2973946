import type { Screen } from "../list";

export const config: Screen = {
  path: "config",
  group: "groupSetUp",
  title: { en: "Configuration", de: "Konfiguration" },
  also: "settings yaml options einstellungen",
  helps: { findings: /^config-/ },
  load: () => import("./Config.svelte"),
};
