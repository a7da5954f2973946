import { speaker } from "../../lib/later.svelte";

export const t = speaker({
  boxesNone: {
    en: "This machine serves alone. This command makes a pool, and says how others join it.",
    de: "Dieser Rechner arbeitet allein. Dieser Befehl legt einen Verbund an und sagt, wie andere beitreten.",
  },
  boxesBus: { en: "The bus works: {server}", de: "Der Bus läuft: {server}" },
  boxesNoBus: { en: "No bus is needed yet.", de: "Noch ist kein Bus nötig." },
  boxesNoQuorum: { en: "The bus has no majority of its servers.", de: "Dem Bus fehlt die Mehrheit seiner Server." },
  boxesLost: { en: "The bus cannot be reached.", de: "Der Bus ist nicht erreichbar." },
  boxesCutOff: {
    en: "This box is cut off, and answers with what it has.",
    de: "Dieser Rechner ist abgeschnitten und antwortet mit dem, was er hat.",
  },
  boxAway: { en: "away", de: "nicht erreichbar" },
  boxDrained: { en: "drained", de: "nimmt nichts mehr an" },
  boxHere: { en: "here", de: "erreichbar" },
  boxThis: { en: "(this one)", de: "(dieser)" },
  boxDialsOut: { en: "only dials out", de: "baut Verbindungen nur selbst auf" },
  boxVoter: { en: "votes", de: "stimmberechtigt" },
  boxLinked: { en: "linked", de: "verbunden" },
  boxDrain: { en: "Drain", de: "Nichts mehr annehmen" },
  boxUndrain: { en: "Take requests again", de: "Wieder Anfragen annehmen" },
});
export type Word = Parameters<typeof t>[0];
