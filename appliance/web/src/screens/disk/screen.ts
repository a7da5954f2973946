import type { SignIn } from "../list";

export const screen: SignIn = {
  title: { en: "Downloads and disk", de: "Downloads und Festplatte" },
  also: "storage space files speicherplatz platte",
  helps: { findings: /^(download-|disk-)/ },
  load: () => import("./Disk.svelte"),
};
