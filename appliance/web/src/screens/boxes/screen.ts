import type { SignIn } from "../list";

export const screen: SignIn = {
  title: { en: "Boxes", de: "Verbund" },
  also: "pool cluster peers verbund",
  helps: { findings: /^pool/ },
  load: () => import("./Boxes.svelte"),
};
