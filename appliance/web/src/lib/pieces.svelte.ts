/**
 * Work that is too much for one task, in pieces: input and frames come between. What is far from the view is not built,
 * and released again, so a page costs what is near the view and not what there is.
 */
import { flushSync } from "svelte";

const SLICE = 8; // ms; short pieces share a task
const MARGIN = 1200; // px above and below the view that count as near: scrolling does not see pieces come
const KEPT = "form, details[open], [aria-expanded=true], [data-found], [data-keep]"; // what a person has opened or begun

const waiting = new Set<() => void>();
/** Told after pieces, in their task: what they have built has other heights than the boxes in its place. */
export const settled = new Set<() => void>();
const channel = new MessageChannel();
channel.port1.onmessage = () => {
  const end = performance.now() + SLICE;
  for (const piece of waiting) {
    if (performance.now() > end) break;
    waiting.delete(piece);
    try {
      piece();
    } catch (error) {
      reportError(error); // the others come all the same
    }
  }
  for (const tell of settled) tell();
  if (waiting.size) channel.port2.postMessage(0);
};

class Work {
  /** Everything is built, as for print. */
  all = $state(false);

  constructor() {
    addEventListener("beforeprint", () => flushSync(() => (this.all = true)));
    addEventListener("afterprint", () => (this.all = false));
  }

  /** Do this in a task that others share as long as it is short; the result takes it back. */
  later(piece: () => void): () => void {
    if (this.all) piece();
    else {
      if (!waiting.size) channel.port2.postMessage(0);
      waiting.add(piece);
    }
    return () => waiting.delete(piece);
  }

  /** The same with what is awaited. */
  after<T>(awaited: Promise<T>, piece: (found: T) => void): () => void {
    let drop: (() => void) | undefined = () => undefined;
    void awaited.then((found) => {
      if (drop) drop = this.later(() => piece(found));
    });
    return () => {
      drop?.();
      drop = undefined;
    };
  }
}

export const work = new Work();

type Told = (near: boolean, height: number) => void;
const told = new WeakMap<Element, Told>();
const observers = new WeakMap<Element, IntersectionObserver>();

/** Tell when an element comes near the view of what it scrolls in, marked by `data-view`, or leaves it. */
export function watch(element: Element, tell: Told): () => void {
  const root = element.closest("[data-view]") ?? document.documentElement;
  let observer = observers.get(root);
  if (!observer) {
    const away = ({ boundingClientRect: { top, bottom }, rootBounds }: IntersectionObserverEntry) =>
      Math.abs(top + bottom - (rootBounds?.top ?? 0) - (rootBounds?.bottom ?? 0));
    observer = new IntersectionObserver(
      (seen) => {
        for (const entry of seen.sort((one, other) => away(one) - away(other))) {
          told.get(entry.target)?.(entry.isIntersecting, entry.boundingClientRect.height);
        }
      },
      { root, rootMargin: `${MARGIN}px 0px` },
    );
    observers.set(root, observer);
  }
  told.set(element, tell);
  observer.observe(element);
  return () => {
    observer.unobserve(element);
    told.delete(element);
  };
}

/** Whether something is in it that would be lost: the focus, a selection, what a person has opened or begun. */
export function inUse(element: Element): boolean {
  const selection = getSelection();
  return (
    element.contains(document.activeElement) ||
    !!element.querySelector(KEPT) ||
    (!!selection && !selection.isCollapsed && selection.containsNode(element, true))
  );
}

/** Lists in parts that are built and released together. */
export function inParts<T>(list: readonly T[], size: number): T[][] {
  return Array.from({ length: Math.ceil(list.length / size) }, (_, at) => list.slice(at * size, (at + 1) * size));
}
