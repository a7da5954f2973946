import type { SignIn } from "../list";

export const screen: SignIn = {
  title: { en: "Configuration", de: "Konfiguration" },
  also: "settings yaml options einstellungen",
  helps: { findings: /^config-/ },
  load: () => import("./Config.svelte"),
};
