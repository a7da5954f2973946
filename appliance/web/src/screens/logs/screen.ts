import type { SignIn } from "../list";

export const screen: SignIn = {
  title: { en: "Logs", de: "Logs" },
  also: "log logs output console protokoll ausgabe konsole",
  helps: { findings: /^(crash-loop|model-failed|option-)/, model: "of" },
  load: () => import("./Logs.svelte"),
};
