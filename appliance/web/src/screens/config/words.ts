import { speaker } from "../../lib/later.svelte";

export const t = speaker({
  configDifference: { en: "Difference", de: "Unterschied" },
  configDiscard: { en: "Discard", de: "Verwerfen" },
  configDiscardAsk: {
    en: "Throw away what you have written, and show the file again?",
    de: "Deinen Text verwerfen und wieder die Datei zeigen?",
  },
  configEarlier: { en: "Earlier versions", de: "Frühere Fassungen" },
  configEnds: { en: "Processes that end: {models}", de: "Prozesse, die beendet werden: {models}" },
  configLeave: { en: "Leave", de: "Verlassen" },
  configLeaveAsk: {
    en: "The configuration is not saved. Leave it for now? Your text waits here until you save or discard it.",
    de: "Die Konfiguration ist nicht gespeichert. Trotzdem verlassen? Dein Text bleibt hier, bis du ihn speicherst oder verwirfst.",
  },
  configLine: { en: "Line {line}", de: "Zeile {line}" },
  configListing: { en: "Name and listing", de: "Name und Auflistung" },
  configLoading: { en: "Loading and memory", de: "Laden und Speicher" },
  configOlder: {
    en: "The file has changed since you wrote this.",
    de: "Die Datei wurde geändert, seit du das geschrieben hast.",
  },
  configProgram: { en: "The whole program", de: "Das ganze Programm" },
  configRecords: { en: "Logs and records", de: "Protokolle und Aufzeichnungen" },
  configRequests: { en: "Requests and answers", de: "Anfragen und Antworten" },
  configSaved: { en: "Saved, and in force.", de: "Gespeichert und übernommen." },
  configText: { en: "Text of the file", de: "Text der Datei" },
  configUnsaved: { en: "Your text is not saved.", de: "Dein Text ist nicht gespeichert." },
  configWhat: {
    en: "Here you change how models are used. Models are added, and their commands, paths and keys changed, in the file on the machine.",
    de: "Hier änderst du, wie Modelle verwendet werden. Neue Modelle, Befehle, Pfade und Schlüssel trägst du in der Datei auf dem Rechner ein.",
  },
  configWhose: { en: "Settings of", de: "Einstellungen von" },
});
export type Word = Parameters<typeof t>[0];
