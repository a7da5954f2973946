import fc from "fast-check";
import { expect, test } from "vitest";
import { answerOf, partsOf, pretty, replayed, turnsOf } from "../src/lib/captured";

const text = fc.string({ unit: "grapheme", maxLength: 20 });

test("the words of an answer are those of its pieces, in every API", () => {
  const forms: [(piece: string) => unknown, (whole: string) => unknown][] = [
    [
      (piece) => ({ choices: [{ delta: { content: piece } }] }),
      (whole) => ({ choices: [{ message: { content: whole } }] }),
    ],
    [(piece) => ({ choices: [{ text: piece }] }), (whole) => ({ choices: [{ text: whole }] })],
    [
      (piece) => ({ type: "content_block_delta", delta: { type: "text_delta", text: piece } }),
      (whole) => ({ type: "message", content: [{ type: "text", text: whole }] }),
    ],
    [
      (piece) => ({ type: "response.output_text.delta", delta: piece }),
      (whole) => ({ output: [{ content: [{ type: "output_text", text: whole }] }] }),
    ],
    [(piece) => ({ content: piece }), (whole) => ({ content: whole })],
  ];
  fc.assert(
    fc.property(fc.array(text), fc.constantFrom(...forms), (pieces, [streamed, whole]) => {
      const stream = pieces.map((piece) => `event: x\ndata: ${JSON.stringify(streamed(piece))}\n\n`).join("");
      expect(answerOf(`${stream}data: [DONE]\n\n`)).toBe(pieces.join(""));
      expect(answerOf(JSON.stringify(whole(pieces.join(""))))).toBe(pieces.join(""));
    }),
  );
});

test("any body is shown, whatever a client wrote", () => {
  const streamed = fc.json().map((json) => `data: ${json}\n\n`);
  fc.assert(
    fc.property(fc.oneof(text, fc.json(), streamed), (body) => {
      expect(typeof answerOf(body)).toBe("string");
      expect(typeof pretty(body)).toBe("string");
      for (const turn of turnsOf(body)) expect(typeof turn.text).toBe("string");
      replayed(body, "m");
    }),
  );
});

test("a replay asks another model the same, whole", () => {
  const turns = [{ role: "user", content: "Hi" }];
  const asked = JSON.stringify({ model: "a", messages: turns, stream: true, stream_options: {}, seed: 1 });
  expect(JSON.parse(replayed(asked, "b")!)).toEqual({ model: "b", messages: turns, stream: false, seed: 1 });
  expect(replayed("[1]", "b")).toBe(undefined);
  expect(turnsOf(asked)).toEqual([{ role: "user", text: "Hi" }]);
});

test("the parts of a request's time fill it, in the server's words or without any", () => {
  const ms = fc.nat(1e7);
  const name = fc.constantFrom("wait", "load", "prompt", "answer", "fallback", "tool read_file", "tool a b 1");
  fc.assert(
    fc.property(ms, fc.integer({ min: -1, max: 1e7 }), fc.array(fc.tuple(name, ms)), (duration, first, told) => {
      const words = told.map(([name, ms]) => `${name} ${ms}`).join(", ");
      const parts = partsOf(duration, first, words);
      const known = parts.filter((part) => part.name !== "rest");
      if (told.length) {
        expect(known.map((part) => `${part.name} ${part.label}`.trim() + ` ${part.ms}`)).toEqual(
          told.map(([name, ms]) => `${name} ${ms}`),
        );
      }
      const sum = parts.reduce((all, part) => all + part.ms, 0);
      const said = told.reduce((all, [, ms]) => all + ms, 0);
      expect(sum).toBe(Math.max(duration, said));
    }),
  );
});
