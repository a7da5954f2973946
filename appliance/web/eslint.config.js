import js from "@eslint/js";
import svelte from "eslint-plugin-svelte";
import globals from "globals";
import ts from "typescript-eslint";
import svelteConfig from "./svelte.config.js";

export default ts.config(
  { ignores: ["**/dist/", "**/node_modules/"] },
  js.configs.recommended,
  ts.configs.recommended,
  svelte.configs.recommended,
  {
    languageOptions: { globals: { ...globals.browser, ...globals.node } },
    rules: {
      "no-sequences": "error",
      eqeqeq: "error",
      curly: ["error", "multi-line"],
      "no-control-regex": "off", // what models and searches write has such characters
      "svelte/require-each-key": "off", // most lists here are of tokens, which have no identity but their place
      "svelte/prefer-svelte-reactivity": "off", // a new Map takes the place of the old one: the state is raw
      "@typescript-eslint/no-unused-vars": ["error", { varsIgnorePattern: "^_$" }],
    },
  },
  // svelte-check proves the types of components; the parser of this linter does not know those of their markup.
  { files: ["**/*.svelte"], languageOptions: { parserOptions: { parser: ts.parser, svelteConfig } } },
  {
    files: ["**/src/**/*.ts", "**/tests/**/*.ts"],
    extends: [ts.configs.recommendedTypeChecked],
    languageOptions: { parserOptions: { projectService: true } },
  },
);
