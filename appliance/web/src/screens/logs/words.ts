import { speaker } from "../../lib/later.svelte";

export const t = speaker({
  levelAll: { en: "All levels", de: "Alle Stufen" },
  levelError: { en: "Errors only", de: "Nur Fehler" },
  levelInfo: { en: "Without debugging", de: "Ohne Fehlersuche" },
  levelWarn: { en: "Warnings and errors", de: "Warnungen und Fehler" },
  logLevel: { en: "Level", de: "Stufe" },
  logOfPage: { en: "With what browsers read", de: "Mit dem, was Browser lesen" },
  logOf: { en: "Log of", de: "Log von" },
  logProgram: { en: "The program", de: "Das Programm" },
  searchLog: { en: "Search the log", de: "Im Log suchen" },
  linesLeft: {
    en: "{count} earlier line is not shown.|{count} earlier lines are not shown.",
    de: "{count} frühere Zeile wird nicht gezeigt.|{count} frühere Zeilen werden nicht gezeigt.",
  },
  noLines: { en: "Nothing yet.", de: "Noch nichts." },
});
export type Word = Parameters<typeof t>[0];
