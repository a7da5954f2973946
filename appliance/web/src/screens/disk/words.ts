import { speaker } from "../../lib/later.svelte";

export const t = speaker({
  diskCache: { en: "Hugging Face cache", de: "Hugging-Face-Cache" },
  diskPrograms: { en: "Versions of the program", de: "Versionen des Programms" },
  diskStreams: { en: "Kept answers", de: "Gespeicherte Antworten" },
  diskOther: { en: "Everything else", de: "Alles andere" },
  diskUnfinished: { en: "unfinished", de: "unvollständig" },
  diskSpeed: { en: "{size} per second", de: "{size} pro Sekunde" },
  diskAsk: { en: "Delete {name}? This frees {size}.", de: "{name} löschen? Das gibt {size} frei." },
  diskAskStops: {
    en: "Delete {name}? It runs: this stops it, and frees {size}.",
    de: "{name} löschen? Das Modell läuft gerade: Es wird beendet, und {size} werden frei.",
  },
  diskSort: { en: "Sort by", de: "Sortieren nach" },
  diskSize: { en: "Size", de: "Größe" },
  diskUse: { en: "Last use", de: "Letzte Nutzung" },
  diskUnused: { en: "unused since {when}", de: "ungenutzt seit {when}" },
  diskNever: { en: "no use is known", de: "keine Nutzung bekannt" },
  diskFrees: { en: "frees {size}", de: "gibt {size} frei" },
  diskActivity: { en: "Activity", de: "Verlauf" },
  diskLog: { en: "Logs", de: "Logs" },
});
export type Word = Parameters<typeof t>[0];
