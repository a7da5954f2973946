import { speaker } from "../../lib/later.svelte";

export const t = speaker({
  cacheBy: { en: "A bar for each", de: "Ein Balken je" },
  cacheAll: { en: "All requests", de: "Alle Anfragen" },
  cacheAbout: { en: "(about {time})", de: "(etwa {time})" },
  cacheHow: {
    en: "Read again: the conversation had these tokens in its prompt before. Seconds are estimates, from the speed at which the model reads.",
    de: "Neu gelesen: Die Unterhaltung hatte diese Token schon vorher in ihrem Prompt. Sekunden sind geschätzt, nach der Lesegeschwindigkeit des Modells.",
  },
  cacheSessions: { en: "Conversations and their slots", de: "Unterhaltungen und ihre Plätze" },
  cacheBack: { en: "Tokens that came back: {tokens}", de: "Wiederverwendete Token: {tokens}" },
});
export type Word = Parameters<typeof t>[0];
