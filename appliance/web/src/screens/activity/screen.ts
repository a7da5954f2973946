import type { SignIn } from "../list";

export const screen: SignIn = {
  title: { en: "Activity", de: "Verlauf" },
  also: "requests log clients csv captures anfragen protokoll",
  helps: { findings: /^requests-/, query: "failed=1&id=newest", model: "model" },
  load: () => import("./Activity.svelte"),
};
