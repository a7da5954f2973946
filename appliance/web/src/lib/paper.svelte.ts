/** While the page is printed, everything is there that is folded away on a screen. */
export const paper = $state({ printing: false });
