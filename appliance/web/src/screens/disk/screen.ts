import type { Screen } from "../list";

export const disk: Screen = {
  path: "disk",
  group: "groupSetUp",
  title: { en: "Downloads and disk", de: "Downloads und Festplatte" },
  also: "storage space files speicherplatz platte",
  helps: { findings: /^(download-|disk-)/ },
  load: () => import("./Disk.svelte"),
};
