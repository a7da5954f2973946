import type { Screen } from "../list";

export const speed: Screen = {
  path: "speed",
  group: "groupTraffic",
  title: { en: "Speed", de: "Geschwindigkeit" },
  also: "performance tokens latency metrics cpu leistung dauer",
  load: () => import("./Speed.svelte"),
};
