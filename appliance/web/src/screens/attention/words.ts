import { speaker } from "../../lib/later.svelte";

export const t = speaker({
  nothingToDo: { en: "All is well. Nothing needs your attention.", de: "Alles in Ordnung. Du musst nichts tun." },
  lookedAt: { en: "Looked at {when}", de: "Geprüft: {when}" },
  sinceWhen: { en: "since {when}", de: "seit {when}" },
  severityWarning: { en: "Warning", de: "Warnung" },
  severityNote: { en: "Note", de: "Hinweis" },
  openView: { en: "Open: {view}", de: "Öffnen: {view}" },
  why: { en: "Why", de: "Warum" },
});
export type Word = Parameters<typeof t>[0];
