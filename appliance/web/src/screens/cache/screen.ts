import type { SignIn } from "../list";

export const screen: SignIn = {
  title: { en: "Prompt cache", de: "Prompt-Cache" },
  also: "prompts slots hits misses",
  load: () => import("./Cache.svelte"),
};
