/** Highlighting of named languages, loaded when the first code block asks for it. Nothing is guessed. */
import hljs from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import cpp from "highlight.js/lib/languages/cpp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import markdown from "highlight.js/lib/languages/markdown";
import python from "highlight.js/lib/languages/python";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";

const languages = { bash, cpp, css, diff, go, java, javascript, json, markdown, python, rust, sql, typescript, xml, yaml };
for (const [name, language] of Object.entries(languages)) hljs.registerLanguage(name, language);

export interface Span {
  scope?: string;
  children: (Span | string)[];
}

/** The code as a tree of spans; undefined for a language that is not known here. */
export function highlight(code: string, language: string): Span | undefined {
  if (!hljs.getLanguage(language)) return undefined;
  const result = hljs.highlight(code, { language, ignoreIllegals: true });
  return (result._emitter as unknown as { rootNode: Span }).rootNode;
}
