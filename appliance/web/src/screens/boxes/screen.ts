import type { Screen } from "../list";

export const boxes: Screen = {
  path: "boxes",
  group: "groupSetUp",
  title: { en: "Boxes", de: "Verbund" },
  also: "pool cluster peers verbund",
  helps: { findings: /^pool/ },
  load: () => import("./Boxes.svelte"),
};
