/** Highlighting of named languages. Nothing is guessed, and each grammar is loaded when a block asks for it. */
import hljs from "highlight.js/lib/core";
import type { LanguageFn } from "highlight.js";
import "./highlight.css";

/**
 * Each language by its names, as models write them; the first is its own. The grammars of C++ and SCSS contain those of C
 * and CSS: one chunk serves two languages.
 */
const GRAMMARS: [names: string, grammar: () => Promise<{ default: LanguageFn }>][] = [
  ["bash sh zsh", () => import("highlight.js/lib/languages/bash")],
  ["c h", () => import("highlight.js/lib/languages/cpp")],
  ["cmake", () => import("highlight.js/lib/languages/cmake")],
  ["cpp c++ cc hpp", () => import("highlight.js/lib/languages/cpp")],
  ["csharp c# cs", () => import("highlight.js/lib/languages/csharp")],
  ["css", () => import("highlight.js/lib/languages/scss")],
  ["dart", () => import("highlight.js/lib/languages/dart")],
  ["diff patch", () => import("highlight.js/lib/languages/diff")],
  ["dockerfile docker", () => import("highlight.js/lib/languages/dockerfile")],
  ["elixir ex exs", () => import("highlight.js/lib/languages/elixir")],
  ["erlang erl", () => import("highlight.js/lib/languages/erlang")],
  ["go golang", () => import("highlight.js/lib/languages/go")],
  ["graphql gql", () => import("highlight.js/lib/languages/graphql")],
  ["groovy gradle", () => import("highlight.js/lib/languages/groovy")],
  ["haskell hs", () => import("highlight.js/lib/languages/haskell")],
  ["ini toml", () => import("highlight.js/lib/languages/ini")],
  ["java", () => import("highlight.js/lib/languages/java")],
  ["javascript js jsx mjs", () => import("highlight.js/lib/languages/javascript")],
  ["json json5 jsonc", () => import("highlight.js/lib/languages/json")],
  ["julia jl", () => import("highlight.js/lib/languages/julia")],
  ["kotlin kt kts", () => import("highlight.js/lib/languages/kotlin")],
  ["latex tex", () => import("highlight.js/lib/languages/latex")],
  ["lua", () => import("highlight.js/lib/languages/lua")],
  ["makefile make", () => import("highlight.js/lib/languages/makefile")],
  ["markdown md", () => import("highlight.js/lib/languages/markdown")],
  ["nginx", () => import("highlight.js/lib/languages/nginx")],
  ["objectivec objective-c objc", () => import("highlight.js/lib/languages/objectivec")],
  ["perl pl", () => import("highlight.js/lib/languages/perl")],
  ["php", () => import("highlight.js/lib/languages/php")],
  ["powershell ps1 pwsh", () => import("highlight.js/lib/languages/powershell")],
  ["protobuf proto", () => import("highlight.js/lib/languages/protobuf")],
  ["python py python3", () => import("highlight.js/lib/languages/python")],
  ["r", () => import("highlight.js/lib/languages/r")],
  ["ruby rb", () => import("highlight.js/lib/languages/ruby")],
  ["rust rs", () => import("highlight.js/lib/languages/rust")],
  ["scala", () => import("highlight.js/lib/languages/scala")],
  ["scss sass", () => import("highlight.js/lib/languages/scss")],
  ["shell console shellsession", () => import("highlight.js/lib/languages/shell")],
  ["sql", () => import("highlight.js/lib/languages/sql")],
  ["swift", () => import("highlight.js/lib/languages/swift")],
  ["typescript ts tsx", () => import("highlight.js/lib/languages/typescript")],
  ["xml html svelte svg vue xhtml", () => import("highlight.js/lib/languages/xml")],
  ["yaml yml", () => import("highlight.js/lib/languages/yaml")],
];
const found = (language: string) =>
  GRAMMARS.map(([names, grammar]) => ({ names: names.split(" "), grammar })).find(({ names }) =>
    names.includes(language),
  );

/** Languages within others. */
const WITHIN: Record<string, string[]> = {
  xml: ["css", "javascript"],
  php: ["xml", "css", "javascript"],
  markdown: ["xml"],
  shell: ["bash"],
};

export interface Span {
  scope?: string;
  children: (Span | string)[];
}

async function load(name: string): Promise<void> {
  if (!hljs.getLanguage(name)) hljs.registerLanguage(name, (await found(name)!.grammar()).default);
}

/** What reads code of a language as a tree of spans; undefined for a language that is not known here. */
export async function reader(language: string): Promise<((code: string) => Span) | undefined> {
  const name = found(language)?.names[0];
  if (name === undefined) return undefined;
  await Promise.all([name, ...(WITHIN[name] ?? [])].map(load));
  return (code) => {
    const result = hljs.highlight(code, { language: name, ignoreIllegals: true });
    return (result._emitter as unknown as { rootNode: Span }).rootNode;
  };
}
