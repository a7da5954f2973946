import { speaker } from "../../lib/later.svelte";

export const t = speaker({
  playWhat: { en: "What to try", de: "Was ausprobiert wird" },
  playComplete: { en: "Completion", de: "Fortsetzung" },
  playInfill: { en: "Fill a gap", de: "Lücke füllen" },
  playEmbed: { en: "Embeddings", de: "Embeddings" },
  playRerank: { en: "Rank documents", de: "Dokumente nach Relevanz ordnen" },
  playTokenise: { en: "Text to tokens", de: "Text in Token" },
  playDetokenise: { en: "Tokens to text", de: "Token in Text" },
  playSpeak: { en: "Text to speech", de: "Text in Sprache" },
  playDraw: { en: "Images", de: "Bilder" },
  playLoad: { en: "Load test", de: "Lasttest" },
  playBefore: { en: "Text before the gap", de: "Text vor der Lücke" },
  playAfter: { en: "Text after the gap", de: "Text nach der Lücke" },
  playLines: { en: "Texts, one in each line", de: "Texte, einer je Zeile" },
  playQuery: { en: "Query", de: "Suchanfrage" },
  playDocuments: { en: "Documents, one in each line", de: "Dokumente, eines je Zeile" },
  playText: { en: "Text", de: "Text" },
  playIds: { en: "Numbers of tokens", de: "Nummern von Token" },
  playVoice: { en: "Voice", de: "Stimme" },
  playSimilarity: { en: "Similarity (cosine)", de: "Ähnlichkeit (Kosinus)" },
  playScore: { en: "Score", de: "Bewertung" },
  playCount: { en: "Requests for each model", de: "Anfragen je Modell" },
  playAtOnce: { en: "At once", de: "Gleichzeitig" },
  playFour: {
    en: "A browser asks four at once at most. The command llama-appliance load-test has no such limit.",
    de: "Ein Browser schickt höchstens vier Anfragen gleichzeitig. Der Befehl llama-appliance load-test hat diese Grenze nicht.",
  },
  playRate: { en: "Requests/s", de: "Anfragen/s" },
});
export type Word = Parameters<typeof t>[0];
