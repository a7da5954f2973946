/** What opens over or beside the page: the focus goes in, Escape closes it, and the focus goes back. */
import type { Attachment } from "svelte/attachments";

export function panel(close: () => void): Attachment<HTMLElement> {
  return (node) => {
    const before = document.activeElement;
    const keys = (event: KeyboardEvent) => {
      if (event.key !== "Escape" || event.defaultPrevented) return;
      event.preventDefault();
      close();
    };
    node.querySelector<HTMLElement>("button, a, input")?.focus();
    node.addEventListener("keydown", keys);
    return () => {
      node.removeEventListener("keydown", keys);
      const lost = !document.activeElement || document.activeElement === document.body || node.contains(document.activeElement);
      if (lost && before instanceof HTMLElement) before.focus();
    };
  };
}
