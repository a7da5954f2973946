import type { SignIn } from "../list";

export const screen: SignIn = {
  title: { en: "Agents and plugins", de: "Agenten und Plugins" },
  also: "runs tools läufe",
  load: () => import("./Agents.svelte"),
};
