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
  const wrong = [...tooHeavy(new Set(libraries.map((chunk) => chunk.fileName))), ...(checking ? differences() : [])];
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
