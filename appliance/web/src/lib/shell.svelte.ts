/** What screens tell the page around them. */
export const shell = $state({
  /** Of the screen that is shown, in the tab's title; a chat has its own. */
  title: "",
  /** The list of keys is open. */
  keys: false,
});
