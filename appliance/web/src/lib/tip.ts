const ITEMS = /^([OU]L|LI)$/;
const TEXTS = /^(P|H[1-6])$/;

/**
 * The element behind whose text the next word of an answer comes: the last paragraph, heading or item, however deep its
 * list is. Behind everything else the caret stands below, and belongs to the group of blocks. A selector that says the
 * same makes the browser look at every item of an answer in every frame.
 */
export function tip(answer: Element): Element {
  let at: Element = answer.lastElementChild ?? answer;
  while (!TEXTS.test(at.tagName)) {
    let last = at.lastChild;
    while (last && !(last instanceof Element) && !last.textContent?.trim()) last = last.previousSibling;
    if (!(last instanceof Element) || !(TEXTS.test(last.tagName) || ITEMS.test(last.tagName))) break;
    at = last;
  }
  return at;
}
