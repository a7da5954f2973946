/**
 * Markdown as a tree of tokens, for components that build elements of it. No HTML string is made anywhere, so nothing
 * that a model writes can become an element that is not listed in Tokens.svelte.
 */
import { getDefaults, Lexer, Tokenizer, type Links, type MarkedOptions, type Token, type Tokens } from "marked";

interface Own<Type> {
  type: Type;
  raw: string;
}

export interface MathToken extends Own<"math"> {
  text: string;
  block: boolean;
}

/** A mark or a note at the foot, if there is a definition. */
export interface FootnoteToken extends Own<"footnote" | "footref"> {
  text: string;
  tokens: Token[];
}

/** A known element that stands in the text as HTML. */
export interface ElementToken extends Own<"element"> {
  name: string;
  tokens: Token[];
}

/** What is folded away below its summary. */
export interface DetailsToken extends Own<"details"> {
  open: boolean;
  summary: Token[];
  tokens: Token[];
}

/** Stands for the line breaks within display maths while blocks are found. It is no character. */
const JOINED = "\ufdd0";

const MATH: [RegExp, boolean][] = [
  [/^\$\$((?:[^$]|\$(?!\$))+?)\$\$/, true],
  [/^\\\[(?!\d+\\\])([^]+?)\\\]/, true],
  [/^(\\begin\{(\w+\*?)\}[^]+?\\end\{\2\})/, true],
  [/^\\\(([^]+?)\\\)/, false],
  [/^\$(?!\s)((?:\\.|[^$\\\n])+?)(?<!\s)\$(?![\da-z])/i, false],
];

/** Prices, as in "$100 vs. 50$", have words between them, and sums have not. */
function prose(text: string): boolean {
  const bare = text.replace(/\\[a-z]+(\{[^}]*\})?/gi, "");
  return /^\d/.test(bare) ? /(^|\s)[a-z]{2,}[.,]?(\s|$)/i.test(bare) : /(\s[a-z]{2,}){2}/i.test(bare);
}

function math(text: string, tokens: Token[]): MathToken | undefined {
  for (const [shape, block] of MATH) {
    const match = shape.exec(text);
    if (!match) continue;
    const single = /^\$[^$]/.test(text);
    if (single && (prose(match[1]!) || /[\da-z$]$/i.test(tokens.at(-1)?.raw ?? ""))) return undefined;
    const [first, ...more] = match[1]!.split(JOINED);
    const quoted = more.length > 0 && more.every((line) => /^\s*>/.test(line));
    return {
      type: "math",
      raw: match[0],
      text: [first, ...more.map((line) => (quoted ? line.replace(/^\s*> ?/, "") : line))].join("\n"),
      block,
    };
  }
  return undefined;
}

/** A single tilde, as in "~5 or ~10", strikes nothing out. */
class Reader extends Tokenizer {
  override del(...asked: Parameters<Tokenizer["del"]>) {
    return asked[0].startsWith("~~") ? super.del(...asked) : undefined;
  }
}

function footref(this: { lexer: Lexer }, text: string): FootnoteToken | undefined {
  const match = /^\[\^([^\]\s]+)\]/.exec(text);
  return match && Object.hasOwn(this.lexer.tokens.links, label(match[1]!))
    ? { type: "footref", raw: match[0], text: match[1]!, tokens: [] }
    : undefined;
}

/** Where a sign stands beside the asterisks and a letter behind them, as in "**注意：**这", CommonMark has no emphasis. */
function strong(this: { lexer: Lexer }, text: string): Tokens.Strong | null {
  const match = /^\*\*(?![\s*])((?:[^*`\n]|`[^`\n]*`)+?)(?<!\s)\*\*(?!\*)/.exec(text);
  return match && { type: "strong", raw: match[0], text: match[1]!, tokens: this.lexer.inlineTokens(match[1]!) };
}

function footnote(this: { lexer: Lexer }, text: string): FootnoteToken | undefined {
  const match =
    /^ {0,3}\[\^([^\]\s]+)\]:[ \t]*([^\n]*(?:\n(?! {0,3}\[\^[^\]\s]+\]:|[ \t]*(?:\n|$))[^\n]+|\n[ \t]*\n(?: {4}|\t)[^\n]+)*)(?:\n|$)/.exec(
      text,
    );
  if (!match) return undefined;
  this.lexer.tokens.links[label(match[1]!)] ??= { href: "", title: "" };
  const inner = match[2]!.replace(/^(?: {4}|\t)/gm, "");
  return { type: "footnote", raw: match[0], text: match[1]!, tokens: this.lexer.blockTokens(inner, []) };
}

