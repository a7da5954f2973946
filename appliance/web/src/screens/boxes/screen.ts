import type { SignIn } from "../list";

export const screen: SignIn = {
  group: "groupSetUp",
  title: { en: "Boxes", de: "Verbund" },
  also: "pool cluster peers verbund",
  helps: { findings: /^pool/ },
  load: () => import("./Boxes.svelte"),
};
