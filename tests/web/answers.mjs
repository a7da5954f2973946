// Answers of models as the page shows them: `node answers.mjs [FILE]`. FILE (answers.txt) has for each of them a name, the
// Markdown, and what it becomes. Each is read at once and as it would come: cut at random places (SEED), and again and
// again. With --write what they become now is written into FILE, to be read by a person.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { isDeepStrictEqual } from "node:util";
import { createRequire } from "node:module";
import { join } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const web = process.env.WEB ?? fileURLToPath(new URL("../../appliance/web/", import.meta.url));
const file = new URL("answers.txt", import.meta.url);
const [header, ...written] = readFileSync(file, "utf8").split(/^%%% /m);
const parsed = written.map((part) => {
  const [, name, text, shown] = /^(.*)\n([^]*?)\n%=\n([^]*?)\n*$/.exec(part) ?? [
    0,
    part.split("\n")[0],
    part.slice(part.indexOf("\n") + 1).trimEnd(),
    "",
  ];
  return { name, text, shown };
});

/** The page's own component and lexer, as a module for Node. */
async function built() {
  const require = createRequire(join(web, "package.json"));
  const { build } = await import(pathToFileURL(join(web, "node_modules/vite/dist/node/index.js")));
  const { svelte } = await import(pathToFileURL(require.resolve("@sveltejs/vite-plugin-svelte")));
  const out = mkdtempSync(join(web, "node_modules", ".answers-"));
  const entry = join(out, "entry.js");
  try {
    writeFileSync(
      entry,
      `export { Blocks } from "${web}src/lib/markdown"; export { default as Markdown } from "${web}src/parts/Markdown.svelte"; export { render } from "svelte/server";`,
    );
    await build({
      root: web,
      configFile: false,
      logLevel: "error",
      plugins: [svelte({ configFile: false, compilerOptions: { runes: true } })],
      ssr: { noExternal: true },
      build: { ssr: entry, outDir: join(out, "built") },
    });
    globalThis.matchMedia = () => ({ matches: false });
    globalThis.navigator ??= { language: "en" };
    return await import(pathToFileURL(join(out, "built/entry.js")));
  } finally {
    rmSync(out, { recursive: true, force: true });
  }
}

const { Blocks, Markdown, render } = await built();

/** The elements that a person sees, one block a line. */
function seen(text) {
  return render(Markdown, { props: { text } })
    .body.replace(/<!--[^]*?-->/g, "")
    .replace(
      /<div class="code[^]*?<span>(.*?)<\/span>[^]*?<pre[^>]*><code>([^]*?)<\/code><\/pre><\/div>/g,
      "<pre $1>$2</pre>",
    )
    .replace(/<span class="block[^"]*"[^>]*>([^]*?)<\/span>/g, "<display>$1</display>")
    .replace(/<(\/?)([\w-]+)((?:\s[^<>]*)?)>/g, (_, end, name, rest) => {
      if (name === "div") return "";
      const kept = rest.match(/ (?:href|start|src|open)="[^"]*"|text-(?:left|center|right)/g) ?? [];
      return `<${end}${name}${name === "pre" ? rest : kept.map((each) => ` ${each.trim()}`).join("")}>`;
    })
    .replace(/\s*(<\/?(?:p|ul|ol|li|blockquote|h\d|table|thead|tbody|tr|hr|details|summary)\b[^>]*>)\s*/g, "$1")
    .replace(/(?<=.)(?=<(?:p|ul|ol|blockquote|h\d|pre|table|hr|details)\b)/g, "\n")
    .trim();
}

let state = Number(process.env.SEED ?? 1);
const random = (count) => (state = (state * 1103515245 + 12345) % 2147483648) % count;

/** The same text in pieces: the blocks at its end, while they came and were closed. */
function streamed(text, largest) {
  const blocks = new Blocks();
  for (let at = 0; at < text.length; at += 1 + random(largest)) blocks.of(text.slice(0, at), true);
  return blocks.of(text);
}

const plain = (blocks) => JSON.parse(JSON.stringify(blocks, (_, value) => (value === undefined ? null : value)));
/** Long lists and tables: their parts are alike, the numbers go on, and what is defined at the end holds in all of them. */
const times = (count, line, from = 0) => Array.from({ length: count }, (_, at) => line(at + from)).join("");
const PART = 32;
const inParts = (count, item, [open, close]) =>
  times(
    Math.ceil(count / PART),
    (at) => `${at ? "\n" : ""}${open(at * PART)}${times(Math.min(PART, count - at * PART), item, at * PART)}${close}`,
  );
const END = "\n[x]: https://example.org\n";
const LINK = '<a href="https://example.org/">x</a>';
const long = [
  [
    "a list",
    times(100, (at) => `- item ${at} [x]\n`) + END,
    inParts(100, (at) => `<li>item ${at} ${LINK}</li>`, [() => "<ul>", "</ul>"]),
  ],
  [
    "numbers",
    times(97, (at) => `${at + 5}. item ${at}\n`),
    inParts(97, (at) => `<li>item ${at}</li>`, [(at) => `<ol start="${at + 5}">`, "</ol>"]),
  ],
  [
    "a number again and again",
    times(70, (at) => `1. item ${at}\n`),
    inParts(70, (at) => `<li>item ${at}</li>`, [(at) => (at ? `<ol start="${at + 1}">` : "<ol>"), "</ol>"]),
  ],
  [
    "a loose list",
    times(65, (at) => `- item ${at}\n\n`),
    inParts(65, (at) => `<li>\n<p>item ${at}</p></li>`, [() => "<ul>", "</ul>"]),
  ],
  [
    "tasks",
    times(65, (at) => `- [${at % 2 ? "x" : " "}] item ${at}\n`),
    inParts(65, (at) => `<li>${at % 2 ? "☑" : "☐"} item ${at}</li>`, [() => "<ul>", "</ul>"]),
  ],
  [
    "a table",
    `| a | b |\n|---|:-:|\n${times(100, (at) => `| ${at} | [x] |\n`)}${END}`,
    `<table><thead><tr><th>a</th><th text-center>b</th></tr></thead>${inParts(100, (at) => `<tr><td>${at}</td><td text-center>${LINK}</td></tr>`, [() => "<tbody>", "</tbody>"]).replaceAll("\n", "")}</table>`,
  ],
].map(([name, text, shown]) => ({ name: `long: ${name}`, text, shown }));

const wrong = [];
const all = parsed.map((each) => each.text).join("\n\n");
for (const { name, text, shown } of [...parsed, ...long, { name: "all of them", text: all }]) {
  const once = plain(new Blocks().of(text));
  for (const largest of name === "all of them" ? [200] : [1, 3, 17]) {
    for (const given of [text, `${text}\n\nThe end.\n`]) {
      const whole = given === text ? once : plain(new Blocks().of(given));
      if (!isDeepStrictEqual(plain(streamed(given, largest)), whole)) {
        wrong.push(`${name}: in pieces of up to ${largest} characters it becomes something else`);
        break;
      }
    }
  }
  if (shown !== undefined && !process.argv.includes("--write") && seen(text) !== shown) {
    wrong.push(`${name}: expected\n${shown}\nand it is\n${seen(text)}`);
  }
}
if (process.argv.includes("--write")) {
  writeFileSync(file, header + parsed.map(({ name, text }) => `%%% ${name}\n${text}\n%=\n${seen(text)}\n`).join("\n"));
}
for (const line of wrong) console.log(line);
console.log(`${parsed.length + long.length} answers, ${wrong.length} wrong`);
process.exitCode = wrong.length ? 1 : 0;
