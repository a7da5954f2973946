import { speaker } from "../../lib/later.svelte";

export const t = speaker({
  engineUsed: { en: "In use", de: "In Benutzung" },
  engineUpdates: { en: "An update to {build} is under way.", de: "Der Wechsel zu {build} läuft." },
  engineTrying: { en: "Under trial: {seat}", de: "Wird getestet: {seat}" },
  engineTryAll: { en: "Try all untried ones", de: "Alle ungetesteten testen" },
  engineTry: { en: "Try it", de: "Testen" },
  engineTriedAt: { en: "tried {when}", de: "getestet am {when}" },
  engineNoTrial: { en: "no trial counts", de: "kein gültiger Test" },
  engineUse: { en: "Use it", de: "Verwenden" },
  engineAuto: { en: "Let the program choose", de: "Das Programm wählen lassen" },
  engineBack: { en: "Return to the build before the update", de: "Zurück zum Build vor dem Update" },
  engineProven: { en: "Proven", de: "Bewährt" },
  engineUntried: { en: "Untried", de: "Ungetestet" },
  engineWaits: { en: "Set aside", de: "Zurückgestellt" },
  engineFails: { en: "Does not work", de: "Funktioniert nicht" },
  engineDamaged: { en: "Damaged", de: "Beschädigt" },
  bundle: { en: "Support bundle", de: "Paket für den Support" },
  bundleWhat: {
    en: "Facts for people who help you. Nothing is sent: read them here, then save them.",
    de: "Fakten für Leute, die dir helfen. Nichts wird gesendet: Lies sie hier, dann speichere sie.",
  },
  bundleLogs: {
    en: "With logs, which can hold prompts, paths and names",
    de: "Mit Logs, in denen Fragen, Pfade und Namen stehen können",
  },
  bundleShow: { en: "Show what it holds", de: "Inhalt zeigen" },
});
export type Word = Parameters<typeof t>[0];
