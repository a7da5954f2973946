/** What the page's modules expect of a browser, for tests that run without one. */
import "fake-indexeddb/auto";
import { Window } from "happy-dom";

const window = new Window({ url: "http://127.0.0.1/" });
const { document, localStorage, sessionStorage, navigator } = window;
const matchMedia = window.matchMedia.bind(window);
const addEventListener = window.addEventListener.bind(window);
const given = { document, localStorage, sessionStorage, navigator, matchMedia, addEventListener };
for (const [name, value] of Object.entries(given)) {
  Object.defineProperty(globalThis, name, { value, configurable: true });
}
