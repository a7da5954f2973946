/** The colours of terminals (ECMA-48, SGR) in a line of a log; every other code is left out. */
export interface Span {
  text: string;
  colour: string;
  bold: boolean;
}

const CODE = /\x1b\[([0-9;]*)([A-Za-z])|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f]/g;
const COLOURS = ["", "text-bad", "text-good", "text-warn", "text-accent", "text-code-1", "text-code-4", ""];

export function spansOf(line: string): Span[] {
  const spans: Span[] = [];
  let at = 0;
  let colour = "";
  let bold = false;
  const add = (text: string) => text && spans.push({ text, colour, bold });
  for (const match of line.matchAll(CODE)) {
    add(line.slice(at, match.index));
    at = match.index + match[0].length;
    if (match[2] !== "m") continue;
    const codes = (match[1] || "0").split(";").map(Number);
    for (let place = 0; place < codes.length; place++) {
      const code = codes[place]!;
      if (code === 0) [colour, bold] = ["", false];
      else if (code === 1) bold = true;
      else if (code === 22) bold = false;
      else if (code === 39) colour = "";
      else if (code === 38 || code === 48) {
        place += codes[place + 1] === 2 ? 4 : 2;
      } // of 256, or any: shown as it is
      else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) colour = COLOURS[code % 10]!;
    }
  }
  add(line.slice(at));
  return spans;
}
