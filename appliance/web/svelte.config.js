/** What scrolls has a place in the order of Tab, so that the keyboard reaches it. The compiler takes that for a mistake. */
const SCROLLS = "a11y_no_noninteractive_tabindex";

export default { compilerOptions: { runes: true, warningFilter: ({ code }) => code !== SCROLLS } };
