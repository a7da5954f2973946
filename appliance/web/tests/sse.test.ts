import fc from "fast-check";
import { expect, test } from "vitest";
import { records } from "../src/lib/sse";

test("records are the same however their bytes are cut", async () => {
  const line = fc.string({ unit: fc.constantFrom("a", "é", "😀", ":", " ") });
  const record = fc.array(line, { minLength: 1, maxLength: 3 });
  const end = fc.constantFrom("\n", "\r\n", "\r");
  const sizes = fc.array(fc.integer({ min: 1, max: 9 }), { minLength: 1 });
  await fc.assert(
    fc.asyncProperty(fc.array(record), end, sizes, async (sent, end, sizes) => {
      const noise = `: a comment${end}event: x${end}`;
      const text = sent.map((lines) => noise + lines.map((each) => `data: ${each}${end}`).join("") + end).join("");
      const received: string[] = [];
      const names: string[] = [];
      const body = inPieces(`${text}data: without an end`, sizes);
      for await (const data of records(body, { called: (name) => names.push(name) })) received.push(data);
      expect(names).toEqual(sent.map(() => "x"));
      expect(received).toEqual(sent.map((lines) => lines.join("\n")));
    }),
  );
});

function inPieces(text: string, sizes: number[]): ReadableStream<Uint8Array> {
  const bytes = new TextEncoder().encode(text);
  let at = 0;
  let turn = 0;
  return new ReadableStream({
    pull(controller) {
      const size = sizes[turn++ % sizes.length]!;
      if (at < bytes.length) controller.enqueue(bytes.slice(at, (at += size)));
      else controller.close();
    },
  });
}
