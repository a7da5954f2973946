import type { SignIn } from "../list";

export const screen: SignIn = {
  title: { en: "Playground", de: "Werkbank" },
  also: "completion embeddings rerank tokenize load test versuch lasttest",
  load: () => import("./Playground.svelte"),
};
