/** Highlighting of named languages. Nothing is guessed, and each grammar is loaded when a block asks for it. */
import hljs from "highlight.js/lib/core";
import type { LanguageFn } from "highlight.js";
import "./highlight.css";

/** The grammars of C++ and SCSS contain those of C and CSS: one chunk serves two languages. */
const GRAMMARS: Record<string, () => Promise<{ default: LanguageFn }>> = {
  bash: () => import("highlight.js/lib/languages/bash"),
  c: () => import("highlight.js/lib/languages/cpp"),
  cmake: () => import("highlight.js/lib/languages/cmake"),
  cpp: () => import("highlight.js/lib/languages/cpp"),
  csharp: () => import("highlight.js/lib/languages/csharp"),
  css: () => import("highlight.js/lib/languages/scss"),
  dart: () => import("highlight.js/lib/languages/dart"),
  diff: () => import("highlight.js/lib/languages/diff"),
  dockerfile: () => import("highlight.js/lib/languages/dockerfile"),
  elixir: () => import("highlight.js/lib/languages/elixir"),
  erlang: () => import("highlight.js/lib/languages/erlang"),
  go: () => import("highlight.js/lib/languages/go"),
  graphql: () => import("highlight.js/lib/languages/graphql"),
  groovy: () => import("highlight.js/lib/languages/groovy"),
  haskell: () => import("highlight.js/lib/languages/haskell"),
  ini: () => import("highlight.js/lib/languages/ini"),
  java: () => import("highlight.js/lib/languages/java"),
  javascript: () => import("highlight.js/lib/languages/javascript"),
  json: () => import("highlight.js/lib/languages/json"),
  julia: () => import("highlight.js/lib/languages/julia"),
  kotlin: () => import("highlight.js/lib/languages/kotlin"),
  latex: () => import("highlight.js/lib/languages/latex"),
  lua: () => import("highlight.js/lib/languages/lua"),
  makefile: () => import("highlight.js/lib/languages/makefile"),
  markdown: () => import("highlight.js/lib/languages/markdown"),
  nginx: () => import("highlight.js/lib/languages/nginx"),
  objectivec: () => import("highlight.js/lib/languages/objectivec"),
  perl: () => import("highlight.js/lib/languages/perl"),
  php: () => import("highlight.js/lib/languages/php"),
  powershell: () => import("highlight.js/lib/languages/powershell"),
  protobuf: () => import("highlight.js/lib/languages/protobuf"),
  python: () => import("highlight.js/lib/languages/python"),
  r: () => import("highlight.js/lib/languages/r"),
  ruby: () => import("highlight.js/lib/languages/ruby"),
  rust: () => import("highlight.js/lib/languages/rust"),
  scala: () => import("highlight.js/lib/languages/scala"),
  scss: () => import("highlight.js/lib/languages/scss"),
  shell: () => import("highlight.js/lib/languages/shell"),
  sql: () => import("highlight.js/lib/languages/sql"),
  swift: () => import("highlight.js/lib/languages/swift"),
  typescript: () => import("highlight.js/lib/languages/typescript"),
  xml: () => import("highlight.js/lib/languages/xml"),
  yaml: () => import("highlight.js/lib/languages/yaml"),
};

/** Other names of a language, as models write them. */
const ALIASES: Record<string, string> = {
  "c++": "cpp",
  cc: "cpp",
  h: "c",
  hpp: "cpp",
  "c#": "csharp",
  cs: "csharp",
  console: "shell",
  docker: "dockerfile",
  erl: "erlang",
  ex: "elixir",
  exs: "elixir",
  golang: "go",
  gql: "graphql",
  gradle: "groovy",
  hs: "haskell",
  html: "xml",
  jl: "julia",
  js: "javascript",
  json5: "json",
  jsonc: "json",
  jsx: "javascript",
  kt: "kotlin",
  kts: "kotlin",
  make: "makefile",
  md: "markdown",
  mjs: "javascript",
  "objective-c": "objectivec",
  objc: "objectivec",
  patch: "diff",
  pl: "perl",
  proto: "protobuf",
  ps1: "powershell",
  pwsh: "powershell",
  py: "python",
  python3: "python",
  rb: "ruby",
  rs: "rust",
  sass: "scss",
  sh: "bash",
  shellsession: "shell",
  svelte: "xml",
  svg: "xml",
  tex: "latex",
  toml: "ini",
  ts: "typescript",
  tsx: "typescript",
  vue: "xml",
  xhtml: "xml",
  yml: "yaml",
  zsh: "bash",
};

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
  if (!hljs.getLanguage(name)) hljs.registerLanguage(name, (await GRAMMARS[name]!()).default);
}

/** What reads code of a language as a tree of spans; undefined for a language that is not known here. */
export async function reader(language: string): Promise<((code: string) => Span) | undefined> {
  const name = ALIASES[language] ?? language;
  if (!Object.hasOwn(GRAMMARS, name)) return undefined;
  await Promise.all([name, ...(WITHIN[name] ?? [])].map(load));
  return (code) => {
    const result = hljs.highlight(code, { language: name, ignoreIllegals: true });
    return (result._emitter as unknown as { rootNode: Span }).rootNode;
  };
}
