/** An answer as a person would read it out: without marks and code, in pieces that end with a sentence. */
import type { Token, Tokens } from "marked";
import { Blocks, visible, type DetailsToken } from "./markdown";

const PIECE = 400; // characters, so that the first sound comes soon

export function spoken(text: string): string[] {
  const blocks = new Blocks().of(text).flatMap(({ token, more = [] }) => [token, ...more].map(said));
  const sentences = blocks.flatMap((block) => block.split(/\n+|(?<=[.!?。！？])\s+/)).map((each) => each.trim());
  const pieces: string[] = [];
  for (const sentence of sentences.filter((each) => /[\p{L}\p{N}]/u.test(each))) {
    const last = pieces.at(-1);
    if (last !== undefined && last.length + sentence.length < PIECE) pieces[pieces.length - 1] = `${last}\n${sentence}`;
    else pieces.push(sentence);
  }
  return pieces;
}

function said(token: Token): string {
  if (["code", "def", "hr", "html", "footref", "space"].includes(token.type)) return "";
  if (token.type === "br") return "\n";
  if (token.type === "list") return (token as Tokens.List).items.map(said).join("\n");
  if (token.type === "table") {
    const { header, rows } = token as Tokens.Table;
    return [header, ...rows].map((row) => row.map((cell) => cell.tokens.map(said).join("")).join(", ")).join("\n");
  }
  if (token.type === "details") {
    const { summary, tokens } = token as unknown as DetailsToken;
    return [summary.map(said).join(""), ...tokens.map(said)].join("\n");
  }
  const within = (token as Tokens.Generic).tokens;
  const apart = ({ type }: Token) => (type === "list" || type === "paragraph" ? "\n" : "");
  if (within) return within.map((part) => apart(part) + said(part)).join("");
  return visible((token as Partial<Tokens.Text>).text ?? "");
}
