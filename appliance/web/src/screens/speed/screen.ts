import type { SignIn } from "../list";

export const screen: SignIn = {
  title: { en: "Speed", de: "Geschwindigkeit" },
  also: "performance tokens latency metrics cpu leistung dauer",
  load: () => import("./Speed.svelte"),
};
