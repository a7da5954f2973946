import type { SignIn } from "../list";

export const screen: SignIn = {
  title: { en: "Engines", de: "Engines" },
  also: "builds llama.cpp backends support report",
  helps: { findings: /engine|build|proof|probation|untried|pin|card|driver|gpu|vulkan|update/ },
  load: () => import("./Engines.svelte"),
};
