/** A view with words that are not saved may hold the page: `held` says whether it did, and asks by itself. */
export const leaving: { held?: (event: HashChangeEvent) => boolean } = {};
