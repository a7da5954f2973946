import type { SignIn } from "../list";

export const screen: SignIn = {
  title: { en: "Why", de: "Warum" },
  also: "history timeline events evicted verlauf ereignisse grund",
  load: () => import("./Why.svelte"),
};
