import { speaker } from "../../lib/later.svelte";

export const words = {
  searchActivity: { en: "Search model, path, error", de: "Modell, Pfad, Fehler suchen" },
  onlyFailed: { en: "Only failures", de: "Nur Fehler" },
  columnPath: { en: "Path", de: "Pfad" },
  columnStatus: { en: "Status", de: "Status" },
  columnCached: { en: "Cached", de: "Aus dem Cache" },
  columnAnswer: { en: "Answer", de: "Antwort" },
  columnDrafted: { en: "Drafted", de: "Entworfen" },
  columnSeconds: { en: "Seconds", de: "Sekunden" },
  columnType: { en: "Content type", de: "Inhaltstyp" },
  openRequest: { en: "Open request", de: "Anfrage öffnen" },
  requestGone: { en: "The log has no request {id} any more.", de: "Das Protokoll hat die Anfrage {id} nicht mehr." },
  noRequests: { en: "No requests yet.", de: "Noch keine Anfragen." },
  pageOf: {
    en: "Page {page} of {pages}, {total} request|Page {page} of {pages}, {total} requests",
    de: "Seite {page} von {pages}, {total} Anfrage|Seite {page} von {pages}, {total} Anfragen",
  },
  asChat: { en: "As a chat", de: "Als Gespräch" },
  asPretty: { en: "Formatted", de: "Formatiert" },
  asRaw: { en: "Raw", de: "Roh" },
  theRequest: { en: "Request", de: "Anfrage" },
  theRepaired: { en: "Request as the engine took it", de: "Anfrage, wie die Engine sie nahm" },
  timeLoaded: { en: "Loaded the model", de: "Modell geladen" },
  timePrompt: { en: "Read the prompt", de: "Prompt gelesen" },
  timeAnswer: { en: "Answered", de: "Geantwortet" },
  timeTool: { en: "Tool", de: "Werkzeug" },
  timeFallback: { en: "Next engine", de: "Nächste Engine" },
  timeRest: { en: "Other", de: "Sonstiges" },
  noCapture: {
    en: "Its content was not kept: captureBuffer in the configuration keeps the latest.",
    de: "Der Inhalt wurde nicht gespeichert. Mit captureBuffer in der Konfiguration bleiben die letzten erhalten.",
  },
  replayWith: { en: "Ask another model", de: "Anderes Modell fragen" },
  replay: { en: "Ask this model", de: "Dieses Modell fragen" },
  newerRows: { en: "Newer ones", de: "Neuere Anfragen" },
  olderRows: { en: "Older ones", de: "Ältere Anfragen" },
};
export const t = speaker(words);
export type Word = Parameters<typeof t>[0];
