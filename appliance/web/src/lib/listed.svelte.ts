/** The list of models for `Shown`. It comes by the server's events, whatever screen is open. */
import type { Look } from "./looked.svelte";
import { models, type Model } from "./models.svelte";

export const listed: Look<Model[]> = {
  get state() {
    if (models.failure) return models.known ? "old" : "failed";
    return models.known ? "good" : "waiting";
  },
  get answer() {
    return models.known ? models.all : undefined;
  },
  get failure() {
    return models.failure;
  },
  get at() {
    return models.at;
  },
  again: models.read,
};
