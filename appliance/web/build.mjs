// Builds the page into dist/, refuses a bundle that is too heavy, and with --check compares instead of writing.
//
//   node build.mjs           build, measure, write dist/
//   node build.mjs --check   build elsewhere, measure, and fail unless dist/ holds exactly the same
//
// The bundle is committed, so that nobody needs Node to run the program. The server compresses it.
import { existsSync, mkdtempSync, readFileSync, readdirSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "vite";

const FIRST_LOAD = 90 * 1024;
const VIEW = 30 * 1024; // what comes when it is needed
const LIBRARY = 80 * 1024; // a library that has a chunk of its own
const LICENSES = "licenses.json"; // of what the page is made of; for the payload, and never served

const here = dirname(fileURLToPath(import.meta.url));
const dist = join(here, "dist");
const checking = process.argv.includes("--check");
const out = checking ? mkdtempSync(join(tmpdir(), "page-")) : dist;

const filesOf = (folder) =>
  readdirSync(folder, { recursive: true })
    .map((name) => join(folder, name))
    .filter((path) => statSync(path).isFile())
    .map((path) => relative(folder, path).replaceAll("\\", "/"))
    .sort();

try {
  const { output } = await build({ root: here, logLevel: "warn", build: { outDir: out, emptyOutDir: true } });
  const libraries = output.filter((chunk) => chunk.facadeModuleId?.includes("/node_modules/"));
  const names = new Set(libraries.map((chunk) => chunk.fileName));
  const wrong = [...tooHeavy(names), ...withoutRule(), ...(checking ? differences() : [])];
  for (const line of wrong) console.error(line);
  process.exitCode = wrong.length ? 1 : 0;
} finally {
  if (checking) rmSync(out, { recursive: true, force: true });
}

function tooHeavy(libraries) {
  const weight = (name) => gzipSync(readFileSync(join(out, name))).length;
  const index = readFileSync(join(out, "index.html"), "utf8");
  const named = [...index.matchAll(/(?:src|href)="\.\/(assets\/[^"]+)"/g)].map((match) => match[1]);
  // One language comes with them: the larger dictionary of the two that the first script names.
  const dictionaries = filesOf(out).filter((name) => /^assets\/(de|en)-/.test(name));
  const first = new Set(["index.html", ...named, dictionaries.sort((a, b) => weight(b) - weight(a))[0]]);
  const later = filesOf(out).filter((name) => !first.has(name) && !dictionaries.includes(name) && name !== LICENSES);
  const limits = [
    ["the first load", [...first].reduce((sum, name) => sum + weight(name), 0), FIRST_LOAD],
    ...later.map((name) => [name, weight(name), libraries.has(name) ? LIBRARY : VIEW]),
  ];
  const kib = (size) => (size / 1024).toFixed(1);
  const heaviest = limits.slice(1).sort((a, b) => b[1] - a[1]);
  console.log(`the first load: ${kib(limits[0][1])} KiB gzip of ${FIRST_LOAD / 1024}`);
  console.log(
    `later: ${heaviest
      .slice(0, 4)
      .map(([name, size]) => `${name} ${kib(size)}`)
      .join(", ")}`,
  );
  return limits
    .filter(([, size, limit]) => size > limit)
    .map(([what, size, limit]) => `error: ${what} has ${size} bytes and may have ${limit}; import less, or later`);
}

/** The classes of the sources that no style sheet knows: a name that is written wrong draws nothing, and says nothing. */
function withoutRule() {
  const styles = filesOf(out).filter((name) => name.endsWith(".css"));
  const sheets = styles.map((name) => readFileSync(join(out, name), "utf8")).join("");
  const known = new Set([...sheets.matchAll(/\.((?:\\.|[\w-])+)/g)].map((match) => match[1].replaceAll("\\", "")));
  const wrong = [];
  for (const path of filesOf(join(here, "src")).filter((name) => /\.(svelte|ts)$/.test(name))) {
    const text = readFileSync(join(here, "src", path), "utf8");
    const strings = (part) =>
      [...part.matchAll(/([=!]== )?"([^"\\\n]*)"/g)].flatMap(([, compared, words]) =>
        compared ? [] : words.split(/\s+/),
      );
    const listed = [...text.matchAll(/\bclass=(?:"([^"]*)"|\{)/g)].flatMap(({ index, 0: begin, 1: words }) =>
      words === undefined ? strings(braced(text, index + begin.length)) : words.replace(/\{[^}]*\}/g, " ").split(/\s+/),
    );
    // Classes that code chooses lie in constants: those with a colour look like nothing else.
    const coloured = strings(text).filter((word) =>
      /^([\w-]+:)*(bg|text|border|fill|stroke|accent)-[a-z][\w/-]*$/.test(word),
    );
    const lost = [...listed, ...coloured].filter((word) => /[a-z]/i.test(word) && word !== "group" && !known.has(word));
    if (lost.length) wrong.push(`error: src/${path} has classes without a rule: ${[...new Set(lost)].join(", ")}`);
  }
  return wrong;
}

/** The code from here to the brace that closes it. */
function braced(text, from) {
  let depth = 1;
  let at = from;
  for (; depth && at < text.length; at++) depth += { "{": 1, "}": -1 }[text[at]] ?? 0;
  return text.slice(from, at);
}

function differences() {
  const committed = existsSync(dist) ? filesOf(dist) : [];
  const built = filesOf(out);
  const read = (folder, name) => readFileSync(join(folder, name));
  const names = [...new Set([...committed, ...built])].filter(
    (name) => !committed.includes(name) || !built.includes(name) || !read(dist, name).equals(read(out, name)),
  );
  return names.length
    ? [`error: dist/ is not the build of the sources (${names.slice(0, 5).join(", ")}); run python3 bootstrap.py web`]
    : [];
}
