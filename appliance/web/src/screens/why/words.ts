import { speaker } from "../../lib/later.svelte";

export const t = speaker({
  whichKind: { en: "Which kind", de: "Welche Art" },
  allKinds: { en: "Everything", de: "Alles" },
  nothingHappened: { en: "Nothing of this kind has happened.", de: "Davon ist nichts vorgekommen." },
  kindLoading: { en: "Load begins", de: "Laden beginnt" },
  kindFailed: { en: "Load failed", de: "Laden fehlgeschlagen" },
  kindEvicted: { en: "Made room", de: "Hat Platz gemacht" },
  kindUnloaded: { en: "Stopped", de: "Beendet" },
  kindRefused: { en: "Refused", de: "Abgelehnt" },
  kindFallback: { en: "Other engine", de: "Andere Engine" },
  kindCrashed: { en: "Crashed", de: "Abgestürzt" },
  kindHung: { en: "Hung", de: "Hängengeblieben" },
  kindEngine: { en: "Engine choice", de: "Engine-Wahl" },
});
export type Word = Parameters<typeof t>[0];
