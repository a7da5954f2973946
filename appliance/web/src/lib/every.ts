/** Do something now and every so many ms, until the result is called. */
export function every(pause: number, act: () => void): () => void {
  act();
  const timer = setInterval(act, pause);
  return () => clearInterval(timer);
}
