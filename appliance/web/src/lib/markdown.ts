/**
 * Markdown as a tree of tokens, for components that build elements of it. No HTML string is made anywhere, so nothing
 * that a model writes can become an element that is not listed in Tokens.svelte.
 */
import { Lexer, Marked, type Token } from "marked";

export interface MathToken {
  type: "math";
  raw: string;
  text: string;
  block: boolean;
}

const MATH: [RegExp, boolean][] = [
  [/^\$\$([^$]+?)\$\$/, true],
  [/^\\\[([\s\S]+?)\\\]/, true],
  [/^\\\(([\s\S]+?)\\\)/, false],
  [/^\$(?!\s)((?:\\.|[^$\\\n])+?)(?<!\s)\$(?!\d)/, false],
];

const marked = new Marked({ gfm: true, breaks: true });
marked.use({
  extensions: [
    {
      name: "math",
      level: "inline",
      start: (text: string) => /\$|\\[[(]/.exec(text)?.index,
      tokenizer(text: string): MathToken | undefined {
        for (const [shape, block] of MATH) {
          const match = shape.exec(text);
          if (match) return { type: "math", raw: match[0], text: match[1]!, block };
        }
        return undefined;
      },
    },
  ],
});

export interface Block {
  key: number;
  token: Token;
}

/** The blocks of a growing text. Finished ones stay the same objects, so that nothing renders them again. */
export class Blocks {
  private stable: Block[] = [];
  private length = 0;
  private text = "";

  of(text: string): Block[] {
    if (!text.startsWith(this.text.slice(0, this.length))) {
      this.stable = [];
      this.length = 0;
    }
    this.text = text;
    const found = lexed(quoted(text.slice(this.length)));
    const finished = found.slice(0, -1);
    for (const token of finished) {
      this.stable.push({ key: this.stable.length, token });
      this.length += token.raw.length;
    }
    const last = found.at(-1);
    return last ? [...this.stable, { key: this.stable.length, token: last }] : this.stable;
  }
}

const LONGEST = 10_000;

/** Like `marked.lexer`, but a paragraph longer than people write stays text: some cost time in the square of it. */
function lexed(text: string): Token[] {
  try {
    return lexedDeep(text);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    return [{ type: "text", raw: text, text }]; // nested so deeply that the stack is full
  }
}

function lexedDeep(text: string): Token[] {
  const lexer = new Lexer(marked.defaults);
  lexer.blockTokens(text.replace(/\r\n|\r/g, "\n"), lexer.tokens);
  for (const { src, tokens } of lexer.inlineQueue) {
    if (src.length > LONGEST) tokens.push({ type: "text", raw: src, text: src });
    else lexer.inlineTokens(src, tokens);
  }
  return lexer.tokens;
}

const DEEPEST = 20;

const LISTS = /^((?:[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+){20})[-*+\d]/gm;

/**
 * Quotes and lists within each other are cut at a depth that nobody writes: the lexer calls itself for each. The length
 * of the text stays what it is, because finished blocks are counted by it.
 */
function quoted(text: string): string {
  text = text.replace(LISTS, "$1\u2010");
  return /^[ \t]*(?:>[ \t]?){20}/m.test(text)
    ? text.replace(/^([ \t]*)((?:>[ \t]?)+)/gm, (all, indent: string, marks: string) =>
        marks.split(">").length - 1 > DEEPEST ? `${indent}${">".repeat(DEEPEST)}`.padEnd(all.length, " ") : all,
      )
    : text;
}

const ENTITIES: Record<string, string> = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };

/** Text as it is meant: entities undone, and what would turn its direction round made visible. */
export function plain(text: string): string {
  return text
    .replace(/&(?:#(\d{1,7})|#x([0-9a-f]{1,6})|(\w{2,6}));/gi, (all, dec?: string, hex?: string, name?: string) => {
      if (name) return ENTITIES[name.toLowerCase()] ?? all;
      const code = dec ? Number(dec) : parseInt(hex!, 16);
      return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : "\ufffd";
    })
    .replace(/[\u202a-\u202e\u2066-\u2069]/g, (mark) => `⟨U+${mark.charCodeAt(0).toString(16).toUpperCase()}⟩`)
    .replace(/\u001b\[[\d;]*[A-Za-z]/g, "");
}

/** The address of a link that may be followed, else nothing. */
export function safeLink(href: string): string | undefined {
  try {
    const url = new URL(plain(href));
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : undefined;
  } catch {
    return undefined;
  }
}

/** An image that needs no request. */
export function safeImage(href: string): string | undefined {
  return /^data:image\/(png|jpeg|gif|webp);base64,/i.test(href) && href.length < 11_000_000 ? href : undefined;
}