/** The library's lexer without what makes HTML of its tokens: see `vite.config.ts`. */
const OPTIONS = {
  ...getDefaults(),
  breaks: true,
  tokenizer: new Reader(),
  extensions: {
    block: [footnote, details],
    inline: [footref, strong, math],
    startInline: [(text: string) => /\$|\\[[(]|\\begin\{/.exec(text)?.index],
    renderers: {},
    childTokens: {},
  },
} as unknown as MarkedOptions;

/** Each token, before those within it. */
function walk(tokens: Tokens.Generic[], see: (token: Tokens.Generic) => void) {
  for (const token of tokens) {
    see(token);
    const { header = [], rows = [] } = token as Partial<Tokens.Table>;
    const cells = [...header, ...rows.flat()].flatMap((cell) => cell.tokens);
    walk([...cells, ...((token as Partial<Tokens.List>).items ?? token.tokens ?? [])], see);
  }
}

const DETAILS = /^ {0,3}<details( open)?>[ \t]*(?=\n|<summary>|$)/i;
const SUMMARY = /^\s*<summary>([^]*?)(?:<\/summary>|\n[ \t]*(?=\n)|$)/i;
const FOLDS = /^[ \t]*(`{3,}|~{3,})[^\n]*$|`[^`\n]*`|<(\/?)details( open)?>/gim;
const FOLDED = 8; // within each other; each looks for its end by itself
let folds = 0;

/** Details up to their end, or to that of the text: then they may still grow. Tags in code are text. */
function details(this: { lexer: Lexer }, text: string): DetailsToken | undefined {
  const begin = DETAILS.exec(text);
  if (!begin || folds === FOLDED) return undefined;
  FOLDS.lastIndex = 0;
  let depth = 0;
  let end = FOLDS.exec(text);
  for (; end; end = FOLDS.exec(text)) {
    if (end[1]) FOLDS.lastIndex = fenced(text, end[1], FOLDS.lastIndex) ?? text.length;
    else if (!end[0].startsWith("`") && !(depth += end[2] ? -1 : 1)) break;
  }
  const inner = text.slice(begin[0].length, end?.index);
  const head = SUMMARY.exec(inner);
  folds += 1;
  try {
    const summary: Token[] = head ? this.lexer.inline(head[1]!.trim()) : [];
    const tokens = this.lexer.blockTokens(inner.slice(head?.[0].length ?? 0), []);
    const raw = end ? text.slice(0, end.index) + /^.*?>[ \t]*\n?/.exec(text.slice(end.index))![0] : text;
    return { type: "details", raw, open: !!begin[1], summary, tokens };
  } finally {
    folds -= 1;
  }
}

/** What definitions of notes are called among those of links. */
const label = (note: string) => `^${note.toLowerCase()}`;

export interface Block {
  key: number;
  token: Token;
  /** Further parts of a long table. Those of a long list are blocks of their own. */
  more?: Token[];
  /** It may still grow. */
  open: boolean;
  /** Of a heading: its place among the headings of the answer, whatever its number of signs. */
  level: number;
}

/**
 * The blocks of a growing text. What is shown for a text depends on nothing but the text, however it came.
 *
 * Markdown is decided line by line, so a block is finished when a later block has begun with a complete line. Finished
 * blocks stay the same objects, and so do the parts of the others that did not change: only what is new is rendered.
 * A long list or table is finished part by part (`inParts`), else each word at its end would cost all that it has.
 * Definitions of links and notes may come last. Finished blocks that ask for them are read again then.
 */
export class Blocks {
  private stable: Block[] = [];
  private text = "";
  private length = 0; // of the text that has become stable blocks
  private outline: number[] = []; // the headings that the last stable block stands below
  private links: Links = {}; // defined in stable blocks
  private known: Links = {}; // with which the stable blocks were read
  private inline: Inline = { texts: new Map(), links: {} };
  private last: Token[] = [];
  private next: Part | undefined = undefined; // of a list or table, where it is this that goes on behind the stable blocks

  /** While it is not `open`, nothing grows any more. */
  of(written: string, open = false): Block[] {
    const text = written.replace(/\r\n?/g, "\n");
    if (!text.startsWith(this.text)) Object.assign(this, new Blocks());
    const grown = text.lastIndexOf("\n") !== this.text.lastIndexOf("\n");
    this.text = text;
    if (grown) this.finish(text.slice(this.length, text.lastIndexOf("\n") + 1));
    const { tokens, links } = this.read(text.slice(this.length));
    this.resolve(links);
    this.last = tokens.map((token, at) => same(this.last[at], token));
    return added(this.stable, this.last, [...this.outline], open);
  }

  /** Take the blocks that no later line can change out of these complete lines. */
  private finish(lines: string) {
    const { tokens, links, held } = this.read(lines);
    const count = tokens.findLastIndex((token) => token.type !== "space");
    let length = 0;
    let ready = 0;
    const own = (token: Tokens.Generic) => token.raw.length - (token.ahead ?? 0);
    for (; ready < count && length + own(tokens[ready]!) <= held; ready++) length += own(tokens[ready]!);
    if (!ready) return;
    this.next = inner(tokens[ready]!);
    for (const token of tokens.slice(0, ready)) {
      const note = token.type === "footnote" ? label((token as FootnoteToken).text) : "";
      const name = token.type === "def" ? (token as Tokens.Def).tag : note;
      if (name && links[name]) this.links[name] ??= links[name];
    }
    this.resolve(links);
    const finished = tokens.slice(0, ready).map((token, at) => same(this.last[at], token));
    this.stable = added(this.stable, finished, this.outline, false);
    this.last = this.last.slice(ready);
    this.length += length;
  }

  private read(text: string) {
    const ahead = this.next ? this.next.raw.slice(0, this.next.ahead) : "";
    const { tokens, links, inline, held } = lexed(ahead + text, this.links, this.inline);
    this.inline = inline;
    const parts = tokens.flatMap((token, at) => inParts(token, inline, at ? undefined : this.next));
    return { tokens: parts, links, held: held - ahead.length };
  }

  /** Read the stable blocks again that speak of definitions which are new or have changed. */
  private resolve(links: Links) {
    const changed = differing(links, this.known);
    if (!changed.length) return;
    this.known = { ...links };
    this.last = [];
    const asks = (raw: string) => {
      const spoken = raw.toLowerCase().replace(/\s+/g, " ");
      return changed.some((name) => spoken.includes(`[${name}]`));
    };
    const again = (token: Tokens.Generic) => {
      if (!token.raw.includes("[") || !asks(token.raw)) return token;
      const [read] = lexed(token.raw, links).tokens;
      return token.ahead === undefined ? read! : part(read!, token as Part);
    };
    this.stable = this.stable.map((block) => {
      const [token, ...more] = [block.token, ...(block.more ?? [])].map(again);
      return token === block.token && more.every((each, at) => each === block.more![at])
        ? block
        : { ...block, token: token!, ...(block.more && { more }) };
    });
  }
}

/** These blocks, and those of the tokens behind them. */
function added(before: Block[], tokens: Tokens.Generic[], outline: number[], open: boolean): Block[] {
  const all = [...before];
  const shown = tokens.filter((token) => token.type !== "space" && token.type !== "def");
  for (const token of shown) {
    if (token.type === "heading") {
      const { depth } = token as Tokens.Heading;
      while (outline.length && outline.at(-1)! >= depth) outline.pop();
      outline.push(depth);
    }
    const last = all.at(-1);
    if (token.type === "table" && token.ahead) all[all.length - 1] = { ...last!, more: [...(last!.more ?? []), token] };
    else {
      const level = Math.min(outline.length + 1, 6);
      all.push({ key: all.length, token, open: open && token === shown.at(-1), level });
    }
  }
  return all;
}

const PART = 32; // items or rows

/** A part of a list or table. What it becomes is decided with the first `ahead` characters of `raw`, which belong to the part before. */
type Part = Tokens.Generic & { ahead: number; start?: number | "" };

const inner = (token: Tokens.Generic) => (token.ahead ? (token as Part) : undefined);

/** What was read of the whole `raw` of a part, without what is ahead of it. */
function part(read: Tokens.Generic, { raw, ahead, start }: { raw: string; ahead: number; start?: number | "" }): Part {
  if (read.type === "list") {
    return { ...read, raw, ahead, start, items: (read as Tokens.List).items.slice(ahead ? 1 : 0) };
  }
  return { ...read, raw, ahead, header: ahead ? [] : (read as Tokens.Table).header };
}

/**
 * A long list or table in parts. The parts must be the same whether the text comes at once or word by word, so a part
 * must not depend on what follows it. Rows do not. Items do: one blank line makes all items of a list loose, also those
 * before it. So each part of a list is read by itself, with the last item of the part before it ahead, because a blank
 * line between the two counts. The parts of a table have its head ahead. If the token begins in the middle of a list or
 * table, `next` is the part that it goes on with.
 */
function inParts(token: Tokens.Generic, inline: Inline, next?: Part): Tokens.Generic[] {
  const from = next ? 1 : 0;
  const parts: Part[] = [];
  if (token.type === "list") {
    const { items, start: first } = token as Tokens.List;
    if (items.length - from <= PART) return [next ? part(token, { ...next, raw: token.raw }) : token];
    const start = next ? next.start : first;
    for (let at = from; at < items.length; at += PART) {
      const ahead = at ? items[at - 1]!.raw : "";
      const some = items.slice(at, at + PART).map((item) => item.raw);
      const raw = ahead + some.join("");
      const read = lexed(raw, inline.links, inline).tokens[0]!;
      parts.push(part(read, { raw, ahead: ahead.length, start: token.ordered ? Number(start) + at - from : "" }));
    }
    return parts;
  }
  const rows = token.type === "table" ? (token as Tokens.Table).rows : [];
  if (!rows.length || (rows.length <= PART && !next)) return [token];
  const lines = token.raw.match(/[^\n]+\n?/g)!;
  const head = lines.splice(0, 2).join("");
  for (let at = 0; at < rows.length; at += PART) {
    const to = at + PART < rows.length ? at + PART : undefined;
    const raw = head + lines.slice(at, to).join("");
    parts.push(part({ ...token, rows: rows.slice(at, to) }, { raw, ahead: at || next ? head.length : 0 }));
  }
  return parts;
}

/** The texts within blocks as they were read with these definitions, so that they need not be read again. */
interface Inline {
  texts: Map<string, Token[]>;
  links: Links;
}

/** The names that are not defined alike. */
function differing(some: Links, others: Links): string[] {
  const names = Object.keys({ ...some, ...others });
  const differs = (name: string, member: "href" | "title") => some[name]?.[member] !== others[name]?.[member];
  return names.filter((name) => differs(name, "href") || differs(name, "title"));
}

/** The token as it was before, or with those of its parts that are as they were. */
function same(before: Tokens.Generic | undefined, token: Tokens.Generic): Tokens.Generic {
  if (before?.type !== token.type) return token;
  if (before.raw === token.raw && before.loose === token.loose && before.ahead === token.ahead) return before;
  if (token.type === "list") {
    token.items = (token as Tokens.List).items.map((item, at) => same((before as Tokens.List).items[at], item));
  } else if (token.type === "table") {
    const rows = (before as Tokens.Table).rows;
    token.rows = (token as Tokens.Table).rows.map((row, at) =>
      rows[at]?.every((cell, column) => cell.text === row[column]?.text) ? rows[at] : row,
    );
  } else if (token.type === "list_item" || token.type === "blockquote" || token.type === "details") {
    token.tokens = token.tokens!.map((part, at) => same(before.tokens?.[at], part));
  }
  return token;
}

const LONGEST = 10_000;

interface Lexed {
  tokens: Token[];
  links: Links;
  inline: Inline;
  /** From here on a later line may join what is apart now. */
  held: number;
}

/** Like `Lexer.lex`, but a paragraph longer than people write stays text: some cost time in the square of it. */
function lexed(text: string, links: Links, before?: Inline): Lexed {
  const [whole, held] = joined(shallow(text));
  const lexer = new Lexer(OPTIONS);
  const inline: Inline = { texts: new Map(), links: lexer.tokens.links };
  Object.assign(lexer.tokens.links, links);
  try {
    lexer.blockTokens(whole, lexer.tokens);
    walk(lexer.tokens, (token) => {
      if (token.type === "code") token.text = (token as Tokens.Code).text.replaceAll(JOINED, "\n");
      if (token.type !== "html" || !token.block) return;
      if (KNOWN.test(token.raw)) Object.assign(token, { type: "paragraph", tokens: lexer.inline(token.raw.trim()) });
    });
    const kept = before && !differing(before.links, inline.links).length ? before.texts : undefined;
    for (const { src, tokens } of lexer.inlineQueue) {
      lexer.state.inRawBlock = false;
      const known =
        kept?.get(src) ??
        (src.length > LONGEST ? [{ type: "text", raw: src, text: src }] : arranged(lexer.inlineTokens(src, [])));
      inline.texts.set(src, known);
      tokens.push(...known);
    }
    return { tokens: lexer.tokens, links: lexer.tokens.links, inline, held };
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    return { tokens: [{ type: "text", raw: text, text }], links, inline, held }; // nested so deeply that the stack is full
  }
}

/** An image of another host within a link becomes the words of the link. */
function withoutForeign(part: Token): Token {
  const { raw, text, href } = part as Tokens.Image;
  return part.type === "image" && !safeImage(href) ? { type: "text", raw, text } : part;
}

const KNOWN = /<\/?(sub|sup|kbd|mark|summary|br)\b/i;
const ELEMENTS = /^<(sub|sup|kbd|mark|u|ins|s|b|i|em|strong|summary)>$/i;

/** Known HTML elements as elements, and no line break beside display maths. */
function arranged(tokens: Token[]): Token[] {
  const found: Token[] = [];
  const begun: [name: string, at: number][] = [];
  for (const token of tokens as Tokens.Generic[]) {
    if (token.tokens) token.tokens = arranged(token.tokens);
    if (token.type === "link") token.tokens = token.tokens?.map(withoutForeign);
    const tag = token.type === "html" ? token.raw.trim().toLowerCase() : "";
    const name = ELEMENTS.exec(tag)?.[1];
    const end = begun.findLastIndex(([name]) => tag === `</${name}>`);
    if (/^<br\s*\/?>$/.test(tag)) found.push({ type: "br", raw: token.raw });
    else if (end >= 0) {
      const [name, at] = begun[end]!;
      begun.length = end;
      const [first, ...inside] = found.splice(at);
      const raw = [first!, ...inside, token].map((part) => part.raw).join("");
      found.push({ type: "element", raw, name, tokens: inside } satisfies ElementToken);
    } else {
      if (name) begun.push([name, found.length]);
      found.push(token);
    }
  }
  const display = (token: Token | undefined) => token?.type === "math" && (token as unknown as MathToken).block;
  return found.filter(
    (token, at) => token.type !== "br" || !((!at && found[1]) || display(found[at - 1]) || display(found[at + 1])),
  );
}

const DEEPEST = 20;

const LISTS = /^((?:[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]+){20})[-*+\d]/gm;

/**
 * Quotes and lists within each other are cut at a depth that nobody writes: the lexer calls itself for each. The length
 * of the text stays what it is, because finished blocks are counted by it.
 */
function shallow(text: string): string {
  text = text.replace(LISTS, "$1\u2010");
  return /^[ \t]*(?:>[ \t]?){20}/m.test(text)
    ? text.replace(/^([ \t]*)((?:>[ \t]?)+)/gm, (all, indent: string, marks: string) =>
        marks.split(">").length - 1 > DEEPEST ? `${indent}${">".repeat(DEEPEST)}`.padEnd(all.length, " ") : all,
      )
    : text;
}

const LONGEST_MARK = 500; // more makes an expression too large

/** Where the code that a fence begins has its end; none if that has not come. */
function fenced(text: string, fence: string, from: number): number | undefined {
  const end = new RegExp(`^[ \\t>]*${fence[0]}{${Math.min(fence.length, LONGEST_MARK)},}[ \\t]*$`, "gm");
  end.lastIndex = from;
  return end.test(text) ? end.lastIndex : undefined;
}

const MARKS =
  /^([ \t>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*)(`{3,}(?=[^`\n]*$)|~{3,})|`+|\$\$|(?<!\\)\\\[|\\begin\{\w+\*?\}/gm;
const FURTHEST = 5000;

/**
 * Display maths in one line. Its lines may begin with a minus, a plus or a bar, and would be lists and tables. Code is
 * left alone. Also told is where maths begin whose end has not come yet.
 */
function joined(text: string): [string, number] {
  const parts: string[] = [];
  let done = 0;
  let held = Infinity;
  MARKS.lastIndex = 0;
  for (let match = MARKS.exec(text); match; match = MARKS.exec(text)) {
    const at = match.index;
    const after = MARKS.lastIndex;
    const mark = match[2] ?? match[0];
    const ahead = text.slice(after, after + FURTHEST);
    const blank = ahead.search(/\n[ \t>]*\n/);
    if (match[2]) {
      const end = fenced(text, mark, after);
      if (!end) break;
      MARKS.lastIndex = end;
    } else if (mark.startsWith("`")) {
      if (mark.length > LONGEST_MARK) continue;
      const end = new RegExp(`(?<!\`)${mark}(?!\`)`).exec(blank < 0 ? ahead : ahead.slice(0, blank));
      if (end) MARKS.lastIndex += end.index + mark.length;
    } else {
      const end = mark === "$$" ? mark : mark === "\\[" ? "\\]" : mark.replace("begin", "end");
      const close = ahead.indexOf(end);
      const line = ahead.indexOf("\n");
      if (close >= 0 && (line < 0 || close < line)) {
        MARKS.lastIndex += close + end.length;
        continue;
      }
      const alone = !mark.startsWith("\\begin") && !ahead.slice(0, Math.max(line, 0)).trim();
      const before = text.slice(text.lastIndexOf("\n", at - 1) + 1, at);
      const first = /^[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*$/.test(before);
      const broken = !alone && blank >= 0 && (close < 0 || blank < close);
      if (broken || !(first || alone)) continue;
      if (close < 0) {
        if (text.length - after < FURTHEST) held = Math.min(held, at);
        continue;
      }
      MARKS.lastIndex += close + end.length;
      parts.push(text.slice(done, after), text.slice(after, after + close).replaceAll("\n", JOINED));
      done = after + close;
    }
  }
  return [parts.join("") + text.slice(done), held];
}

const ENTITY = /&(#\d{1,7}|#x[\da-f]{1,6}|[a-z]\w{1,30});/gi;
/** What it is given becomes text, never an element. */
const decoder = document.createElement("textarea");

/** Text as it stands, but what would turn its direction round is made visible, and colours of terminals are left out. */
export function visible(text: string): string {
  return text
    .replaceAll(JOINED, "\n")
    .replace(/[\u202a-\u202e\u2066-\u2069]/g, (mark) => `⟨U+${mark.charCodeAt(0).toString(16).toUpperCase()}⟩`)
    .replace(/\u001b\[[\d;]*[A-Za-z]/g, "");
}

/** Text as it is meant: entities undone as well. */
export function plain(text: string): string {
  const undone = text.replace(ENTITY, (entity) => {
    decoder.innerHTML = entity;
    return decoder.value.length > 2 ? entity : decoder.value; // of "&param;" a browser makes "&para;" and "m;"
  });
  return visible(undone);
}

/** The address of a link that may be followed, else nothing. */
export function safeLink(href: string): string | undefined {
  const address = plain(href);
  if (!URL.canParse(address)) return undefined;
  const url = new URL(address);
  return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : undefined;
}

/** An image that needs no request. */
export function safeImage(href: string): string | undefined {
  return /^data:image\/(png|jpeg|gif|webp);base64,/i.test(href) && href.length < 11_000_000 ? href : undefined;
}

const NO_WORDS = /(`{3,})[^]*?\1|`[^`]*`|<[^>]*>|\]\([^)]*\)|^ {0,3}\[\^[^\]]+\]:/gm;
const RIGHT_TO_LEFT =
  /[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}\p{Script=Adlam}]/u;

/** That of the first letter of a quote, list or table. The browser's `auto` passes over paragraphs with a direction of their own. */
export function direction(raw: string): "ltr" | "rtl" | undefined {
  const letter = /\p{L}/u.exec(raw.slice(0, 5000).replace(NO_WORDS, ""))?.[0];
  return letter === undefined ? undefined : RIGHT_TO_LEFT.test(letter) ? "rtl" : "ltr";
}
