/** An answer as a person would read it out: without marks and code, in pieces that end with a sentence. */
import type { Token, Tokens } from "marked";
import { Blocks, visible, type DetailsToken } from "./markdown";

const PIECE = 400; // characters, so that the first sound comes soon

export function spoken(text: string): string[] {
  const sentences = new Blocks()
    .of(text)
    .flatMap(({ token, more = [] }) =>
      [token, ...more]
        .map(said)
        .join("\n")
        .split(/\n+|(?<=[.!?。！？])\s+/),
    )
    .map((sentence) => sentence.trim())
    .filter((sentence) => /[\p{L}\p{N}]/u.test(sentence));
  const pieces: string[] = [];
  for (const sentence of sentences) {
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
  if (within) {
    return within
      .map((part) => (part.type === "list" || part.type === "paragraph" ? `\n${said(part)}` : said(part)))
      .join("");
  }
  return visible((token as Partial<Tokens.Text>).text ?? "");
}
