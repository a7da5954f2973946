import { speaker } from "../../lib/later.svelte";

export const t = speaker({
  nowAbout: {
    en: "about {count} token, {rate} per second|about {count} tokens, {rate} per second",
    de: "etwa {count} Token, {rate} pro Sekunde|etwa {count} Token, {rate} pro Sekunde",
  },
  nowEnd: { en: "End", de: "Beenden" },
  nowEndAsk: {
    en: "End the request of {client} to {model}? Its client gets an error.",
    de: "Die Anfrage von {client} an {model} beenden? Das Programm dort bekommt einen Fehler.",
  },
  nowEndOf: { en: "End the request of {client}", de: "Die Anfrage von {client} beenden" },
  nowNothing: { en: "Nothing is under way.", de: "Zurzeit läuft nichts." },
  nowPhase: { en: "Phase", de: "Phase" },
  nowRead: { en: "{count} token read|{count} tokens read", de: "{count} Token gelesen|{count} Token gelesen" },
});
