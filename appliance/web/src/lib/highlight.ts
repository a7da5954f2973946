/** Highlighting of named languages. Nothing is guessed, and each grammar is loaded when a block asks for it. */
import hljs from "highlight.js/lib/core";
import type { LanguageFn } from "highlight.js";
import "./highlight.css";

/** Each language by its names, as models write them; the first is its own. */
const LANGUAGES =
  `bash sh zsh, c h, cmake, cpp c++ cc hpp, csharp c# cs, css, dart, diff patch, dockerfile docker, elixir ex exs,
erlang erl, go golang, graphql gql, groovy gradle, haskell hs, ini toml, java, javascript js jsx mjs,
json json5 jsonc, julia jl, kotlin kt kts, latex tex, lua, makefile make, markdown md, nginx,
objectivec objective-c objc, perl pl, php, powershell ps1 pwsh, protobuf proto, python py python3, r, ruby rb,
rust rs, scala, scss sass, shell console shellsession, sql, swift, typescript ts tsx,
xml html svelte svg vue xhtml, yaml yml`
    .split(/,\s/)
    .map((names) => names.split(" "));
/** The grammars of C++ and SCSS contain those of C and CSS: one chunk serves two languages. */
const CONTAINED: Record<string, string> = { c: "cpp", css: "scss" };
const GRAMMARS = import.meta.glob<LanguageFn>(
  [
    "./{bash,cmake,cpp,csharp,dart,diff,dockerfile,elixir,erlang,go,graphql,groovy,haskell,ini}.js",
    "./{java,javascript,json,julia,kotlin,latex,lua,makefile,markdown,nginx,objectivec,perl,php,powershell}.js",
    "./{protobuf,python,r,ruby,rust,scala,scss,shell,sql,swift,typescript,xml,yaml}.js",
  ],
  { base: "/node_modules/highlight.js/lib/languages", import: "default" },
);
const found = (language: string) => LANGUAGES.find((names) => names.includes(language))?.[0];
const grammar = (name: string) => GRAMMARS[`./${CONTAINED[name] ?? name}.js`]!();

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

/** What reads code of a language as a tree of spans; undefined for a language that is not known here. */
export async function reader(language: string): Promise<((code: string) => Span) | undefined> {
  const name = found(language);
  if (name === undefined) return undefined;
  const missing = [name, ...(WITHIN[name] ?? [])].filter((each) => !hljs.getLanguage(each));
  await Promise.all(missing.map(async (each) => hljs.registerLanguage(each, await grammar(each))));
  return (code) => {
    const result = hljs.highlight(code, { language: name, ignoreIllegals: true });
    return (result._emitter as unknown as { rootNode: Span }).rootNode;
  };
}
