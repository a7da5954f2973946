import type { SignIn } from "../list";

export const screen: SignIn = {
  title: { en: "Needs attention", de: "Zu erledigen" },
  also: "doctor health status problems errors probleme fehler gesundheit",
  load: () => import("./Attention.svelte"),
};
