/** What opens over or beside the page: the focus goes in, Escape closes it, and the focus goes back. */
import type { Attachment } from "svelte/attachments";
import { on } from "svelte/events";

export function panel(close: () => void): Attachment<HTMLElement> {
  return (node) => {
    const before = document.activeElement;
    const keys = (event: KeyboardEvent) => {
      if (event.key !== "Escape" || event.defaultPrevented) return;
      event.preventDefault();
      if (node.contains(document.activeElement)) (document.activeElement as HTMLElement).blur(); // a field that goes says nothing of its change
      close();
    };
    node.querySelector<HTMLElement>("button, a, input")?.focus();
    const ended = on(node, "keydown", keys); // after those of a menu within, which Escape closes first
    return () => {
      ended();
      const lost =
        !document.activeElement || document.activeElement === document.body || node.contains(document.activeElement);
      if (lost && before instanceof HTMLElement) before.focus();
    };
  };
}
