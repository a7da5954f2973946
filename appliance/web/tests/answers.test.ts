/**
 * Answers of models as the page shows them. `answers.txt` has for each of them a name, the Markdown, and what it
 * becomes. `WRITE=1 npx vitest run tests/answers.test.ts` writes what they become now, to be read by a person.
 */
import { readFileSync, writeFileSync } from "node:fs";
import fc from "fast-check";
import { render } from "svelte/server";
import { afterAll, describe, expect, test } from "vitest";
import { Blocks } from "../src/lib/markdown";
import { work } from "../src/lib/pieces.svelte";
import Markdown from "../src/parts/Markdown.svelte";

interface Answer {
  name: string;
  text: string;
  shown: string;
}

const FILE = new URL("answers.txt", import.meta.url);
const [HEADER, ...WRITTEN] = readFileSync(FILE, "utf8").split(/^%%% /m);
const ANSWERS = WRITTEN.map((part): Answer => {
  const [, name, text, shown] = /^(.*)\n([^]*?)\n(?:%=\n([^]*?)\n*)?$/.exec(part)!;
  return { name: name!, text: text!, shown: shown ?? "" };
});

const PART = 32; // items or rows
const LINK = '<a href="https://example.org/">x</a>';
const END = "\n[x]: https://example.org\n";

/** Long lists and tables: their parts are alike, the numbers go on, and what is defined at the end holds in all. */
const LONG = [
  ["a long list", times(100, (at) => `- item ${at} [x]\n`) + END, inParts("ul", 100, (at) => `item ${at} ${LINK}`)],
  ["long numbers", times(97, (at) => `${at + 5}. item ${at}\n`), inParts("ol", 97, (at) => `item ${at}`, 5)],
  ["a number again and again", times(70, (at) => `1. item ${at}\n`), inParts("ol", 70, (at) => `item ${at}`, 1)],
  ["a long loose list", times(65, (at) => `- item ${at}\n\n`), inParts("ul", 65, (at) => `\n<p>item ${at}</p>`)],
  [
    "many tasks",
    times(65, (at) => `- [${at % 2 ? "x" : " "}] item ${at}\n`),
    inParts("ul", 65, (at) => `${at % 2 ? "☑" : "☐"} item ${at}`),
  ],
  [
    "a long table",
    `| a | b |\n|---|:-:|\n${times(100, (at) => `| ${at} | [x] |\n`)}${END}`,
    `<table><thead><tr><th>a</th><th text-center>b</th></tr></thead>${rows(100)}</table>`,
  ],
].map(([name, text, shown]): Answer => ({ name: name!, text: text!, shown: shown! }));

function times(count: number, line: (at: number) => string, from = 0): string {
  return Array.from({ length: count }, (_, at) => line(at + from)).join("");
}

function inParts(list: string, count: number, item: (at: number) => string, first = 1): string {
  const begins = Array.from({ length: Math.ceil(count / PART) }, (_, at) => at * PART);
  const start = (at: number) => (list === "ol" && at + first > 1 ? ` start="${at + first}"` : "");
  const line = (at: number) => (list === "tbody" ? `<tr>${item(at)}</tr>` : `<li>${item(at)}</li>`);
  const parts = begins.map((at) => `<${list}${start(at)}>${times(Math.min(PART, count - at), line, at)}</${list}>`);
  return parts.join("\n");
}

function rows(count: number): string {
  return inParts("tbody", count, (at) => `<td>${at}</td><td text-center>${LINK}</td>`).replaceAll("\n", "");
}

/** The elements that a person sees, one block a line. */
function seen(text: string): string {
  work.all = true;
  return render(Markdown, { props: { text, name: "" } })
    .body.replace(/<!--[^]*?-->/g, "")
    .replace(
      /<div class="code[^]*?<span>(.*?)<\/span>[^]*?<pre[^>]*><code>([^]*?)<\/code><\/pre>\s*<\/div>/g,
      "<pre $1>$2</pre>",
    )
    .replace(/<span class="block[^"]*"[^>]*>([^]*?)<\/span>/g, "<display>$1</display>")
    .replace(/<(\/?)([\w-]+)((?:\s(?:"[^"]*"|[^<>"])*)?)>/g, (_, end: string, name: string, rest: string) => {
      if (name === "div") return "";
      const kept: string[] = rest.match(/ (?:href|start|src|open)="[^"]*"|text-(?:left|center|right)/g) ?? [];
      return `<${end}${name}${name === "pre" ? rest : kept.map((each) => ` ${each.trim()}`).join("")}>`;
    })
    .replace(/\s*(<\/?(?:p|ul|ol|li|blockquote|h\d|table|thead|tbody|tr|hr|details|summary)\b[^>]*>)\s*/g, "$1")
    .replace(/(?<=.)(?=<(?:p|ul|ol|blockquote|h\d|pre|table|hr|details)\b)/g, "\n")
    .trim();
}

/** The blocks at the end of a text that came in pieces, of which each was shown. */
function streamed(text: string, pieces: number[]) {
  const blocks = new Blocks();
  for (let at = 0, turn = 0; at < text.length; at += pieces[turn++ % pieces.length]!) {
    blocks.of(text.slice(0, at), true);
  }
  return plain(blocks.of(text));
}

/** Only what is shown counts, and nothing of how it is kept. */
function plain(blocks: unknown): unknown {
  return JSON.parse(JSON.stringify(blocks, (_, value: unknown) => (value === undefined ? null : value)));
}

function expectTheSameInPieces(text: string, largest: number, runs: number) {
  const sizes = fc.array(fc.integer({ min: 1, max: largest }), { minLength: 1, maxLength: 30 });
  fc.assert(
    fc.property(sizes, (pieces) => {
      for (const given of [text, `${text}\n\nThe end.\n`]) {
        expect(streamed(given, pieces)).toEqual(plain(new Blocks().of(given)));
      }
    }),
    { numRuns: runs },
  );
}

describe.each([...ANSWERS, ...LONG])("$name", ({ text, shown }) => {
  test.skipIf(process.env.WRITE)("becomes the elements that are expected", () => {
    expect(seen(text)).toBe(shown);
  });
  test("is the same in pieces", () => {
    expectTheSameInPieces(text, 17, 3);
  });
});

test("all answers, one behind the other, are the same in pieces", { timeout: 60_000 }, () => {
  expectTheSameInPieces(ANSWERS.map((each) => each.text).join("\n\n"), 400, 1);
});

afterAll(() => {
  if (!process.env.WRITE) return;
  const written = ANSWERS.map(({ name, text }) => `%%% ${name}\n${text}\n%=\n${seen(text)}\n`);
  writeFileSync(FILE, HEADER + written.join("\n"));
});
