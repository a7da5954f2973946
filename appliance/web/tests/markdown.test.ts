import fc from "fast-check";
import { expect, test } from "vitest";
import { reader, type Span } from "../src/lib/highlight";
import { Blocks, direction, plain, safeImage, safeLink, visible } from "../src/lib/markdown";
import { spoken } from "../src/lib/spoken";

/** Pieces of Markdown in any order: more of what is hard to read than words alone. */
const PIECES = [
  ..."\n|\n\n|- |1. |> |# |    |```|~~~|`|**|*|_|[a]|[a]: x|](x)|![|<b>|</b>|<details>|<summary>|</details>|$|$$|\\[|\\]|[^1]|[^1]: |word|. ".split(
    "|",
  ),
  "|",
  "|--|\n",
  "\r\n",
];
const TEXT = fc.array(fc.constantFrom(...PIECES), { maxLength: 60 }).map((pieces) => pieces.join(""));

test("a text is the same whether it comes at once or letter by letter", () => {
  fc.assert(
    fc.property(TEXT, (text) => {
      const blocks = new Blocks();
      for (let at = 0; at < text.length; at++) blocks.of(text.slice(0, at), true);
      // The line break behind an empty item of a list within a quotation is counted to either; nobody sees it.
      const seen = (key: string, value: unknown) => (key === "raw" ? (value as string).trimEnd() : value);
      const tokens = (of: Blocks) => of.of(text).map(({ token, more }) => [token, more]);
      expect(JSON.stringify(tokens(blocks), seen)).toBe(JSON.stringify(tokens(new Blocks()), seen));
    }),
  );
});

test("a link leads to the web or to a mail, and an image is in the text itself", () => {
  const schemes = "javascript:|JaVaScRiPt:|data:text/html,|java&#115;cript:|file:|vbscript:| https:|//".split("|");
  const odd = fc.tuple(fc.constantFrom(...schemes), fc.string()).map(([a, b]) => a + b);
  const href = fc.oneof(fc.string(), fc.webUrl(), odd);
  fc.assert(
    fc.property(href, (href) => {
      expect(safeLink(href) ?? "mailto:").toMatch(/^(https?|mailto):/);
      expect(safeImage(href)).toBeUndefined();
    }),
  );
  expect(safeLink("https://example.org/?a=1&amp;b=2")).toBe("https://example.org/?a=1&b=2");
  expect(plain("&notin; &Auml;&#x41;&#66; &param; &nothing; &amp")).toBe("∉ ÄAB &param; &nothing; &amp");
  expect(safeImage("data:image/png;base64,AAAA")).toBe("data:image/png;base64,AAAA");
  expect(safeImage("data:image/svg+xml;base64,AAAA")).toBeUndefined();
});

test("no text turns the direction of what stands around it", () => {
  const mark = fc.constantFrom("\u202e", "\u2066", "&#x202e;", "\u001b[31m", "&amp;", "a", "&", "#8238;");
  fc.assert(
    fc.property(fc.array(mark), (marks) => {
      expect(visible(plain(marks.join("")))).not.toMatch(/[\u202a-\u202e\u2066-\u2069]|\u001b\[/);
    }),
  );
});

test("an answer is read out in short pieces, without its code", () => {
  fc.assert(
    fc.property(fc.array(fc.lorem({ mode: "sentences", maxCount: 3 }), { minLength: 1 }), (paragraphs) => {
      const pieces = spoken(paragraphs.map((each) => `${each}\n\n\`\`\`js\nsecret()\n\`\`\``).join("\n\n"));
      expect(pieces.join(" ").split(/\s+/)).toEqual(paragraphs.join(" ").split(/\s+/));
      expect(pieces.every((piece) => piece.length <= 400 || !piece.includes("\n"))).toBe(true);
    }),
  );
});

/** A word of each language that has a colour. */
// prettier-ignore
const COLOURED = {
  c: "int", "c++": "class", "c#": "class", php: "function", ruby: "def f; end", swift: "func",
  kotlin: "fun", powershell: "function f { 1 }", dockerfile: "FROM", lua: "function", r: "function",
  scala: "class", perl: "sub", haskell: "module", elixir: "def", dart: "class", julia: "function",
  groovy: "class", objectivec: "int", erlang: "-module(x).",
  toml: "a = 1", makefile: "all: x", html: "<p>", tsx: "const", graphql: "query", proto: "message X { }",
  latex: "\\x", nginx: "server {}",
};

test.each(Object.entries(COLOURED))("%s has colours", async (language, code) => {
  const coloured = (span: Span | string | undefined): boolean =>
    typeof span === "object" && (!!span.scope || span.children.some(coloured));
  expect(coloured((await reader(language))!(code))).toBe(true);
});

test("the code of a language that nobody knows stays as it is", async () => {
  expect(await reader("toString")).toBeUndefined();
});

test("the direction is that of the first letter, and not of code, tags, addresses and numbers before it", () => {
  const quiet = "> ,- ,| ,1. ,`code` ,<details><summary>,[](https://x.example) ,[^a]: ,12 ".split(",");
  const before = fc.constantFrom(...quiet, "```js\nx\n```\n");
  const rtl = ["مرحبا", "שלום", "ܐܒܓ"];
  fc.assert(
    fc.property(fc.array(before), fc.constantFrom(...rtl, "word", "слово", "字"), fc.string(), (marks, first, rest) => {
      expect(direction(`${marks.join("\n")}${first} ${rest}`)).toBe(rtl.includes(first) ? "rtl" : "ltr");
    }),
  );
  expect(direction("> 1 + 2")).toBe(undefined);
});
