import fc from "fast-check";
import { expect, test } from "vitest";
import { answerOf, pretty, replayed, timesOf, turnsOf } from "../src/lib/captured";

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
  fc.assert(
    fc.property(
      fc.oneof(
        text,
        fc.json(),
        fc.json().map((json) => `data: ${json}\n\n`),
      ),
      (body) => {
        expect(typeof answerOf(body)).toBe("string");
        expect(typeof pretty(body)).toBe("string");
        for (const turn of turnsOf(body)) expect(typeof turn.text).toBe("string");
        replayed(body, "m");
      },
    ),
  );
});

test("a replay asks another model the same, whole", () => {
  const turns = [{ role: "user", content: "Hi" }];
  const asked = JSON.stringify({ model: "a", messages: turns, stream: true, stream_options: {}, seed: 1 });
  expect(JSON.parse(replayed(asked, "b")!)).toEqual({ model: "b", messages: turns, stream: false, seed: 1 });
  expect(replayed("[1]", "b")).toBe(undefined);
  expect(turnsOf(asked)).toEqual([{ role: "user", text: "Hi" }]);
});

test("the parts of a request's time fill it", () => {
  const count = fc.double({ min: -1, max: 1e6, noNaN: true });
  const costs = fc.record({
    input_tokens: count,
    output_tokens: count,
    prompt_per_second: count,
    tokens_per_second: count,
  });
  const ms = fc.nat(1e7);
  fc.assert(
    fc.property(ms, ms, costs, (duration, waited, cost) => {
      const parts = Object.values<number>({ ...timesOf(duration, waited, cost) });
      expect(Math.min(...parts)).toBeGreaterThanOrEqual(0);
      expect(parts.reduce((all, part) => all + part)).toBeCloseTo(duration, 3);
    }),
  );
});
