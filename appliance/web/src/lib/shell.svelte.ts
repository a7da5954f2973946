/** What screens tell the page around them. */
export const shell = $state({
  /** Of the screen that is shown, in the tab's title; a chat has its own. */
  title: "",
  /** The list of keys is open. */
  keys: false,
  /** A view with words that are not saved may hold the page: whether it did; it asks by itself. */
  holds: undefined as ((event: HashChangeEvent) => boolean) | undefined,
});
