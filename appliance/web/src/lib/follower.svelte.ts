/** Follows a text that grows at its end, by the rule of `following.ts`, whatever moves the view. */
import type { Attachment } from "svelte/attachments";
import { on } from "svelte/events";
import { follows, type View } from "./following";
import { settled } from "./pieces.svelte";

const MOMENT = 300; // ms
const UP = ["ArrowUp", "PageUp", "Home"];
const DOWN = ["ArrowDown", "PageDown", "End", " "];

export class Follower {
  follows = $state(true);
  #node: HTMLElement | undefined;
  #was: View = { top: 0, height: 0, room: 0, lately: 0 };
  #lately = 0;
  #finger = 0;

  /** While it is `apart`, the text in the page does not end where the whole text does: its end is not followed. */
  constructor(private readonly apart = () => false) {}

  /** For the element that scrolls. */
  attach: Attachment<HTMLElement> = (node) => {
    this.#node = node;
    const finger = (event: TouchEvent) => {
      const at = event.touches[0]?.clientY ?? 0;
      if (event.type === "touchmove") this.look(this.#finger - at);
      this.#finger = at;
    };
    const ends = [
      on(node, "scroll", () => this.look()),
      on(node, "wheel", ({ deltaY }) => this.look(deltaY), { passive: true }),
      on(node, "touchstart", finger, { passive: true }),
      on(node, "touchmove", finger, { passive: true }),
      on(node, "keydown", ({ key, shiftKey, target }) => {
        if (target instanceof HTMLTextAreaElement) return;
        if (UP.includes(key) || (key === " " && shiftKey)) this.look(-1);
        else if (DOWN.includes(key)) this.look(1);
      }),
    ];
    settled.add(this.settle);
    return () => [...ends, () => settled.delete(this.settle)].forEach((end) => end());
  };

  /** For what may grow in it, and for itself where it may. */
  grows: Attachment<HTMLElement> = (node) => {
    const sizes = new ResizeObserver(this.grown);
    sizes.observe(node);
    return () => sizes.disconnect();
  };

  look = (wish = 0) => {
    if (!this.#node) return;
    const { scrollTop: top, scrollHeight: height, clientHeight: room } = this.#node;
    const old = performance.now() - this.#lately > MOMENT;
    if (old) this.#lately = performance.now();
    const now = { top, height, room, lately: old ? this.#was.height : this.#was.lately };
    this.follows = !this.apart() && follows(this.follows, this.#was, now, wish);
    this.#was = now;
  };

  /**
   * Before the browser tells of a movement: a text that shrinks and grows again in one task pushes the view up, and would
   * look like somebody's movement when it is over.
   */
  private settle = () => this.follows && this.toEnd();

  /** The text has grown. */
  grown = () => {
    if (this.follows) this.toEnd();
    else this.look();
  };

  toEnd = () => {
    this.follows = true;
    this.#node?.scrollTo({ top: this.#node.scrollHeight });
    this.look();
  };
}
