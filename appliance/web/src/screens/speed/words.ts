import { speaker } from "../../lib/later.svelte";

export const t = speaker({
  speedBy: { en: "A curve for each", de: "Eine Kurve je" },
  speedAnswer: { en: "Answer, tokens/s", de: "Antwort, Token/s" },
  speedPrompt: { en: "Prompt, tokens/s", de: "Prompt, Token/s" },
  speedAccepted: { en: "Drafts accepted", de: "Entwürfe angenommen" },
  speedOthers: { en: "All others", de: "Alle anderen" },
  speedMarks: { en: "What changed", de: "Was sich geändert hat" },
  machineOff: {
    en: "The configuration has switched off what the last hour shows of processor, memory and cards.",
    de: "Prozessor, Arbeitsspeicher und Karten werden nicht gemessen: so steht es in der Konfiguration.",
  },
  machineHour: { en: "The machine in the last hour", de: "Der Rechner in der letzten Stunde" },
  machineCpu: { en: "Processor", de: "Prozessor" },
  machineGpu: { en: "Graphics cards", de: "Grafikkarten" },
  machineVram: { en: "Memory of graphics cards", de: "Speicher der Grafikkarten" },
});
export type Word = Parameters<typeof t>[0];
