import { speaker } from "../../lib/later.svelte";

export const t = speaker({
  runNew: { en: "New run", de: "Neuer Lauf" },
  runTask: { en: "Task", de: "Aufgabe" },
  runTurns: { en: "Turns with tools, at most", de: "Runden mit Werkzeugen, höchstens" },
  runSilence: { en: "Longest silence, in seconds", de: "Längste Pause in Sekunden" },
  runAskMe: { en: "The model may ask me", de: "Das Modell darf mich fragen" },
  runNone: { en: "No runs yet.", de: "Noch keine Läufe." },
  runAsks: { en: "Waits for you", de: "Wartet auf dich" },
  runTools: { en: "Uses tools", de: "Nutzt Werkzeuge" },
  runCanceled: { en: "Cancelled", de: "Abgebrochen" },
  runUsed: { en: "{used} of {all} turns with tools", de: "{used} von {all} Runden mit Werkzeugen" },
  runTurn: { en: "Turn {number}", de: "Runde {number}" },
  runReply: { en: "Your answer to {name}", de: "Deine Antwort an {name}" },
  runCannot: { en: "It cannot be done", de: "Das geht nicht" },
  runCancel: { en: "Cancel the run", de: "Lauf abbrechen" },
  runCancelAsk: {
    en: "Cancel this run? Its text so far is kept.",
    de: "Diesen Lauf abbrechen? Der bisherige Text bleibt erhalten.",
  },
  workerReset: { en: "Accept runs again", de: "Wieder Läufe annehmen" },
  pluginsNone: { en: "There are no plugins.", de: "Es gibt keine Plugins." },
  pluginReady: { en: "Ready", de: "Bereit" },
  runs: { en: "Runs", de: "Läufe" },
});
export type Word = Parameters<typeof t>[0];
