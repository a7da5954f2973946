import { readFileSync } from "node:fs";
import { svelte } from "@sveltejs/vite-plugin-svelte";
import tailwindcss from "@tailwindcss/vite";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";
import { first } from "./src/i18n/first.ts";

/** Where `npm run dev` finds a running server. */
const server = process.env.LLAMA_APPLIANCE_URL ?? "http://127.0.0.1:8080";
const routes = ["/api", "/v1", "/models", "/props", "/health", "/tools", "/logs", "/ui"];

/** Of marked the page needs the lexer alone. What makes HTML hangs on an instance that the module makes of itself. */
const lexer: Plugin = {
  name: "lexer-of-marked",
  transform(code, id) {
    if (!/\/marked\/lib\/marked\.esm\.js$/.test(id)) return undefined;
    const [, instance] = /;var (\w+)=new \w+;function /.exec(code) ?? [];
    const named = ["Lexer", "Tokenizer", "getDefaults"].map((name) => new RegExp(`\\w+ as ${name}\\b`).exec(code)?.[0]);
    if (!instance || named.includes(undefined)) {
      throw new Error("marked is built in another way: see lexer in vite.config.ts");
    }
    return { code: `${code.slice(0, code.indexOf(`;var ${instance}=new `))};export{${named.join()}};`, map: null };
  },
};

/** The words of the first load in one language, as `words:en` and `words:de`: a browser fetches no other. */
const words: Plugin = {
  name: "words-of-one-language",
  resolveId: (id) => (id.startsWith("words:") ? `\0words/${id.slice("words:".length)}` : undefined),
  load(id) {
    const [, language] = /^\0words\/(en|de)$/.exec(id) ?? [];
    const said = Object.entries(first).map(([name, phrase]) => [name, phrase[language as "en" | "de"]]);
    return language && `export default ${JSON.stringify(Object.fromEntries(said))}`;
  },
};

/** A script of its own, which runs before the first paint. Its name has a hash, so that a browser keeps it. */
const theme: Plugin = {
  name: "theme-before-paint",
  buildStart() {
    if (this.meta.watchMode) return;
    this.emitFile({ type: "asset", name: "theme.js", source: readFileSync(new URL("src/theme.js", import.meta.url)) });
  },
  transformIndexHtml: {
    order: "post",
    handler(_, { bundle }) {
      const built = Object.keys(bundle ?? {}).find((name) => name.startsWith("assets/theme-"));
      return [{ tag: "script", attrs: { src: built ? `./${built}` : "/src/theme.js" }, injectTo: "head-prepend" }];
    },
  },
};

export default defineConfig({
  base: "./", // relative, so that one build works under every prefix
  plugins: [lexer, words, theme, svelte(), tailwindcss()],
  build: {
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    sourcemap: false,
    license: { fileName: "licenses.json" },
  },
  server: { proxy: Object.fromEntries(routes.map((route) => [route, { target: server, changeOrigin: true }])) },
  test: {
    include: ["tests/*.test.ts", "src/screens/*/*.test.ts"],
    setupFiles: ["tests/browser.ts"],
    isolate: false,
    slowTestThreshold: 5000,
    testTimeout: 120_000, // it only bounds a failure on a busy machine
  },
});
