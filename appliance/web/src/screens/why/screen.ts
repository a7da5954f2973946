import type { SignIn } from "../list";

export const screen: SignIn = {
  group: "groupHealth",
  title: { en: "Why", de: "Warum" },
  also: "history timeline events evicted verlauf ereignisse grund",
  load: () => import("./Why.svelte"),
};
