import type { SignIn } from "../list";

export const screen: SignIn = {
  title: { en: "Now", de: "Jetzt" },
  also: "top inflight queue running laufend warteschlange",
  helps: { findings: /^queue-/ },
  load: () => import("./Now.svelte"),
};
