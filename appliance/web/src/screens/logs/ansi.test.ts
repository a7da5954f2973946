import fc from "fast-check";
import { expect, test } from "vitest";
import { spansOf } from "./ansi";

const ESC = "\u001b";

test("the words of a line stay, whatever codes are between them", () => {
  const word = fc.string({ unit: fc.constantFrom("a", "é", "😀", "[", "m", " ", ";"), maxLength: 5 });
  const code = fc.oneof(
    fc.array(fc.nat(110), { maxLength: 4 }).map((numbers) => `${ESC}[${numbers.join(";")}m`),
    fc.constantFrom(`${ESC}[2K`, `${ESC}[1;1H`, "\u0007", "\r"),
  );
  fc.assert(
    fc.property(fc.array(fc.tuple(word, code)), (parts) => {
      const line = parts.map(([text, code]) => code + text).join("");
      const words = spansOf(line).map(({ text }) => text);
      expect(words.join("")).toBe(parts.map(([text]) => text).join(""));
    }),
  );
});

test("a colour holds until it ends", () => {
  expect(spansOf(`a${ESC}[31mb${ESC}[1mc${ESC}[0md${ESC}[38;5;31me`)).toEqual([
    { text: "a", colour: "", bold: false },
    { text: "b", colour: "text-bad", bold: false },
    { text: "c", colour: "text-bad", bold: true },
    { text: "d", colour: "", bold: false },
    { text: "e", colour: "", bold: false },
  ]);
});
