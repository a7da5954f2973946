/**
 * Whether the view follows a growing text. The direction of a movement decides and not the distance from the end:
 * a fast answer is far from the end when the browser tells of a movement, and a slow reader is near it.
 */
export interface View {
  /** All in pixels: what is above the view, all there is, and what is in view. */
  top: number;
  height: number;
  room: number;
  /** All there was a moment ago: a movement to the end goes there, and arrives when the text has grown. */
  lately: number;
}

const NEAR = 4; // px; zoom makes fractions

/**
 * `wish` is what a wheel, finger or key asks for before anything has moved: -1 up, 1 down. Without it, the view moved
 * from `was` to `now`. Text that goes away and a view that grows push it up as well; nobody wanted that.
 */
export function follows(before: boolean, was: View, now: View, wish = 0): boolean {
  if (wish < 0) return before && now.top <= 0;
  const pushed = now.height < was.height || now.room > was.room;
  if (now.top < was.top && !pushed) return false;
  const atEnd = Math.min(now.height, now.lately) - now.top - now.room < NEAR;
  return before || ((wish > 0 || now.top > was.top) && atEnd);
}
