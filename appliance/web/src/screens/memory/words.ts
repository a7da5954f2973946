import { speaker } from "../../lib/later.svelte";

export const t = speaker({
  partWeights: { en: "Weights", de: "Gewichte" },
  partContext: { en: "Context", de: "Kontext" },
  partCompute: { en: "Computation", de: "Berechnung" },
  partRest: { en: "Other parts of models", de: "Sonstiges der Modelle" },
  partOther: { en: "Other programs", de: "Andere Programme" },
  partFree: { en: "Free", de: "Frei" },
  whatWouldGo: { en: "What would a load stop?", de: "Was müsste beim Laden weichen?" },
  isThere: { en: "It is in memory already.", de: "Es ist schon im Speicher." },
  wouldTake: { en: "It would take {sizes}.", de: "Es würde {sizes} belegen." },
  wouldStop: { en: "It would stop {models}.", de: "Dafür würden beendet: {models}." },
  nothingGoes: { en: "No model has to go.", de: "Kein Modell muss weichen." },
  wouldWait: {
    en: "It would wait for {models}: in use, or loaded just now.",
    de: "Es würde auf {models} warten: in Benutzung oder gerade erst geladen.",
  },
  loadsBefore: { en: "{models} would load before it.", de: "Vorher werden geladen: {models}." },
  forecastQueued: { en: "It waits in the queue.", de: "Es wartet in der Schlange." },
  forecastLoading: { en: "It is loading.", de: "Es wird gerade geladen." },
  forecastSleeping: { en: "It is in memory, asleep.", de: "Es ist im Speicher und schläft." },
  forecastStopping: {
    en: "It is being stopped. A request now would load it again.",
    de: "Es wird gerade beendet. Eine Anfrage würde es jetzt neu laden.",
  },
  forecastUnloaded: { en: "It is not in memory.", de: "Es ist nicht im Speicher." },
  goesForIt: { en: "{models} is stopped for it.", de: "Dafür wird beendet: {models}." },
  readyIn: { en: "It will have loaded in about {time}.", de: "In etwa {time} ist es geladen." },
  takesNow: { en: "It takes {sizes}.", de: "Es belegt {sizes}." },
  waitsForHeld: {
    en: "It waits until {models} may go: in use, or loaded just now.",
    de: "Es wartet, bis {models} weichen darf: in Benutzung oder eben erst geladen.",
  },
  waitsForLoads: { en: "{models} loads before it.", de: "Vorher wird noch geladen: {models}." },
  stateStopping: { en: "Stopping", de: "Wird beendet" },
  timeUnknown: { en: "Its time to load is not known yet.", de: "Seine Ladezeit ist noch nicht bekannt." },
  wouldLoadIn: { en: "Loading would take about {time}.", de: "Das Laden würde etwa {time} dauern." },
});
export type Word = Parameters<typeof t>[0];
