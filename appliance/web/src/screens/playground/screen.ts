import type { Screen } from "../list";

export const playground: Screen = {
  path: "playground",
  group: "groupSetUp",
  title: { en: "Playground", de: "Werkbank" },
  also: "completion embeddings rerank tokenize load test versuch lasttest",
  load: () => import("./Playground.svelte"),
};
